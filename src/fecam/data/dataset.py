"""What a data set is: labelled items that are read when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fecam.errors import DatasetError

Kind = Literal["images", "texts", "features"]
"""What the items are: 8-bit RGB arrays (height, width, 3), strings, or float32 vectors."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled items, some of them for testing.

    >>> data = Dataset("fruit", "texts", ["an apple", "a pear"], [0, 1], ("apple", "pear"), "f1")
    >>> data.items[1], data.label_names[data.labels[1]], len(data.train)
    ('a pear', 'pear', 2)
    """

    name: str
    kind: Kind
    items: Sequence[Any] | NDArray[Any]
    """Read lazily: ``items[i]`` decodes one image. One that cannot be read raises `ItemError`."""
    labels: NDArray[np.int64]
    """For each item the position of its class in ``label_names``."""
    label_names: tuple[str, ...]
    fingerprint: str
    """Changes whenever an item, a label or their order does."""
    is_test: NDArray[np.bool_] | None = None
    """Which items are for testing; None if the data set does not say."""
    domains: NDArray[np.int64] | None = None
    """For each item the position of its domain in ``domain_names``."""
    domain_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was noticed while looking through it, for a person to read: empty folders, say."""

    def __post_init__(self) -> None:
        count = len(self.items)
        labels = np.asarray(self.labels, dtype=np.int64)
        is_test = np.zeros(count, bool) if self.is_test is None else np.asarray(self.is_test, bool)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "is_test", is_test)
        if not count:
            raise DatasetError(f"the data set {self.name!r} holds no items")
        for name, values in (("labels", labels), ("is_test", is_test), ("domains", self.domains)):
            if values is not None and len(values) != count:
                raise DatasetError(
                    f"the data set {self.name!r} has {count} items but {len(values)} {name}"
                )
        if labels.min() < 0 or labels.max() >= len(self.label_names):
            raise DatasetError(
                f"the data set {self.name!r} has {len(self.label_names)} classes but labels from "
                f"{labels.min()} to {labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def train(self) -> NDArray[np.intp]:
        """The rows to learn from."""
        return np.flatnonzero(~np.asarray(self.is_test))

    @property
    def test(self) -> NDArray[np.intp]:
        """The rows to be judged on."""
        return np.flatnonzero(np.asarray(self.is_test))

    def subset(self, rows: NDArray[Any]) -> Dataset:
        """Only these rows, in this order; the classes keep their numbers."""
        rows = np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(
            self,
            items=self.items[rows]
            if isinstance(self.items, np.ndarray)
            else _Chosen(self.items, rows),
            labels=self.labels[rows],
            is_test=np.asarray(self.is_test)[rows],
            domains=None if self.domains is None else self.domains[rows],
            fingerprint=fingerprint_of([self.fingerprint, rows.astype(np.int64)]),
        )


class _Chosen(Sequence[Any]):
    """Some items of a sequence, still read one by one."""

    def __init__(self, items: Sequence[Any], rows: NDArray[Any]) -> None:
        self._items, self._rows = items, rows

    def __len__(self) -> int:
        return len(self._rows)

    def content(self, at: int) -> object:
        """What the item at that place is made of: see `fecam.data.content_hashes`."""
        place = int(self._rows[at])
        content = getattr(self._items, "content", self._items.__getitem__)
        return content(place)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return _Chosen(self._items, self._rows[at])
        return self._items[int(self._rows[at])]


def fingerprint_of(parts: Iterable[object]) -> str:
    """A short hash of strings, numbers, bytes and arrays; their order counts.

    >>> fingerprint_of(["a", 1]) == fingerprint_of(["a", 1]) != fingerprint_of(["a1"])
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            content = np.ascontiguousarray(part)
            head = f"{content.dtype.str}{content.shape}"
            data: memoryview = content.reshape(-1).view(np.uint8).data
        elif isinstance(part, bytes):
            head, data = "bytes", memoryview(part)
        else:
            head, data = type(part).__name__, memoryview(str(part).encode())
        digest.update(f"{head}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:32]
