"""A batch of labeled items, from a data set, a list or rows of features, and its features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.content_hashes import ContentHashes
from fecam.data.dataset import Dataset
from fecam.data.items import as_rows
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features.extraction import Encoded, Report, encode_dataset, encode_readable
from fecam.model_rows import LABEL_RULE


@dataclass(frozen=True)
class LabeledItems:
    """Items with labels and content hashes; ``dataset`` is kept so that features are cached."""

    kind: str
    items: Any
    labels: list[Any]
    content_hashes: ContentHashes
    dataset: Dataset | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, mask: NDArray[np.bool_]) -> LabeledItems:
        """Return the items of a mask."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        dataset = None
        if self.dataset is not None and len(rows):
            dataset = self.dataset.subset(rows)
            items = dataset.items
        elif isinstance(self.items, np.ndarray):
            items = self.items[rows]
        else:
            items = [self.items[i] for i in rows]
        labels = [self.labels[i] for i in rows]
        return LabeledItems(self.kind, items, labels, self.content_hashes[rows], dataset)

    def encode(
        self, encoder: Encoder | None, strict: bool, report: Report | None, width: int | None
    ) -> tuple[NDArray[Any], LabeledItems, list[str]]:
        """Return the features, the readable items and the reasons of the others."""
        if encoder is None:
            return as_rows(self.items, width), self, []
        if self.dataset is not None:
            encoded = encode_dataset(
                self.dataset, encoder, strict=strict, report=report, cache=bool(encoder.fingerprint)
            )
        else:
            encoded = encode_readable(self.items, encoder)
            if strict:
                require_readable(encoded)
        labels = [self.labels[i] for i in encoded.rows]
        hashes = self.content_hashes[encoded.rows]
        # The features replace the items: those are not read again.
        readable = replace(self, items=None, labels=labels, content_hashes=hashes, dataset=None)
        return encoded.features, readable, list(encoded.failed.values())


def require_readable(encoded: Encoded) -> Encoded:
    """Return the features; raise if an item could not be read."""
    for i, reason in encoded.failed.items():
        raise InputError(f"item {i} cannot be read, {reason}. Leave it out, or repair it.")
    return encoded


def as_labels(labels: Any) -> list[Any]:
    """Return one label per item as Python objects, all of one kind."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise InputError(
            f"labels must be a list, one label per item, not {labels!r}; write "
            "[label] * len(items) for items of one class."
        )
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    is_plain = len({*map(type, values)} | {bool, int, str}) == 3
    if not is_plain:
        values = [v.item() if np.ndim(v) == 0 and hasattr(v, "item") else v for v in values]
    for label in dict.fromkeys(values) if is_plain else values:  # samples share few labels
        too_large = isinstance(label, int) and not -(2**63) <= label < 2**64
        if not isinstance(label, (int, str)) or too_large or str(label).endswith("\0"):
            raise InputError(f"{label!r} cannot be a label. {LABEL_RULE}")
    by_type = {type(label): label for label in values}
    if len(by_type) > 1:
        first, second, *_ = by_type.values()
        raise InputError(
            f"the labels {first!r} and {second!r} are of different types. Use only booleans, only "
            "integers or only strings."
        )
    return values
