"""The user's own encoder: any function, or any network of torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fecam.data.dataset import Kind, fingerprint_of
from fecam.encoders.encoder import Encoder, Features
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
    """Make an encoder of a function from a batch to features, or of a ``torch.nn.Module``.

    A function is given what it is for: a list of texts; a float32 array (n, features); of images a
    list of 8-bit arrays or, with a ``preprocessing``, a float32 array (n, 3, size, size). It gives
    one row for each. A module for images needs a ``preprocessing`` and is shown tensors; it is
    copied, so that training it further changes nothing here.

    Features are cached under the ``fingerprint``. Of a module it is computed; a function that has
    none has the fingerprint "", and its features cannot be cached.

    ``n_features`` is the number of features; without it, one made-up item is encoded to find out.

    >>> lengths = wrap(lambda texts: [[len(text)] for text in texts], name="length", kind="texts")
    >>> lengths
    <encoder length: texts to 1 features>
    >>> lengths.encode(["one", "three"]).tolist()
    [[3.0], [5.0]]
    """
    if not callable(function):
        raise EncoderError(f"{name!r} wraps {type(function).__name__}, which cannot be called")
    if preprocessing is not None and kind != "images":
        raise EncoderError(f"{name!r} is for {kind}; only images have a preprocessing")
    # Where torch was never imported, nothing can be one of its modules.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.Module):
        return _Wrapped(function, name, kind, n_features, preprocessing, fingerprint or "")
    found = _of_module(function) if fingerprint is None else fingerprint
    if kind == "images":
        return _image_module(function, name, n_features, preprocessing, found, device)
    return _Wrapped(_frozen(function, kind, device), name, kind, n_features, None, found)


class _Wrapped(Encoder):
    """A function of the user's."""

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
        self.n_features = self._dry_run() if n_features is None else n_features

    def prepare(self, item: Any) -> Any:
        """One item; an image through the preprocessing, if there is one."""
        return item if self._steps is None else self._steps(item)

    def embed(self, prepared: Sequence[Any]) -> Features:
        """What the function gives, checked."""
        if not len(prepared):
            return np.zeros((0, self.n_features), np.float32)
        features = self._call(prepared)
        if features.shape != (len(prepared), self.n_features):
            raise EncoderError(
                f"{self.name!r} gave an array of shape {features.shape} for {len(prepared)} items; "
                f"it should be ({len(prepared)}, {self.n_features})"
            )
        return features

    def _call(self, prepared: Sequence[Any]) -> Features:
        as_list = self._steps is None and self.kind != "features"
        found = self._function(list(prepared) if as_list else np.stack(prepared, dtype=np.float32))
        if hasattr(found, "detach"):  # a tensor of torch, maybe on another device
            found = found.detach().cpu().float()
        try:
            return np.asarray(found, np.float32)
        except (TypeError, ValueError) as error:
            raise EncoderError(
                f"{self.name!r} gave {type(found).__name__}, not an array of numbers: {error}"
            ) from None

    def _dry_run(self) -> int:
        """How many features come out, found by looking at an item that says nothing."""
        if self.kind == "features":
            raise EncoderError(
                f"{self.name!r} encodes features: say how many come out, n_features=..."
            )
        blank: Any = "a text" if self.kind == "texts" else np.full((64, 64, 3), 128, np.uint8)
        shape = self._call([self.prepare(blank)]).shape
        if len(shape) != 2 or shape[0] != 1:
            raise EncoderError(
                f"{self.name!r} gave an array of shape {shape} for a list of one item; it should "
                "be (1, features)"
            )
        return int(shape[1])


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
            f"the module {name!r} needs images of one size. Remedy: say how it is to see them, as "
            "in wrap(module, name=..., preprocessing=ImagePreprocessing(size=224))"
        )
    encoder = TorchImageEncoder(
        copy.deepcopy(module),
        preprocessing,
        name=name,
        fingerprint=fingerprint and fingerprint_of([fingerprint, preprocessing.fingerprint]),
        device=device,
    )
    if n_features is not None and n_features != encoder.n_features:
        raise EncoderError(
            f"{name!r} gives {encoder.n_features} features, not n_features={n_features}"
        )
    return encoder


def _of_module(module: Any) -> str:
    """Of the weights and the layers, as a module prints them."""
    from fecam.encoders.torch_runtime import fingerprint_of_tensors

    named = f"{type(module).__module__}.{type(module).__qualname__}"
    return fingerprint_of([named, repr(module), fingerprint_of_tensors(module.state_dict())])


def _frozen(module: Any, kind: Kind, device: Any) -> Callable[[Any], Any]:
    """A copy of a module for texts or features, as a function."""
    import torch

    from fecam.encoders.torch_runtime import choose_device

    where = choose_device(device)
    network = copy.deepcopy(module).eval().requires_grad_(False).to(where)

    def run(batch: Any) -> Any:
        with torch.inference_mode():
            return network(batch if kind == "texts" else torch.from_numpy(batch).to(where))

    return run
