"""Access to Ray: the package, a stage over the blocks of a data set, and results of workers."""

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from fecam.encoders.encoder import first_line  # errors of Ray include stack traces
from fecam.errors import ClusterError, needs_extra


def require_ray() -> Any:
    """Return the package ray, with its data sets."""
    with needs_extra("working on a cluster", "ray"):
        import ray
        import ray.data
    return ray


def connect(address: str | None = None) -> bool:
    """Join a cluster, or start one on this machine. Return whether this call joined it.

    Without an address, ``RAY_ADDRESS`` or the cluster of this machine is used; if there is none, a
    cluster is started. ``auto`` requires a running cluster, ``local`` starts a new one.
    """
    ray = require_ray()
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address or None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            include_dashboard=False,  # saves ten processes on a cluster that starts here
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no cluster answers at {address or 'the default address'} ({first_line(error)}). "
            "Start one with `ray start --head`, or name another: --ray HOST:6379, --ray local"
        ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):  # standard output belongs to the results
            handler.setLevel(logging.ERROR)
    return True


def map_blocks(
    dataset: Any,
    worker: Callable[..., Any],
    *arguments: Any,
    actors: bool,
    concurrency: int | None,
    gpus: float,
) -> Any:
    """Return the lazy results of blocks, uncut; with ``actors`` a worker is created per process."""
    ray = require_ray()
    options: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    if gpus:
        options["num_gpus"] = gpus
    if actors:
        compute = ray.data.ActorPoolStrategy(size=concurrency or _actor_count(ray, gpus))
        return dataset.map_batches(
            worker, fn_constructor_args=arguments, compute=compute, **options
        )
    if concurrency is not None:
        options["compute"] = ray.data.TaskPoolStrategy(size=concurrency)
    return dataset.map_batches(worker(*arguments).__call__, zero_copy_batch=True, **options)


def _actor_count(ray: Any, gpus: float) -> int:
    """Return how many actors fit; one of several processors stays free for reading."""
    resources = ray.cluster_resources()
    if gpus:
        return max(int(resources.get("GPU", 0) / gpus), 1)
    return max(int(resources.get("CPU", 1)) - 1, 1)


def iter_blocks(dataset: Any) -> Iterator[Any]:
    """Yield a reference to each block of a data set as it is computed."""
    for bundle in dataset.iter_internal_ref_bundles():
        yield from bundle.block_refs


def to_table(result: Any) -> Any:
    """Return a result as a block of Ray Data, which must be an Arrow table."""
    import pyarrow as pa

    # A thousand matrices need the 64-bit offsets of large_binary.
    return pa.table({"result": pa.array([pickle.dumps(result, protocol=5)], pa.large_binary())})


def from_table(table: Any) -> Iterator[Any]:
    """Yield the results in a block; an empty block has none."""
    for value in table.column("result") if table.num_rows else ():
        yield pickle.loads(value.as_buffer())


def row_count(dataset: Any) -> int:
    """Return the number of rows if Ray has it without computing anything, otherwise 0."""
    count = getattr(dataset, "_meta_count", None)
    return int((count and count()) or 0)
