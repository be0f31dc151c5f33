"""ResNet-18, the network that the paper trains on the base classes, and the file that holds one.

ResNet-20 and ResNet-12 of few-shot papers are in the same files.

The file is in safetensors format: tensors and text, no code. Its header holds the architecture, the
preprocessing, the class names and a fingerprint of the weights.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.data.dataset import fingerprint_of
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet_blocks import Stem, initialize, stage
from fecam.encoders.resnet_variants import ResNet12, ResNet20
from fecam.encoders.tensor_files import layer_difference, read_tensors, write_tensors
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors, fuse_batchnorm
from fecam.errors import EncoderError
from fecam.files import PathLike
from fecam.validation import check_choice, check_int

_WIDEST = 1024
_FORM = "fecam encoder 1"
_FUSED = (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("0", "1"))
"""Convolutions and their batch normalizations."""


class ResNet18(nn.Module):
    """ResNet-18 without its classifier: images (n, 3, h, w) to ``8 * width`` features.

    The features are the output of the last ReLU averaged over the image, so they are nonnegative.
    Layers are named as in public checkpoints.
    """

    def __init__(self, width: int = 64, stem: Stem = "small") -> None:
        super().__init__()
        check_int("width", width, 1, _WIDEST, error=EncoderError)
        check_choice("stem", stem, ("small", "large"), error=EncoderError)
        self.width, self.stem, self.n_features = width, stem, 8 * width
        self.conv1 = (
            nn.Conv2d(3, width, 3, 1, 1, bias=False)
            if stem == "small"
            else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        initialize(self)

    def early(self, images: Tensor) -> Tensor:
        """Return the maps after the second stage."""
        maps = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        if self.stem == "large":
            maps = functional.max_pool2d(maps, 3, 2, 1)
        out: Tensor = self.layer2(self.layer1(maps))
        return out

    def late(self, maps: Tensor) -> Tensor:
        """Return the features of maps."""
        maps = self.layer4(self.layer3(maps))
        return maps.mean((2, 3))  # unlike adaptive pooling, deterministic backward on a GPU

    def shared_maps(self, images: Tensor) -> Tensor:
        """Return the maps before the last stage."""
        maps: Tensor = self.layer3(self.early(images))
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        return self.late(self.early(images))


NETWORKS: Mapping[str, type[ResNet18] | type[ResNet20] | type[ResNet12]] = {
    "resnet18": ResNet18,
    "resnet20": ResNet20,
    "resnet12": ResNet12,
}
"""The networks that `fecam.training` trains, by name. Encoder files contain these names."""


def make_network(name: str, width: int, stem: Stem) -> Any:
    """Return a network with new weights; only ResNet-18 has both stems."""
    check_choice("network", name, NETWORKS, error=EncoderError)
    return NETWORKS[name](width, stem if name == "resnet18" else "small")


def name_of(network: nn.Module) -> str:
    """Return the name of a network in `NETWORKS`."""
    return next(name for name, kind in NETWORKS.items() if type(network) is kind)


class ResNetEncoder(TorchImageEncoder):
    """A frozen ResNet with the names of the classes that it was trained on."""

    class_names: tuple[str, ...] = ()


def save_encoder(
    path: PathLike,
    network: ResNet18 | ResNet20 | ResNet12,
    preprocessing: ImagePreprocessing,
    class_names: Sequence[str],
    notes: Mapping[str, Any] | None = None,
) -> str:
    """Write a network, its preprocessing and ``notes`` on its training; return its fingerprint."""
    weights = network.state_dict()
    description = {
        "architecture": name_of(network),
        "width": network.width,
        "stem": network.stem,
        "preprocessing": preprocessing.as_dict(),
    }
    fingerprint = _fingerprint(description, weights)
    metadata = {
        **description,
        "class_names": list(class_names),
        "fingerprint": fingerprint,
        "notes": dict(notes or {}),
    }
    write_tensors(path, weights, {"encoder": json.dumps(metadata)}, _FORM, EncoderError)
    return fingerprint


def load_encoder(path: PathLike, *, device: Any = None, half: bool = False) -> ResNetEncoder:
    """Return the encoder of a file that `save_encoder` wrote."""
    if not Path(path).is_file():
        raise EncoderError(
            f"resnet18:{os.fspath(path)} is not a file. Run fecam train DATASET --output FOLDER, "
            "then use resnet18:FOLDER/encoder.safetensors."
        )
    weights, header = read_tensors(path, _FORM, EncoderError)
    try:
        metadata = json.loads(header["encoder"])
        description = {
            key: metadata[key] for key in ("architecture", "width", "stem", "preprocessing")
        }
        if metadata["architecture"] not in NETWORKS:
            raise ValueError(f"its architecture is {metadata['architecture']!r}, not a ResNet")
        class_names = [str(name) for name in metadata["class_names"]]
        preprocessing = ImagePreprocessing.from_dict(metadata["preprocessing"])
        with torch.device("meta"):  # allocates nothing before the shapes are checked
            network = NETWORKS[metadata["architecture"]](int(metadata["width"]), metadata["stem"])
        if difference := layer_difference(weights, network.state_dict(), {}):
            raise ValueError(f"different is {difference}")
        fingerprint = _fingerprint(description, weights)
        if fingerprint != metadata["fingerprint"]:
            raise ValueError("its fingerprint does not match its weights")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise EncoderError(
            f"{path} is not a ResNet-18 that save_encoder wrote: {reason}. Train it again."
        ) from None
    network.load_state_dict(weights, assign=True)
    fused, name = fuse_batchnorm(network, _FUSED), f"resnet18:{os.fspath(path)}"
    encoder = ResNetEncoder(
        fused, preprocessing, name=name, fingerprint=fingerprint, device=device, half=half
    )
    encoder.class_names = tuple(class_names)
    return encoder


def _fingerprint(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> str:
    text = json.dumps(description, sort_keys=True)
    return fingerprint_of([text, fingerprint_of_tensors(weights)])
