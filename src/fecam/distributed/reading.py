"""A block on its way to features, in a worker; what cannot be read is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.content_hashes import content_hashes
from fecam.distributed.columns import Images, item_columns, items_of, labels_of
from fecam.encoders.catalogue import load
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features.extraction import Progress, Report, encode_readable

REASONS = 10
"""So many unreadable items are named; all are counted."""


@dataclass
class Account:
    """What became of the items of some blocks; accounts add up."""

    items: int = 0
    unreadable: int = 0
    n_duplicates: int = 0
    """Left out, because the very same items were taught before."""
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    """A mistake that concerns all of it."""

    def add(self, other: Account) -> Account:
        """Both together."""
        return Account(
            self.items + other.items,
            self.unreadable + other.unreadable,
            self.n_duplicates + other.n_duplicates,
            [*self.reasons, *other.reasons][:REASONS],
            self.error or other.error,
        )

    def miss(self, why: str, count: int = 1) -> None:
        """Note items that cannot be used."""
        self.unreadable += count
        if len(self.reasons) < REASONS:
            self.reasons.append(why)


@dataclass
class Block:
    """The items of a block that could be read."""

    features: NDArray[Any]
    rows: NDArray[np.intp]
    """For each row of features its place in the block."""
    labels: NDArray[Any] | None
    items: Any
    """All items of the block."""
    kind: str


@dataclass(frozen=True)
class Source:
    """Which columns to read, and the encoder, by its name or as it is."""

    encoder: str | Encoder | None
    label: str | None
    item: str | tuple[str, ...] | None

    def loaded(self) -> Encoder | None:
        """The encoder; a name is looked up where the work is done."""
        return load(self.encoder) if isinstance(self.encoder, str) else self.encoder


@dataclass(frozen=True)
class Teller:
    """Says to whoever waits how far the work has come."""

    report: Report | None
    total: int
    """0 if nobody knows."""

    def tell(self, items: int, unreadable: int, *, at_the_end: bool = False) -> None:
        """So many items are done, of all; at the end these were all."""
        if self.report is not None:
            self.report(Progress(items, items if at_the_end else self.total, unreadable))


def chosen_columns(item: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """The columns of items as a source takes them."""
    return item if item is None or isinstance(item, str) else tuple(item)


def read_block(table: Any, source: Source, encoder: Encoder | None, account: Account) -> Block:
    """The features and labels of a block."""
    account.items += table.num_rows
    if not table.num_rows:
        nothing = np.zeros((0, 1), np.float32)
        return Block(nothing, np.zeros(0, np.intp), np.zeros(0, np.int64), [], "features")
    labels, kept = None, np.arange(table.num_rows)
    columns = item_columns(table, source.label, source.item)
    items: Any = items_of(table, columns)
    if source.label is not None:
        labels, there = labels_of(table, source.label)
        if not there.all():
            account.miss(f"{source.label!r} is empty", int((~there).sum()))
            kept = np.flatnonzero(there)
    kind = "features" if encoder is None else encoder.kind
    if encoder is None:
        features = _numbers(items, columns)[kept]
        good = np.arange(len(kept))
    else:
        _check_suits(items, encoder, columns)
        sources = [items[at] for at in kept]
        found = encode_readable(Images(sources) if kind == "images" else sources, encoder)
        for why in found.failed.values():
            account.miss(why)
        features, good = found.features, np.asarray(found.rows, np.intp)
    kept, labels = kept[good], None if labels is None else labels[good]
    if not np.isfinite(features.sum()):
        fine = np.isfinite(features).all(axis=1)
        if not fine.all():
            account.miss("a feature is NaN or infinite", int((~fine).sum()))
            features, kept = features[fine], kept[fine]
            labels = None if labels is None else labels[fine]
    return Block(features, kept, labels, items, kind)


def marks_in(block: Block) -> NDArray[np.uint64]:
    """The marks of the items of a block that could be read."""
    if block.kind == "features" and isinstance(block.items, np.ndarray):
        return content_hashes(block.features, "features")
    return content_hashes([block.items[at] for at in block.rows], block.kind)


def _numbers(items: Any, columns: Sequence[str]) -> NDArray[Any]:
    if isinstance(items, np.ndarray) and items.ndim == 2 and items.dtype.kind in "fiub":
        return items if items.dtype in (np.float32, np.float64) else items.astype(np.float32)
    raise InputError(
        f"the column {', '.join(columns)} holds no rows of numbers. Give an encoder for what it "
        "holds, or name another column: item='...'"
    )


def _check_suits(items: Any, encoder: Encoder, columns: Sequence[str]) -> None:
    first = items[0] if len(items) else None
    is_text = isinstance(first, str)
    if first is not None and encoder.kind == "texts" and not is_text:
        raise InputError(
            f"the encoder {encoder.name} is for texts, but the column {columns[0]} holds "
            f"{type(first).__name__}. Name the column of the texts: item='...'"
        )
