"""Features and labels of a block, in a worker; items that cannot be read are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.content_hashes import content_hashes
from fecam.data.images import Images
from fecam.distributed.columns import item_columns, items_of, labels_of
from fecam.encoders.catalogue import load
from fecam.encoders.encoder import Encoder
from fecam.errors import InputError
from fecam.features.extraction import Progress, Report, encode_readable

MAX_REASONS = 10
"""Unreadable items whose reason is kept; all are counted."""


@dataclass
class ReadStats:
    """Counts of the items of some blocks."""

    items: int = 0
    unreadable: int = 0
    n_duplicates: int = 0
    """Items that are left out because they were learned before."""
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    """An error that concerns all items."""

    def add(self, other: ReadStats) -> None:
        """Add the counts of other blocks."""
        self.items += other.items
        self.unreadable += other.unreadable
        self.n_duplicates += other.n_duplicates
        self.reasons = [*self.reasons, *other.reasons][:MAX_REASONS]
        self.error = self.error or other.error

    def add_failure(self, reason: str, count: int = 1) -> None:
        """Count items that cannot be used."""
        self.unreadable += count
        self.reasons = [*self.reasons, reason][:MAX_REASONS]


@dataclass
class Block:
    """The readable items of a block."""

    features: NDArray[Any]
    rows: NDArray[np.intp]
    """The index in the block of each row of features."""
    labels: NDArray[Any] | None
    items: Any
    """All items of the block."""
    kind: str


@dataclass(frozen=True)
class Source:
    """The columns to read, and the encoder or its name."""

    encoder: str | Encoder | None
    label: str | None
    item: str | Sequence[str] | None

    def load_encoder(self) -> Encoder | None:
        """Return the encoder; a name is loaded by the worker that calls this."""
        return load(self.encoder) if isinstance(self.encoder, str) else self.encoder


@dataclass(frozen=True)
class ProgressReporter:
    """Reports progress to the caller's function."""

    report: Report | None
    total: int
    """0 if it is not known."""

    def update(self, items: int, unreadable: int, *, finished: bool = False) -> None:
        """Report the counts; the total of a finished run is the number of its items."""
        if self.report is not None:
            self.report(Progress(items, items if finished else self.total, unreadable))


def read_block(table: Any, source: Source, encoder: Encoder | None, stats: ReadStats) -> Block:
    """Return the features and labels of a block; count its items in ``stats``."""
    stats.items += table.num_rows
    if not table.num_rows:
        empty = np.zeros((0, 1), np.float32)
        return Block(empty, np.zeros(0, np.intp), np.zeros(0, np.int64), [], "features")
    columns = item_columns(table, source.label, source.item)
    items: Any = items_of(table, columns)
    rows, labels = np.arange(table.num_rows), None
    if source.label is not None:
        labels, labeled = labels_of(table, source.label)
        if not labeled.all():
            stats.add_failure(f"{source.label!r} is empty", int((~labeled).sum()))
            rows = np.flatnonzero(labeled)
    kind = "features" if encoder is None else encoder.kind
    if encoder is None:
        features = _numbers(items, columns)[rows]
    else:
        _check_kind(items, encoder, columns)
        inputs = [items[row] for row in rows]
        encoded = encode_readable(Images(inputs) if kind == "images" else inputs, encoder)
        for reason in encoded.failed.values():
            stats.add_failure(reason)
        features, readable = encoded.features, np.asarray(encoded.rows, np.intp)
        rows, labels = rows[readable], None if labels is None else labels[readable]
    if not np.isfinite(features.sum()):
        finite = np.isfinite(features).all(axis=1)
        if not finite.all():
            stats.add_failure("a feature is NaN or infinite", int((~finite).sum()))
            features, rows = features[finite], rows[finite]
            labels = None if labels is None else labels[finite]
    return Block(features, rows, labels, items, kind)


def hashes_of(block: Block) -> NDArray[np.uint64]:
    """Return the content hashes of the readable items of a block."""
    if block.kind == "features" and isinstance(block.items, np.ndarray):
        return content_hashes(block.features, "features")
    return content_hashes([block.items[row] for row in block.rows], block.kind)


def _numbers(items: Any, columns: Sequence[str]) -> NDArray[Any]:
    if isinstance(items, np.ndarray) and items.ndim == 2 and items.dtype.kind in "fiub":
        return items if items.dtype in (np.float32, np.float64) else items.astype(np.float32)
    raise InputError(
        f"the column {', '.join(columns)} holds no rows of numbers. Give an encoder for its "
        "items, or name another column: item='...'"
    )


def _check_kind(items: Any, encoder: Encoder, columns: Sequence[str]) -> None:
    first = items[0] if len(items) else None
    if first is not None and encoder.kind == "texts" and not isinstance(first, str):
        raise InputError(
            f"the encoder {encoder.name} is for texts, but the column {columns[0]} holds "
            f"{type(first).__name__}. Name the column of the texts: item='...'"
        )
