"""Encoders made from a user's function or torch module."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fecam.data.dataset import Kind, fingerprint_of
from fecam.encoders.encoder import BatchEncoder, Encoder, Features
from fecam.errors import EncoderError

if TYPE_CHECKING:
    from fecam.encoders.preprocessing import ImagePreprocessing


def wrap(
    function: Callable[..., Any],
    *,
    name: str,
    kind: Kind = "images",
    n_features: int | None = None,
    preprocessing: ImagePreprocessing | None = None,
    fingerprint: str | None = None,
    device: Any = None,
) -> Encoder:
    """Return an encoder that calls a function from a batch to features, or a torch module.

    Parameters
    ----------
    function : callable, torch.nn.Module or object with a method ``encode``
        Takes a list of texts, a float32 array (n, features), or a list of 8-bit images; with a
        ``preprocessing``, a float32 array (n, 3, size, size). Returns one row per item. A module
        takes tensors and is copied, so that training it further does not change the encoder. Of an
        object with a method ``encode``, such as a SentenceTransformer, this method is called.
    name : str
        The name of the encoder.
    kind : {"images", "texts", "features"}, default="images"
        The kind of the items.
    n_features : int, optional
        The number of features per item; by default found by encoding a blank item.
    preprocessing : ImagePreprocessing, optional
        Applied to each image. A module for images needs one.
    fingerprint : str, optional
        The key under which features are cached. By default that of a module is a hash of its
        weights and layers; that of a function is "", which means that features are not cached.
    device : {"cpu", "cuda", "mps"}, optional
        The device for a module; by default a GPU if there is one.

    Returns
    -------
    Encoder
        The encoder.

    Raises
    ------
    EncoderError
        If the arguments do not fit each other, or the function returns something else than rows.

    Examples
    --------
    >>> lengths = wrap(lambda texts: [[len(text)] for text in texts], name="length", kind="texts")
    >>> lengths
    <encoder length: texts to 1 features>
    >>> lengths.encode(["one", "three"]).tolist()
    [[3.0], [5.0]]
    """
    # If torch was never imported, the function is not one of its modules.
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(function, torch.nn.Module)
    if is_module and fingerprint is None:
        from fecam.encoders.torch_runtime import fingerprint_of_tensors

        module: Any = function  # its layers are hashed as it prints them
        named = f"{type(module).__module__}.{type(module).__qualname__}"
        weights = fingerprint_of_tensors(module.state_dict())
        fingerprint = fingerprint_of([named, repr(module), weights])
    if callable(encode := getattr(function, "encode", None)):
        function, is_module = encode, False
    if not callable(function):
        raise EncoderError(
            f"function={function!r} of {name!r} cannot be called: give a function or a module."
        )
    if preprocessing is not None and kind != "images":
        raise EncoderError(f"kind={kind!r} of {name!r}: only images have a preprocessing.")
    if not is_module:
        return _Wrapped(function, name, kind, n_features, preprocessing, fingerprint or "")
    assert fingerprint is not None, "computed above"
    if kind == "images":
        return _image_module(function, name, n_features, preprocessing, fingerprint, device)
    return _Wrapped(_frozen(function, kind, device), name, kind, n_features, None, fingerprint)


class _Wrapped(BatchEncoder):
    """An encoder that calls a function."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        name: str,
        kind: Kind,
        n_features: int | None,
        steps: ImagePreprocessing | None,
        fingerprint: str,
    ) -> None:
        self.name, self.kind, self._function, self._steps = name, kind, function, steps
        self.preprocessing = "none" if steps is None else steps.describe()
        if fingerprint and steps is not None:
            fingerprint = fingerprint_of([fingerprint, steps.fingerprint])
        self.fingerprint = fingerprint
        if n_features is None:
            if kind == "features":
                raise EncoderError(f"{name!r} takes features: give n_features=... as well.")
            blank: Any = "a text" if kind == "texts" else np.full((64, 64, 3), 128, np.uint8)
            n_features = self._dry_run(self.prepare(blank))
        self.n_features = n_features

    def prepare(self, item: Any) -> Any:
        """Return the item, after the preprocessing if there is one."""
        return item if self._steps is None else self._steps(item)

    def _run(self, prepared: Sequence[Any]) -> Features:
        as_list = self._steps is None and self.kind != "features"
        output = self._function(list(prepared) if as_list else np.stack(prepared, dtype=np.float32))
        if hasattr(output, "detach"):  # a torch tensor, maybe on another device
            output = output.detach().cpu().float()
        try:
            return np.asarray(output, np.float32)
        except (TypeError, ValueError) as error:
            raise EncoderError(
                f"{self.name!r} returned {type(output).__name__}, not an array of numbers: {error}."
            ) from None


def _image_module(
    module: Any,
    name: str,
    n_features: int | None,
    preprocessing: ImagePreprocessing | None,
    fingerprint: str,
    device: Any,
) -> Encoder:
    from fecam.encoders.torch_runtime import TorchImageEncoder

    if preprocessing is None:
        raise EncoderError(
            f"the module {name!r} needs images of one size: give a preprocessing, as in "
            "wrap(module, name=..., preprocessing=ImagePreprocessing(size=224))."
        )
    key = fingerprint and fingerprint_of([fingerprint, preprocessing.fingerprint])
    network = copy.deepcopy(module)
    encoder = TorchImageEncoder(network, preprocessing, name=name, fingerprint=key, device=device)
    if n_features is not None and n_features != encoder.n_features:
        raise EncoderError(
            f"{name!r} returns {encoder.n_features} features, not n_features={n_features}."
        )
    return encoder


def _frozen(module: Any, kind: Kind, device: Any) -> Callable[[Any], Any]:
    """Return a function that runs a copy of a module for texts or features."""
    import torch

    from fecam.encoders.torch_runtime import choose_device

    device = choose_device(device)
    network = copy.deepcopy(module).eval().requires_grad_(False).to(device)

    def run(batch: Any) -> Any:
        with torch.inference_mode():
            return network(batch if kind == "texts" else torch.from_numpy(batch).to(device))

    return run
