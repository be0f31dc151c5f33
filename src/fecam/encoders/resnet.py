"""ResNet-18, the network that the paper trains on the base classes, and the file that holds one.

The file is in safetensors format: tensors and text, no code. Its header holds the architecture, the
preprocessing, the class names and a fingerprint of the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.data.dataset import fingerprint_of
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.tensor_files import layer_difference, read_tensors, write_tensors
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors, fuse_batchnorm
from fecam.errors import EncoderError
from fecam.files import PathLike
from fecam.validation import check_choice, check_int

Stem = Literal["small", "large"]
"""The first layers: "small" keeps the resolution, for about 32 pixels; "large" is for 224."""

_WIDEST = 1024
_FORM = "fecam encoder 1"


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
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        maps = self.layer4(self.shared_maps(images))
        return maps.mean((2, 3))  # unlike adaptive pooling, deterministic backward on a GPU

    def shared_maps(self, images: Tensor) -> Tensor:
        """Return the maps before the last stage."""
        maps = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        if self.stem == "large":
            maps = functional.max_pool2d(maps, 3, 2, 1)
        maps = self.layer3(self.layer2(self.layer1(maps)))
        return maps


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.downsample = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, maps: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(maps)), inplace=True)
        # Strides by slicing: oneDNN 3.12 writes outside its memory when a strided 1 x 1 convolution
        # with few channels is trained in channels-last layout.
        shortcut = self.downsample(maps[:, :, :: self.stride, :: self.stride])
        return functional.relu(self.bn2(self.conv2(inner)) + shortcut, inplace=True)


def _stage(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(_Block(inputs, outputs, stride), _Block(outputs, outputs, 1))


class ResNetEncoder(TorchImageEncoder):
    """A frozen ResNet-18 with the names of the classes that it was trained on."""

    class_names: tuple[str, ...] = ()


def save_encoder(
    path: PathLike,
    network: ResNet18,
    preprocessing: ImagePreprocessing,
    class_names: Sequence[str],
    notes: Mapping[str, Any] | None = None,
) -> str:
    """Write a network, its preprocessing and ``notes`` on its training; return its fingerprint."""
    weights = network.state_dict()
    description = {
        "architecture": "resnet18",
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
        if metadata["architecture"] != "resnet18":
            raise ValueError(f"its architecture is {metadata['architecture']!r}, not 'resnet18'")
        class_names = [str(name) for name in metadata["class_names"]]
        preprocessing = ImagePreprocessing.from_dict(metadata["preprocessing"])
        with torch.device("meta"):  # allocates nothing before the shapes are checked
            network = ResNet18(int(metadata["width"]), metadata["stem"])
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
    fused, name = fuse_batchnorm(network), f"resnet18:{os.fspath(path)}"
    encoder = ResNetEncoder(
        fused, preprocessing, name=name, fingerprint=fingerprint, device=device, half=half
    )
    encoder.class_names = tuple(class_names)
    return encoder


def _fingerprint(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> str:
    text = json.dumps(description, sort_keys=True)
    return fingerprint_of([text, fingerprint_of_tensors(weights)])
