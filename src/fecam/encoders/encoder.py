"""The interface of encoders: frozen functions from raw items to feature vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Kind
from fecam.errors import EncoderError

if TYPE_CHECKING:  # it imports Pillow, which encoders of texts do not need
    from fecam.encoders.preprocessing import ImagePreprocessing

Features = NDArray[np.float32]


class Encoder(ABC):
    """A frozen encoder with the preprocessing that its weights need.

    Subclasses implement `prepare`, which processes a single item without the network, and `embed`,
    which runs the network on prepared items. Several threads can then decode and scale items while
    the network runs. `encode` does both steps.

    Attributes
    ----------
    name : str
        The name that `fecam.encoders.load` accepts.
    kind : {"images", "texts", "features"}
        The kind of the items.
    n_features : int
        The number of features per item.
    fingerprint : str
        A hash of the weights, the layers and the preprocessing: it changes whenever a feature may.
    preprocessing : str
        A description of the preprocessing.
    batch_size : int, default=16
        The fastest number of items per batch.

    Examples
    --------
    >>> class TextLength(Encoder):
    ...     name, kind, n_features = "length", "texts", 1
    ...     fingerprint, preprocessing = "length-1", "none"
    ...     def prepare(self, item):
    ...         return item
    ...     def embed(self, prepared):
    ...         return np.array([[len(text)] for text in prepared], np.float32)
    >>> TextLength().encode(["one", "three"]).tolist()
    [[3.0], [5.0]]
    """

    name: str
    kind: Kind
    n_features: int
    fingerprint: str
    preprocessing: str
    batch_size: int = 16

    @abstractmethod
    def prepare(self, item: Any) -> Any:
        """Return one item in the form that `embed` takes; threads may call it concurrently.

        Parameters
        ----------
        item : image, str or array
            A raw item.

        Returns
        -------
        object
            The prepared item.

        Raises
        ------
        ItemError
            If the item cannot be read.
        """

    @abstractmethod
    def embed(self, prepared: Sequence[Any]) -> Features:
        """Return the features of prepared items.

        Parameters
        ----------
        prepared : sequence
            Items that `prepare` returned.

        Returns
        -------
        ndarray of shape (n_items, n_features), float32
            One row per item.
        """

    def encode(self, items: Sequence[Any]) -> Features:
        """Return the features of raw items, whatever their order and the batch they are in.

        Parameters
        ----------
        items : sequence
            Raw items of the encoder's kind.

        Returns
        -------
        ndarray of shape (n_items, n_features), float32
            One row per item.
        """
        batches = (
            items[start : start + self.batch_size]
            for start in range(0, len(items), self.batch_size)
        )
        parts = [self.embed([self.prepare(item) for item in batch]) for batch in batches]
        return np.concatenate([np.zeros((0, self.n_features), np.float32), *parts])

    def __repr__(self) -> str:
        return f"<encoder {self.name}: {self.kind} to {self.n_features} features>"


class BatchEncoder(Encoder):
    """An encoder that computes a batch in `_run`; the shape of the result is checked."""

    def embed(self, prepared: Sequence[Any]) -> Features:
        """Return the features of prepared items."""
        if not len(prepared):
            return np.zeros((0, self.n_features), np.float32)
        features = self._run(prepared)
        self._check_shape(features, len(prepared), self.n_features)
        return features

    @abstractmethod
    def _run(self, prepared: Sequence[Any]) -> Features:
        """Return the features of one item or more."""

    def _check_shape(self, features: Features, count: int, width: int, remedy: str = "") -> None:
        if features.shape != (count, width):
            raise EncoderError(
                f"{self.name!r} returned an array of shape {features.shape} for {count} items; it "
                f"must be ({count}, n_features). {remedy}"
            )

    def _dry_run(self, blank: Any, remedy: str = "") -> int:
        """Return the number of features of a blank item."""
        features = self._run([blank])
        width = features.shape[-1] if features.ndim else 0
        self._check_shape(features, 1, width, remedy)
        return int(width)


class ImageEncoder(BatchEncoder):
    """An encoder whose network takes 8-bit pixels."""

    kind = "images"

    def __init__(self, name: str, steps: ImagePreprocessing, fingerprint: str) -> None:
        self.name, self.steps, self.fingerprint = name, steps, fingerprint
        self.preprocessing = steps.describe()

    def prepare(self, item: Any) -> Any:
        """Return the resized and cropped 8-bit pixels of an image."""
        return self.steps.pixels(item)

    def _dry_run_on_image(self, size_remedy: str, shape_remedy: str) -> int:
        """Return the number of features of a gray image."""
        size = self.steps.size
        try:
            return self._dry_run(np.full((3, size, size), 128, np.uint8), shape_remedy)
        except EncoderError:
            raise
        except Exception as error:  # any network may fail in any way
            raise EncoderError(
                f"{self.name!r} fails on an image of {size} x {size} pixels: {first_line(error)}. "
                f"{size_remedy}"
            ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
