"""The statistics of the classes in a block as rows of a table, and their sum: no ray in here.

A row is a class: its label as JSON, its count, means and scatter as bytes, a few of its rows to
measure distances with, and the marks of its items. One more row, without a label, is the account of
the block. Tables of any number of blocks add up to one table of the same kind, in any order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fecam.core.batches import group_by_label, summarize_batch
from fecam.core.calibration import ROWS
from fecam.core.statistics import ClassStatistics, ScatterKind, combine
from fecam.core.transforms import Transform
from fecam.distributed.reading import Account, Block, marks_in
from fecam.errors import InputError
from fecam.inputs import check_range
from fecam.model_rows import Layout, pack_scatter, unpack_scatter


@dataclass(frozen=True)
class Plan:
    """What is to be kept of each class."""

    transform: Transform
    form: ScatterKind
    width: int
    dtype: str
    marked: bool
    """Whether items get marks, as a file keeps them."""

    @property
    def layout(self) -> Layout:
        """How long the arrays of a class are."""
        return Layout(self.form, self.width, self.dtype)


@dataclass(frozen=True)
class Part:
    """What is known of one class from some blocks."""

    statistics: ClassStatistics
    sample: NDArray[Any]
    """Up to `ROWS` of its transformed rows, after a column of their ranks."""
    marks: NDArray[np.uint64]

    def add(self, other: Part) -> Part:
        """Both together."""
        return Part(
            combine(self.statistics, other.statistics),
            _lowest(np.concatenate([self.sample, other.sample])),
            np.concatenate([self.marks, other.marks]),
        )


def parts_of(
    block: Block, plan: Plan, known: Mapping[Hashable, NDArray[np.uint64]], account: Account
) -> dict[Hashable, Part]:
    """What a block says of each of its classes; items that are known already are left out."""
    marks = np.zeros(0, np.uint64)
    if plan.marked:
        marks = marks_in(block)
        fresh = _fresh(block.labels, marks, known)
        account.n_duplicates += int((~fresh).sum())
        block = replace(
            block,
            features=block.features[fresh],
            labels=None if block.labels is None else block.labels[fresh],
        )
        marks = marks[fresh]
    assert block.labels is not None, "there is nothing to learn without labels"
    if not len(block.labels):
        return {}
    if block.features.shape[1] != plan.width:
        raise InputError(
            f"some features have {block.features.shape[1]} numbers, others {plan.width}. All must "
            "come of one encoder."
        )
    check_range(block.features, plan.transform, np.dtype(plan.dtype), name="a block")
    rows = group_by_label(block.features, block.labels, plan.transform)
    by_label = by_code(block.labels, marks) if plan.marked else dict.fromkeys(rows, marks)
    found = summarize_batch(rows, plan.form, np.dtype(plan.dtype))
    return {
        label: Part(one, _sample(*rows[label], plan.dtype), by_label[label])
        for label, one in found.items()
    }


def by_code(labels: NDArray[Any], marks: NDArray[np.uint64]) -> dict[Hashable, NDArray[np.uint64]]:
    """The marks of each label."""
    known, codes = np.unique(labels, return_inverse=True)
    ends = np.cumsum(np.bincount(codes))[:-1]
    heaps = np.split(marks[np.argsort(codes, kind="stable")], ends)
    return dict(zip(known.tolist(), heaps, strict=True))


def _fresh(
    labels: Any, marks: NDArray[np.uint64], known: Mapping[Hashable, NDArray[np.uint64]]
) -> NDArray[np.bool_]:
    fresh = np.ones(len(marks), bool)
    for label in set(labels.tolist()) & known.keys():
        here = np.flatnonzero(labels == label)
        fresh[here] = ~np.isin(marks[here], known[label])
    return fresh


def _sample(raw: NDArray[Any], features: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Rows with the lowest ranks; the rank of a row follows from its numbers alone.

    So the rows that are left of all blocks are the same however the blocks were cut and added up,
    and no block has to know of another.
    """
    ranks = _ranks(raw)
    if len(ranks) > ROWS:
        chosen = np.argpartition(ranks, ROWS)[:ROWS]
        ranks, features = ranks[chosen], features[chosen]
    return np.concatenate([ranks[:, None], features], axis=1, dtype=dtype, casting="same_kind")


def _lowest(sample: NDArray[Any]) -> NDArray[Any]:
    return sample[np.argsort(sample[:, 0], kind="stable")[:ROWS]]


