"""Reduction of per-block statistics on the cluster, by tasks of a few inputs each.

The driver holds references only. Ray recomputes a task that is lost with its node from the same
inputs; its result is counted once, because it is the same object. Classes are partitioned, so no
task holds more than `FAN_IN` blocks, or `FAN_IN` results of one partition.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from fecam.distributed.cluster import require_ray
from fecam.distributed.partial_statistics import from_tables, merge, partition
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
    merge_all = ray.remote(num_cpus=cpus, **options)(merge)
    unmerged: list[list[Any]] = [[] for _ in range(partitions)]
    pending: list[Any] = []
    total = ReadStats()

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
        for own, result in zip(unmerged, results, strict=True):
            own.append(result)
            if len(own) == FAN_IN:
                own[:] = [merge_all.remote(*own)]
        pending.append(stats)
        collect(limit=4 * partitions)
    collect(limit=0)
    merged = [own[0] if len(own) == 1 else merge_all.remote(*own) for own in unmerged if own]
    return merged, total


def _read(partitions: int, *tables: Any) -> list[Any]:
    """Return the merged statistics of some blocks per partition, and their `ReadStats`."""
    partials, stats = from_tables(tables)
    return [*partition(partials, partitions), stats]
