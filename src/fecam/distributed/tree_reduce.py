"""Tree reduction of per-block statistics on the cluster.

The driver holds references only. Ray recomputes a task that is lost with its node from the same
inputs; its result is counted once, because it is the same object. Classes are partitioned, so no
task holds more than `FAN_IN` blocks, or `FAN_IN` results of one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from fecam.distributed.cluster import require_ray
from fecam.distributed.partial_statistics import Partials, from_tables, merge, partition
from fecam.distributed.reading import ReadStats

FAN_IN = 8
"""Inputs of one merge task."""
MAX_PARTITIONS = 64


def tree_reduce(
    blocks: Iterator[Any], partitions: int, cpus: float, update: Callable[[ReadStats], None]
) -> tuple[list[Any], ReadStats]:
    """Return references to the merged statistics of each partition, and the counts of all items.

    ``update`` is called with the counts so far.
    """
    ray = require_ray()
    options: dict[str, Any] = {"max_retries": -1, "scheduling_strategy": "SPREAD"}
    read = ray.remote(num_returns=partitions + 1, num_cpus=cpus, **options)(_read)
    merge_all = ray.remote(num_cpus=cpus, **options)(_merge)
    levels: list[list[list[Any]]] = [[] for _ in range(partitions)]
    pending: list[Any] = []
    total = ReadStats()

    def push(levels: list[list[Any]], result: Any, level: int = 0) -> None:
        """Add a result to a level; a full level is merged into the next, like a carry."""
        if level == len(levels):
            levels.append([])
        levels[level].append(result)
        if len(levels[level]) == FAN_IN:
            full, levels[level] = levels[level], []
            push(levels, merge_all.remote(*full), level + 1)

    def collect(limit: int) -> None:
        """Add the counts that have arrived; block while more than ``limit`` are pending."""
        while pending:
            done, pending[:] = ray.wait(pending, timeout=None if len(pending) > limit else 0)
            if not done:
                return
            total.add(ray.get(done[0]))
            update(total)

    while group := list(islice(blocks, FAN_IN)):
        *results, stats = read.remote(partitions, *group)
        for own, result in zip(levels, results, strict=True):
            push(own, result)
        pending.append(stats)
        collect(limit=4 * partitions)
    collect(limit=0)
    merged = []
    for own in levels:
        left = [result for level in own for result in level]
        while len(left) > 1:
            left = [*left[FAN_IN:], merge_all.remote(*left[:FAN_IN])]
        merged += left
    return merged, total


def _read(partitions: int, *tables: Any) -> list[Any]:
    """Return the merged statistics of some blocks per partition, and their `ReadStats`."""
    partials, stats = from_tables(tables)
    return [*partition(partials, partitions), stats]


def _merge(*results: Partials) -> Partials:
    merged: Partials = {}
    for result in results:
        merge(merged, result)
    return merged
