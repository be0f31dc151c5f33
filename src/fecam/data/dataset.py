"""Labeled items that are read when they are indexed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fecam.errors import DatasetError
from fecam.labels import LabelKind, parse_label
from fecam.results import Label
from fecam.validation import counted

Kind = Literal["images", "texts", "features"]
"""Type of the items: 8-bit RGB arrays (height, width, 3), strings, or float32 vectors."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled items, some of them for testing.

    Parameters
    ----------
    name : str
        Name of the data set.
    kind : {"images", "texts", "features"}
        Type of the items.
    items : sequence or array
        The items. ``items[i]`` decodes one image; an unreadable one raises `ItemError`.
    labels : array of int
        The index of the class of each item in ``label_names``.
    label_names : tuple of str
        Names of the classes, also of integers and booleans.
    fingerprint : str
        A hash that changes with the items, the labels and their order.
    is_test : array of bool, optional
        Which items are for testing. Default: none.
    domains : array of int, optional
        The index of the domain of each item in ``domain_names``.
    domain_names : tuple of str
        Names of the domains.
    notes : tuple of str
        Observations of the loader for the user, such as empty folders.
    label_kind : {"strings", "integers", "booleans"}
        What the names stand for; see `classes`.

    Examples
    --------
    >>> data = Dataset("fruit", "texts", ["an apple", "a pear"], [0, 1], ("apple", "pear"), "f1")
    >>> data.items[1], data.label_names[data.labels[1]], len(data.train)
    ('a pear', 'pear', 2)
    """

    name: str
    kind: Kind
    items: Sequence[Any] | NDArray[Any]
    labels: NDArray[np.int64]
    label_names: tuple[str, ...]
    fingerprint: str
    is_test: NDArray[np.bool_] | None = None
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    label_kind: LabelKind = "strings"

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
                    f"the data set {self.name!r} has {counted(count, 'item')} but {len(values)} "
                    f"{name}"
                )
        if labels.min() < 0 or labels.max() >= len(self.label_names):
            raise DatasetError(
                f"the data set {self.name!r} has {counted(len(self.label_names), 'class')} but "
                f"labels from {labels.min()} to {labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def classes(self) -> tuple[Label, ...]:
        """The label of each class, of the type that the source has."""
        return tuple(parse_label(name, self.label_kind, self.name) for name in self.label_names)

    @property
    def train(self) -> NDArray[np.intp]:
        """Indices of the items to learn from."""
        return np.flatnonzero(~np.asarray(self.is_test))

    @property
    def test(self) -> NDArray[np.intp]:
        """Indices of the items to test on."""
        return np.flatnonzero(np.asarray(self.is_test))

    def subset(self, rows: NDArray[Any]) -> Dataset:
        """Return the given rows in the given order; labels keep their meaning.

        Parameters
        ----------
        rows : array of int or bool
            Indices, or a mask.

        Returns
        -------
        Dataset
            The subset, whose items are still read lazily.
        """
        rows = np.asarray(rows)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        items = self.items
        return replace(
            self,
            items=items[rows] if isinstance(items, np.ndarray) else _Subset(items, rows),
            labels=self.labels[rows],
            is_test=np.asarray(self.is_test)[rows],
            domains=None if self.domains is None else self.domains[rows],
            fingerprint=fingerprint_of([self.fingerprint, rows.astype(np.int64)]),
        )


class _Subset(Sequence[Any]):
    """A lazy subset of a sequence."""

    def __init__(self, items: Sequence[Any], rows: NDArray[Any]) -> None:
        self._items, self._rows = items, rows

    def __len__(self) -> int:
        return len(self._rows)

    def content(self, index: int) -> object:
        """Return what `fecam.data.content_hashes` hashes for an item."""
        content = getattr(self._items, "content", self._items.__getitem__)
        return content(int(self._rows[index]))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Subset(self._items, self._rows[index])
        return self._items[int(self._rows[index])]


def fingerprint_of(parts: Iterable[object]) -> str:
    """Return a hash of strings, numbers, bytes and arrays in their order."""
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
