"""What is asked of Ray: the package, a stage over the blocks of a data set, and pure tasks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from fecam.errors import ClusterError, MissingPackageError


def the_ray() -> Any:
    """The package ray, with its data sets."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingPackageError("working on a cluster", "ray", "ray") from None
    return ray


def connect(address: str | None = None) -> bool:
    """Join a cluster, or start one on this machine; once a program.

    Without an address it is the one that ``RAY_ADDRESS`` names, or that this machine is part of; if
    there is none, one is started. ``auto`` wants one that is there, ``local`` a new one. Ray itself
    is told to say little, and nothing on the standard output, which belongs to the results. Says
    whether it was this call that joined.
    """
    ray = the_ray()
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address or None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            include_dashboard=False,  # of a cluster that begins here: ten processes less
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ClusterError(
            f"no cluster answers at {address or 'the usual place'} ({why}). Start one with "
            "`ray start --head`, or name another: --ray HOST:6379, --ray local"
        ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):  # its files keep everything
            handler.setLevel(logging.ERROR)
    return True


def over_blocks(
    dataset: Any,
    work: Callable[..., Any],
    *arguments: Any,
    actors: bool,
    concurrency: int | None,
    gpus: float,
) -> Any:
    """The data set of what ``work`` makes of each block.

    ``work`` is a class: it is made of the arguments and then called with a table of Arrow. With
    ``actors`` it is made once a worker, which holds what is dear to make, such as an encoder;
    without, each block is a task of its own. Blocks are taken as they are, so no sample travels.
    """
    ray = the_ray()
    options: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    if gpus:
        options["num_gpus"] = gpus
    if actors:
        workers = concurrency or _workers(ray, gpus)
        compute = ray.data.ActorPoolStrategy(size=workers)
        return dataset.map_batches(work, fn_constructor_args=arguments, compute=compute, **options)
    if concurrency is not None:
        options["compute"] = ray.data.TaskPoolStrategy(size=concurrency)
    return dataset.map_batches(work(*arguments).__call__, zero_copy_batch=True, **options)


def _workers(ray: Any, gpus: float) -> int:
    """As many as there is room for; a processor is left to read, where there are several."""
    found = ray.cluster_resources()
    if gpus:
        return max(int(found.get("GPU", 0) / gpus), 1)
    return max(int(found.get("CPU", 1)) - 1, 1)


def blocks_of(dataset: Any) -> Iterator[Any]:
    """References to the blocks of a data set, each once, as they are made."""
    for bundle in dataset.iter_internal_ref_bundles():
        yield from bundle.block_refs


def told_by(dataset: Any) -> Iterator[dict[str, Any]]:
    """What each block says in its column ``about``; Ray hands on those without rows as they are."""
    ray = the_ray()
    for block in blocks_of(dataset):
        table = ray.get(block)
        for text in table.column("about").to_pylist() if table.num_rows else ():
            yield json.loads(text)


def rows_in(dataset: Any) -> int:
    """How many rows a data set has, if Ray knows without any work; otherwise 0."""
    asked = getattr(dataset, "_meta_count", None)
    return int((asked and asked()) or 0)
