"""The cost of a service on a Ray cluster, and the time until its replicas have a change.

    python benchmarks/service_cluster.py [--seconds 2] [--requests 10] [--quick]

The same model of 100 classes of 512 features behind `fecam serve` and `fecam serve --ray local`,
with one replica and with two, all on this machine: predictions of one row per second, 64
connections at a time; the time of a learn request; and the time after its response until eight
predictions with its version have returned, some from a replica that has to fetch it.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import problems
from fecam.client import Client
from load import load
from reporting import markdown, options, say, write
from service_load import CONNECTIONS, as_bytes, batches, write_model
from serving import Served, service
from stamps import SERVICE

KINDS = {
    "`fecam serve`": (),
    "`--workers 2`": ("--workers", "2"),
    "`--ray local --replicas 1`": ("--ray", "local", "--replicas", "1"),
    "`--ray local --replicas 2`": ("--ray", "local", "--replicas", "2"),
}
ASKED = 8


def learn_times(
    running: Served, samples: np.ndarray, count: int
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each learn request, and until all replicas have it."""
    taking, knowing = [], []
    rng, local = np.random.default_rng(1), threading.local()

    def ask(version: int) -> None:
        if not hasattr(local, "client"):
            local.client = Client(running.url)
        local.client.predict(samples[:1], min_version=version)

    with Client(running.url) as client, ThreadPoolExecutor(ASKED) as pool:
        list(pool.map(ask, [0] * ASKED))  # opens the connections
        for number in range(count):
            rows = samples[rng.integers(len(samples), size=10)] * rng.uniform(0.9, 1.1)
            start = time.perf_counter()
            result = client.learn(rows, f"class {number % 20}")
            done = time.perf_counter()
            list(pool.map(ask, [result.version] * ASKED))
            taking.append(1000 * (done - start))
            knowing.append(1000 * (time.perf_counter() - done))
    return taking, knowing


def measure(args: Any, per_class: int) -> list[dict[str, Any]]:
    """Return the measurements of each kind of service, with ``per_class`` samples per class."""
    classes, width = (10, 32) if args.quick else (100, problems.WIDTH)
    problem = problems.made_up(classes, per_class, width, 512)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole.fecam", Path(folder) / "model.fecam"
        write_model(whole, problem)
        size = whole.stat().st_size / 1e6
        for kind, extra in KINDS.items():
            say(f"{problem}, {size:.1f} MB: {kind}")
            shutil.copyfile(whole, path)
            with service(path, *extra) as running:
                asked = [as_bytes(row) for row in batches(problem.queries, 1)]
                rate = load(running.port, asked, connections=CONNECTIONS, seconds=args.seconds)
                one = load(running.port, asked, connections=1, seconds=args.seconds)
                taking, knowing = learn_times(running, problem.queries, args.requests)
            found.append(
                {
                    "model": f"{classes} x {width}, n = {per_class}, {size:.1f} MB",
                    "kind": kind,
                    "rate": rate.rate,
                    "failures": rate.failures,
                    "alone": one.quantile(0.5),
                    "lesson": statistics.median(taking),
                    "known": statistics.median(knowing),
                    "known_most": max(knowing),
                }
            )
            say(str(found[-1]))
    return found


def tabled(found: list[dict[str, Any]]) -> str:
    """Return the results as a table."""
    return markdown(
        [
            "model",
            "service",
            "predictions",
            "latency of one",
            "a learn request",
            "visible everywhere after",
        ],
        [
            [
                one["model"],
                one["kind"],
                f"{one['rate']:,.0f} /s",
                f"{one['alone']:.1f} ms",
                f"{one['lesson']:.0f} ms",
                f"{one['known']:.0f} ms (at most {one['known_most']:.0f})",
            ]
            for one in found
        ],
    )


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 600])
    args = parser.parse_args()
    found = [row for per_class in args.per_class for row in measure(args, per_class)]
    table = tabled(found)
    print(table)
    write("service_cluster", table, {"rows": found}, quick=args.quick, measures=SERVICE)


if __name__ == "__main__":
    main()
