"""Items with labels on their way to features: from a data set, a list, or rows of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.data.items import as_rows
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features.extraction import Encoded, Report, encode_dataset, encode_readable
from fecam.model_rows import LABEL_RULE


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


def as_labels(labels: Any) -> list[Any]:
    """Labels as plain numbers and strings, one an item."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise InputError(
            f"labels must be a list, one an item, not {labels!r}; write [label] * len(items) for "
            "items of one class."
        )
    found = listed(labels) if hasattr(labels, "dtype") else list(labels)
    plain = {*map(type, found)} <= {int, str}
    if not plain:
        found = [one.item() if np.ndim(one) == 0 and hasattr(one, "item") else one for one in found]
    for one in dict.fromkeys(found) if plain else found:  # many samples have few labels
        too_large = isinstance(one, int) and not -(2**63) <= one < 2**64
        if not isinstance(one, (int, str)) or too_large or str(one).endswith("\0"):
            raise InputError(f"{one!r} cannot be a label. {LABEL_RULE}")
    return found


def listed(values: Any) -> Any:
    """An array as a list."""
    return values.tolist() if hasattr(values, "tolist") else values
