"""Statistics per class of a block, and their sum in any order; no ray is imported here."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fecam.core.batches import group_by_label, summarize_batch
from fecam.core.lognormal import SAMPLED_ROWS
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics, combine
from fecam.distributed.cluster import from_table
from fecam.distributed.reading import Block, ReadStats, hashes_of
from fecam.errors import InputError
from fecam.inputs import check_range
from fecam.model.changes import hashes_by_label, unseen_mask


@dataclass(frozen=True)
class PartialStats:
    """The statistics of one class over some blocks."""

    statistics: ClassStatistics
    sample: NDArray[Any]
    """Up to `SAMPLED_ROWS` of its transformed rows, after a column of their ranks."""
    hashes: NDArray[np.uint64]

    def add(self, other: PartialStats) -> PartialStats:
        """Return the statistics over the blocks of both."""
        sample = np.concatenate([self.sample, other.sample])
        return PartialStats(
            combine(self.statistics, other.statistics),
            sample[np.argsort(sample[:, 0], kind="stable")[:SAMPLED_ROWS]],
            np.concatenate([self.hashes, other.hashes]),
        )


Partials = dict[Hashable, PartialStats]


def partial_statistics(
    block: Block, state: ClassifierState, learned: Mapping[Any, bytes] | None, stats: ReadStats
) -> Partials:
    """Return the statistics per class of a block, without items whose hashes are in ``learned``."""
    assert block.labels is not None, "there is nothing to learn without labels"
    X, labels, hashes = block.features, block.labels, np.zeros(0, np.uint64)
    grouped: dict[Any, Any] = {}
    if learned is not None:
        hashes = hashes_of(block)
        fresh = unseen_mask(labels.tolist(), hashes, learned)
        stats.n_duplicates += int((~fresh).sum())
        X, labels = X[fresh], labels[fresh]
        grouped = {**hashes_by_label(labels.tolist(), hashes[fresh])}
    if not len(labels):
        return {}
    if X.shape[1] != state.n_features_in:
        raise InputError(
            f"some rows have {X.shape[1]} features, others {state.n_features_in}. All must come "
            "from one encoder."
        )
    dtype = state.like.dtype
    check_range(X, state.transform, dtype, name="a block")
    rows = group_by_label(X, labels, state.transform)
    return {
        label: PartialStats(statistics, _sample(*rows[label], dtype), grouped.get(label, hashes))
        for label, statistics in summarize_batch(rows, state.scatter_kind, dtype).items()
    }


def _sample(raw: NDArray[Any], features: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return the `SAMPLED_ROWS` rows with the lowest ranks, which depend on each row alone."""
    angles = np.sin(np.arange(1, raw.shape[1] + 1)).astype(raw.dtype)
    projected = np.einsum("ij,j->i", raw, angles).astype(np.float64)
    ranks = np.modf(np.abs(np.sin(projected * 12.9898) * 43758.5453))[0]
    if len(ranks) > SAMPLED_ROWS:
        lowest = np.argpartition(ranks, SAMPLED_ROWS)[:SAMPLED_ROWS]
        ranks, features = ranks[lowest], features[lowest]
    return np.concatenate([ranks[:, None], features], axis=1, dtype=dtype, casting="same_kind")


def merge(*results: Partials) -> Partials:
    """Return the statistics over the blocks of all results."""
    total = Partials()
    for result in results:
        for label, partial in result.items():
            total[label] = total[label].add(partial) if label in total else partial
    return total


def partition(partials: Partials, count: int) -> list[Partials]:
    """Return the classes in ``count`` parts; a label is always in the same part."""
    parts: list[Partials] = [{} for _ in range(count)]
    for label, partial in partials.items():
        parts[crc32(json.dumps(label).encode()) % count][label] = partial
    return parts


def from_tables(tables: Iterable[Any]) -> tuple[Partials, ReadStats]:
    """Return the merged results of the workers that computed `partial_statistics`."""
    results = [result for table in tables for result in from_table(table)]
    stats = ReadStats()
    for _, counts in results:
        stats.add(counts)
    return merge(*(partials for partials, _ in results)), stats
