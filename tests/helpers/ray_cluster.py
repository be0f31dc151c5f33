"""A real cluster of Ray with two nodes on this machine, for tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STORE = 80 * 2**20
"""Bytes that a node shares."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # or a busy machine would let workers starve
    "RAY_memory_monitor_refresh_ms": "0",  # what else runs here must not cost a worker its life
    "RAY_health_check_period_ms": "500",  # a node that is gone is noticed soon ...
    "RAY_health_check_timeout_ms": "30000",  # ... and one that is only slow is left alone
    "OPENBLAS_NUM_THREADS": "1",
    # Workers find the encoders of the tests.
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
}

# Threads of Ray outlive what they were made for, and say so.
threads_outlive_it = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A processor each; this process has joined them."""
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    os.environ.pop("RAY_ADDRESS", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        from fecam.distributed.cluster import connect

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=head)
        try:
            found.add_node(num_cpus=1, object_store_memory=STORE)
            connect(found.address)
            yield found
        finally:
            ray.shutdown()
            found.shutdown()
            os.environ.clear()
            os.environ.update(before)
