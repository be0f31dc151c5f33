"""What a service on a cluster of Ray costs, and how soon its replicas know of a lesson.

    python benchmarks/service_cluster.py [--seconds 2] [--lessons 10] [--quick]

The same model of 100 classes of 512 features behind `fecam serve` and `fecam serve --ray local`,
with one replica and with two, all on this machine: predictions of one row a second, 64 connections
at a time; how long a lesson takes; and how long after it is acknowledged eight predictions that ask
for its version take, all of them: some by a replica that has to fetch it.
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
from service_load import CONNECTIONS, as_bytes, batches, taught
from serving import Served, service
from stamps import SERVICE

KINDS = {
    "`fecam serve`": (),
    "`--workers 2`": ("--workers", "2"),
    "`--ray local --replicas 1`": ("--ray", "local", "--replicas", "1"),
    "`--ray local --replicas 2`": ("--ray", "local", "--replicas", "2"),
}
ASKED = 8


def lessons(running: Served, samples: np.ndarray, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each lesson, and from its end until all know of it."""
    taking, knowing = [], []
    rng, local = np.random.default_rng(1), threading.local()

    def ask(version: int) -> None:
        if not hasattr(local, "client"):
            local.client = Client(running.url)
        local.client.predict(samples[:1], min_version=version)

    with Client(running.url) as client, ThreadPoolExecutor(ASKED) as pool:
        list(pool.map(ask, [0] * ASKED))  # so that connections are open
        for number in range(count):
            rows = samples[rng.integers(len(samples), size=10)] * rng.uniform(0.9, 1.1)
            begun = time.perf_counter()
            lesson = client.learn(rows, f"class {number % 20}")
            done = time.perf_counter()
            list(pool.map(ask, [lesson.version] * ASKED))
            taking.append(1000 * (done - begun))
            knowing.append(1000 * (time.perf_counter() - done))
    return taking, knowing


def measure(args: Any, per_class: int) -> list[dict[str, Any]]:
    """All kinds of service, for classes of so many samples."""
    classes, width = (10, 32) if args.quick else (100, problems.WIDTH)
    problem = problems.made_up(classes, per_class, width, 512)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        whole, path = Path(folder) / "whole.fecam", Path(folder) / "model.fecam"
        taught(whole, problem)
        size = whole.stat().st_size / 1e6
        for kind, extra in KINDS.items():
            say(f"{problem}, {size:.1f} MB: {kind}")
            shutil.copyfile(whole, path)
            with service(path, *extra) as running:
                asked = [as_bytes(row) for row in batches(problem.queries, 1)]
                rate = load(running.port, asked, connections=CONNECTIONS, seconds=args.seconds)
                one = load(running.port, asked, connections=1, seconds=args.seconds)
                taking, knowing = lessons(running, problem.queries, args.lessons)
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
    """What was found, for people."""
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
    """Measure, print and keep."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--lessons", type=int, default=10)
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 600])
    args = parser.parse_args()
    found = [row for per_class in args.per_class for row in measure(args, per_class)]
    table = tabled(found)
    print(table)
    write("service_cluster", table, {"rows": found}, quick=args.quick, measures=SERVICE)


if __name__ == "__main__":
    main()
