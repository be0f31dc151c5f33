"""Items with labels on their way to features: from a data set, a list, or rows of numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset, Kind
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features import Encoded, Report, encode_dataset, encode_readable


@dataclass(frozen=True)
class Material:
    """Items with their labels; those of a data set know it, for its features may be cached."""

    kind: str
    items: Any
    labels: list[Any]
    dataset: Dataset | None

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, keep: NDArray[np.bool_]) -> Material:
        """Only some of them."""
        if keep.all():
            return self
        rows = np.flatnonzero(keep)
        labels = [self.labels[at] for at in rows]
        if self.dataset is not None and len(rows):
            chosen = self.dataset.subset(rows)
            return Material(self.kind, chosen.items, labels, chosen)
        if isinstance(self.items, np.ndarray):
            return Material(self.kind, self.items[rows], labels, None)
        return Material(self.kind, [self.items[at] for at in rows], labels, None)


def encoded(
    material: Material,
    encoder: Encoder | None,
    strict: bool,
    report: Report | None,
    width: int | None,
) -> Encoded:
    """The features of items; of a data set through the cache."""
    if encoder is None:
        return Encoded(as_rows(material.items, width), list(range(len(material))), {})
    if material.dataset is not None:
        return encode_dataset(
            material.dataset, encoder, strict=strict, report=report, cache=has_cache(encoder)
        )
    found = encode_readable(material.items, encoder)
    return readable(found) if strict else found


def has_cache(encoder: Encoder) -> bool:
    """Whether features of this encoder can be known again."""
    return bool(encoder.fingerprint)


def readable(found: Encoded) -> Encoded:
    """The same, if every item could be read."""
    for at, why in found.failed.items():
        raise InputError(f"item {at} cannot be read, {why}. Leave it out, or mend it.")
    return found


def as_sequence(items: Any) -> Any:
    """Items, if there can be several of them."""
    if isinstance(items, (str, bytes, os.PathLike)) or not hasattr(items, "__len__"):
        raise InputError(f"items must be a list, not {type(items).__name__}; write [item] for one.")
    return items


def kind_of(items: Any) -> Kind:
    """What a new model is taught: numbers are features, paths and pictures are images."""
    items = as_sequence(items)
    first: Any = items[0] if len(items) else None
    if isinstance(first, str) and not _is_image_path(first):
        return "texts"
    if isinstance(first, (str, bytes, os.PathLike)) or hasattr(first, "getbands"):
        return "images"
    shape = np.shape(first) if not hasattr(first, "shape") else tuple(first.shape)
    return "images" if len(shape) >= 2 else "features"


def _is_image_path(text: str) -> bool:
    from fecam.data.images import IMAGE_SUFFIXES

    return Path(text).suffix.lower() in IMAGE_SUFFIXES


def as_rows(items: Any, width: int | None) -> NDArray[Any]:
    """Rows of features as the classifier takes them; it looks at them more closely."""
    items = items.detach().cpu().numpy() if hasattr(items, "detach") else items
    try:
        rows = np.asarray(items, np.float64 if _is_double(items) else np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "this model has no encoder, so it takes rows of numbers. Encode the items as you did "
            "when it was taught."
        ) from None
    if rows.ndim != 2 or (width is not None and rows.shape[1] != width):
        due = "" if width is None else f" with {width} columns"
        raise InputError(f"features of shape {rows.shape} are not a table{due}.")
    return rows


def _is_double(items: Any) -> bool:
    return getattr(items, "dtype", None) == np.float64


def listed(values: Any) -> Any:
    """An array as a list."""
    return values.tolist() if hasattr(values, "tolist") else values