def _ranks(rows: NDArray[Any]) -> NDArray[np.float64]:
    """A number from 0 to 1 for each row, as good as chance but the same every time."""
    angles = np.sin(np.arange(1, rows.shape[1] + 1)).astype(rows.dtype)
    seen: NDArray[Any] = np.einsum("ij,j->i", rows, angles)
    return np.modf(np.abs(np.sin(seen.astype(np.float64) * 12.9898) * 43758.5453))[0]


# -- tables ----------------------------------------------------------------------------------------


def pack(parts: Mapping[Hashable, Part], account: Account | None, plan: Plan) -> Any:
    """A table with a row a class and, if given, one for the account."""
    import pyarrow as pa

    rows: dict[str, list[Any]] = {name: [] for name in _columns()}
    for label, part in parts.items():
        one = part.statistics
        values: tuple[Any, ...] = (
            json.dumps(label),
            one.count,
            np.asarray(one.raw_mean, plan.dtype).tobytes(),
            np.asarray(one.mean, np.float64).tobytes(),
            pack_scatter(one.scatter, plan.layout),
            part.sample.tobytes(),
            part.marks.tobytes(),
            None,
        )
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
    if account is not None:
        values = (None, account.items, *[None] * 5, json.dumps(asdict(account)))
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
    return pa.table(rows, schema=pa.schema(list(_columns().items())))


def _columns() -> dict[str, Any]:
    import pyarrow as pa

    long = pa.large_binary()  # a thousand matrices are more than other columns can hold
    names = ("raw_mean", "mean", "scatter", "sample", "marks")
    return {
        "label": pa.string(),
        "count": pa.int64(),
        **dict.fromkeys(names, long),
        "account": pa.string(),
    }


def unpack(table: Any, plan: Plan) -> tuple[dict[Hashable, Part], Account]:
    """Undoes `pack`."""
    parts: dict[Hashable, Part] = {}
    account = Account()
    for at in range(table.num_rows):
        label, count, *arrays, text = (
            table.column(name)[at] for name in ("label", "count", *_ARRAYS, "account")
        )
        if not label.is_valid:
            account = account.add(Account(**json.loads(text.as_py())))
            continue
        raw_mean, mean, scatter, sample, marks = (
            memoryview(one.as_buffer()) if one.is_valid else None for one in arrays
        )
        statistics = ClassStatistics(
            count.as_py(),
            np.frombuffer(raw_mean or b"", plan.dtype),
            np.frombuffer(mean or b"", np.float64),
            unpack_scatter(scatter, plan.layout),  # type: ignore[arg-type]
        )
        rows = np.frombuffer(sample or b"", plan.dtype).reshape(-1, plan.width + 1)
        part = Part(statistics, rows, np.frombuffer(marks or b"", np.uint64))
        name = json.loads(label.as_py())
        parts[name] = parts[name].add(part) if name in parts else part
    return parts, account


_ARRAYS = ("raw_mean", "mean", "scatter", "sample", "marks")


def add_up(tables: Iterable[Any], plan: Plan) -> tuple[dict[Hashable, Part], Account]:
    """All that several tables say."""
    parts: dict[Hashable, Part] = {}
    account = Account()
    for table in tables:
        more, about = unpack(table, plan)
        account = account.add(about)
        for label, part in more.items():
            parts[label] = parts[label].add(part) if label in parts else part
    return parts, account


def split(parts: Mapping[Hashable, Part], number: int) -> list[dict[Hashable, Part]]:
    """The classes in so many heaps; a label always comes into the same one."""
    heaps: list[dict[Hashable, Part]] = [{} for _ in range(number)]
    for label, part in parts.items():
        heaps[crc32(json.dumps(label).encode()) % number][label] = part
    return heaps


def as_lesson(parts: Mapping[Hashable, Part]) -> dict[Hashable, ClassStatistics]:
    """What a classifier learns of it: one lesson, however many blocks it came in.

    Its arrays are copies, for those of a table may lie in memory that a cluster shares.
    """
    return {label: _own(part.statistics) for label, part in parts.items()}


def _own(one: ClassStatistics) -> ClassStatistics:
    kept = one.scatter
    return replace(
        one,
        raw_mean=np.array(one.raw_mean),
        mean=np.array(one.mean),
        scatter=None if kept is None else kept.with_data(np.array(kept.data)),
        n_batches=1,
    )
