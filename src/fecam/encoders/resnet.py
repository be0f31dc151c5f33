"""ResNet-18, the network that the paper trains on the first task, and the file that holds one.

An encoder's file is in safetensors: numbers and text, nothing that could run. The architecture,
the preprocessing and the names of the classes travel in its header, and a fingerprint over all of
them says whether a byte has changed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fecam.data.dataset import fingerprint_of
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors
from fecam.errors import EncoderError, FecamError

Stem = Literal["small", "large"]
"""The first layers: for images of some 32 pixels, which lose no resolution there, or of 224."""
PathLike = str | os.PathLike[str]

_WIDEST = 1024
_FORMAT = "fecam encoder 1"
_STALE = 3600.0  # seconds after which a temporary file is nobody's any more


class ResNet18(nn.Module):
    """ResNet-18 without its classifier: images (n, 3, h, w) to ``8 * width`` features.

    The features are what is left of the last ReLU after averaging over the image, so none is
    negative. Layers have the names that public checkpoints give them.

    >>> ResNet18(width=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """

    def __init__(self, width: int = 64, stem: Stem = "small") -> None:
        super().__init__()
        if not 1 <= width <= _WIDEST:
            raise EncoderError(f"a ResNet-18 of width {width!r}: choose from 1 to {_WIDEST}.")
        if stem not in ("small", "large"):
            raise EncoderError(f"a ResNet-18 with stem {stem!r}: choose 'small' or 'large'.")
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
        """The features, one row an image."""
        maps = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        if self.stem == "large":
            maps = functional.max_pool2d(maps, 3, 2, 1)
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return maps.mean((2, 3))  # unlike adaptive pooling, deterministic backwards on a GPU


class _Block(nn.Module):
    """Two convolutions and a way around them."""

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
        # Pixels are left out here and not by a convolution with a stride: oneDNN 3.12 writes
        # outside its memory when that, 1 x 1 and of few channels, is trained with channels last.
        around = self.downsample(maps[:, :, :: self.stride, :: self.stride])
        return functional.relu(self.bn2(self.conv2(inner)) + around, inplace=True)


def _stage(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(_Block(inputs, outputs, stride), _Block(outputs, outputs, 1))


def fuse_batchnorm(network: nn.Module) -> nn.Module:
    """The network for inference, each batch normalisation folded into its convolution, in place."""
    network.eval()
    for module in network.modules():
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("0", "1")):
            layers = dict(module.named_children())
            if isinstance(layers.get(norm), nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(layers[conv], layers[norm]))
                setattr(module, norm, nn.Identity())
    return network


class ResNetEncoder(TorchImageEncoder):
    """A ResNet-18 trained here, frozen; it knows the names of the classes it was trained on."""

    class_names: tuple[str, ...] = ()


def save_encoder(
    path: PathLike,
    network: ResNet18,
    preprocessing: ImagePreprocessing,
    class_names: Sequence[str],
    notes: Mapping[str, Any] | None = None,
) -> str:
    """Write a trained network with all that belongs to it; returns its fingerprint.

    ``notes`` are for people: what it was trained on, and how.
    """
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
    write_tensors(path, weights, {"encoder": json.dumps(metadata)}, _FORMAT, EncoderError)
    return fingerprint


def load_encoder(path: PathLike, *, device: Any = None, half: bool = False) -> ResNetEncoder:
    """The encoder in a file that `save_encoder` has written."""
    if not Path(path).is_file():
        raise EncoderError(
            f"resnet18:{os.fspath(path)} is not a file. Remedy: fecam train DATASET --output "
            "FOLDER, then resnet18:FOLDER/encoder.safetensors"
        )
    weights, header = read_tensors(path, _FORMAT, EncoderError)
    try:
        metadata = json.loads(header["encoder"])
        description = {
            key: metadata[key] for key in ("architecture", "width", "stem", "preprocessing")
        }
        if metadata["architecture"] != "resnet18":
            raise ValueError(f"its architecture is {metadata['architecture']!r}, not 'resnet18'")
        class_names = [str(name) for name in metadata["class_names"]]
        preprocessing = ImagePreprocessing.from_dict(metadata["preprocessing"])
        with torch.device("meta"):  # nothing is allocated on the word of a file
            network = ResNet18(int(metadata["width"]), metadata["stem"])
        _check_layers(weights, network.state_dict())
        fingerprint = _fingerprint(description, weights)
        if fingerprint != metadata["fingerprint"]:
            raise ValueError("its fingerprint does not fit its weights")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
        raise EncoderError(
            f"{path} is not a ResNet-18 as save_encoder writes it: {reason}. Train it again."
        ) from None
    network.load_state_dict(weights, assign=True)
    encoder = ResNetEncoder(
        fuse_batchnorm(network),
        preprocessing,
        name=f"resnet18:{os.fspath(path)}",
        fingerprint=fingerprint,
        device=device,
        half=half,
    )
    encoder.class_names = tuple(class_names)
    return encoder


def _check_layers(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    for name in (*ours, *(theirs.keys() - ours.keys())):
        there, here = (
            f"{each[name].dtype} {tuple(each[name].shape)}" if name in each else "none"
            for each in (theirs, ours)
        )
        if there != here:
            raise ValueError(f"the layer {name} is {there} where {here} belongs")


def _fingerprint(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> str:
    words = json.dumps(description, sort_keys=True)
    return fingerprint_of([words, fingerprint_of_tensors(weights)])


def write_tensors(
    path: PathLike,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    form: str,
    error: type[FecamError],
) -> None:
    """Write tensors and text to a file, in place of an older one, whole or not at all.

    ``form`` says what kind of file it is, and ``error`` is raised if it cannot be written.
    """
    path = Path(path)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    words = {**metadata, "form": form}
    words["checksum"] = _checksum(words, plain)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        with open(temporary, "wb") as file:
            file.write(save(plain, words))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as reason:
        with suppress(OSError):
            temporary.unlink()
        raise error(f"{path} was not written: {reason}. Choose a folder with room.") from None


def read_tensors(
    path: PathLike, form: str, error: type[FecamError]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote, as ``form``; ``error`` is raised for anything else."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            words = dict(file.metadata() or {})
            if words.get("form") != form:
                raise error(
                    f"{path} is not a {form!r} file: it says {words.get('form')!r}. "
                    "Give another file."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as reason:
        raise error(f"{path} cannot be read: {reason}. Delete it and make it again.") from None
    if words.pop("checksum", None) != _checksum(words, tensors):
        raise error(f"{path} is damaged: its checksum does not fit. Delete it and make it again.")
    return tensors, words


def _checksum(words: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    return fingerprint_of([json.dumps(words, sort_keys=True), fingerprint_of_tensors(tensors)])


def _remove_stale(path: Path) -> None:
    """What a process left that was killed while it wrote."""
    for left in path.parent.glob(f".{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
