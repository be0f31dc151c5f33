"""A real Ray cluster with two nodes on this machine, for tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

STORE = 80 * 2**20
"""Object store of a node, in bytes."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # on a busy machine, nice workers would starve
    "RAY_memory_monitor_refresh_ms": "0",  # other processes must not cause Ray to kill a worker
    "RAY_health_check_period_ms": "500",  # detect a dead node soon ...
    "RAY_health_check_timeout_ms": "30000",  # ... but do not declare a slow node dead
    "OPENBLAS_NUM_THREADS": "1",
    # Workers import the encoders of the tests.
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
}

# Threads of Ray outlive their test, and warn.
threads_outlive_it = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Yield a cluster of two nodes with one processor each; this process has joined it."""
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    os.environ.pop("RAY_ADDRESS", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        from fecam.distributed.cluster import connect

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
            connect(cluster.address)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            os.environ.clear()
            os.environ.update(before)
