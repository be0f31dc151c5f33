"""A batch of labeled items, from a data set, a list or rows of features, and its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.content_hashes import ContentHashes, content_hashes
from fecam.data.dataset import Dataset
from fecam.data.items import as_rows, as_sequence, kind_of
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features.extraction import Encoded, Report, encode_dataset, encode_readable
from fecam.labels import LabelKind, check_same_kind, parse_label
from fecam.model_rows import LABEL_RULE
from fecam.results import Label
from fecam.validation import counted


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

    def labels_of(self, mask: NDArray[np.bool_]) -> list[Any]:
        """Return the labels of a mask."""
        return [self.labels[i] for i in np.flatnonzero(mask)]

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


def label_items(
    items: Any,
    labels: Any,
    kind: str | None,
    learned: Sequence[Label],
    width: int | None,
) -> LabeledItems:
    """Return items with their labels, which must be of the kind of the learned ones.

    The default ``kind`` is that of the items; rows of features must have the given width.
    """
    kind = kind or kind_of(items)
    items = as_rows(items, width) if kind == "features" else as_sequence(items)
    plain = as_labels(labels)
    check_same_kind(plain, learned)
    if len(plain) != len(items):
        raise InputError(
            f"{counted(len(items), 'item')} but {counted(len(plain), 'label')}: give one "
            "label per item."
        )
    if not plain:
        raise InputError("there are no items. Give at least one.")
    return LabeledItems(kind, items, plain, content_hashes(items, kind))


def label_dataset(dataset: Dataset, kind: LabelKind | None, owner: str) -> LabeledItems:
    """Return the training part of a data set, with labels of this kind."""
    part = dataset.subset(dataset.train) if len(dataset.test) else dataset
    classes = [parse_label(name, kind or part.label_kind, owner) for name in part.label_names]
    labels = [classes[i] for i in part.labels]
    return LabeledItems(part.kind, part.items, labels, content_hashes(part.items, part.kind), part)


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
