"""Tree reduction of per-block statistics on the cluster.

The driver holds references only. Ray recomputes a task that is lost with its node from the same
inputs; its result is counted once, because it is the same object. Classes are partitioned, so no
task holds more than `FAN_IN` blocks, or `FAN_IN` results of one partition.
"""

from __future__ import annotations

from typing import Any

from fecam.distributed.cluster import require_ray
from fecam.distributed.partial_statistics import Partials, from_tables, merge, partition
from fecam.distributed.reading import ReadStats

FAN_IN = 8
"""Inputs of one merge task."""
MAX_PARTITIONS = 64


class TreeReduce:
    """Merges the tables that are added to it, by partitions of the classes."""

    def __init__(self, partitions: int, cpus: float) -> None:
        self._ray = require_ray()
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "max_retries": -1,
            "scheduling_strategy": "SPREAD",
        }
        self._partitions = partitions
        self._read = self._ray.remote(num_returns=partitions + 1, **options)(_read)
        self._merge = self._ray.remote(**options)(_merge)
        self._blocks: list[Any] = []
        self._levels: list[list[list[Any]]] = [[] for _ in range(partitions)]
        self._pending: list[Any] = []
        self.stats = ReadStats()
        """Of the blocks that have been read so far."""

    def add(self, block: Any) -> None:
        """Add the table of one block, by its reference."""
        self._blocks.append(block)
        if len(self._blocks) == FAN_IN:
            self._read_blocks()
        self._poll(limit=4 * self._partitions + FAN_IN)

    def finish(self) -> list[Any]:
        """Return references to the merged statistics of each partition."""
        self._read_blocks()
        self._poll(limit=0)
        results = []
        for levels in self._levels:
            left = [result for level in levels for result in level]
            while len(left) > 1:
                left = [*left[FAN_IN:], self._merge.remote(*left[:FAN_IN])]
            results += left
        return results

    def _read_blocks(self) -> None:
        if self._blocks:
            *results, stats = self._read.remote(self._partitions, *self._blocks)
            self._pending.append(stats)
            self._blocks = []
            for levels, result in zip(self._levels, results, strict=True):
                self._push(levels, 0, result)

    def _push(self, levels: list[list[Any]], level: int, result: Any) -> None:
        """Add a result to a level; a full level is merged into the next, like a carry."""
        if level == len(levels):
            levels.append([])
        levels[level].append(result)
        if len(levels[level]) == FAN_IN:
            full, levels[level] = levels[level], []
            self._push(levels, level + 1, self._merge.remote(*full))

    def _poll(self, limit: int) -> None:
        """Add the statistics that have arrived; block while more than ``limit`` are pending."""
        while self._pending:
            timeout = None if len(self._pending) > limit else 0
            done, self._pending = self._ray.wait(self._pending, num_returns=1, timeout=timeout)
            if not done:
                return
            for stats in self._ray.get(done):
                self.stats.add(stats)


def _read(partitions: int, *tables: Any) -> list[Any]:
    """Return the merged statistics of some blocks per partition, and their `ReadStats`."""
    partials, stats = from_tables(tables)
    return [*partition(partials, partitions), stats]


def _merge(*results: Partials) -> Partials:
    merged: Partials = {}
    for result in results:
        merge(merged, result)
    return merged
