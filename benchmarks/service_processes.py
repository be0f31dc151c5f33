"""What the processes of a service are worth: server processes and prediction workers.

    python benchmarks/service_processes.py [--seconds 1.2] [--rounds 3] [--quick]

The same model of 100 classes of 512 features behind ``fecam serve --workers 1/2 --predict-workers
0/1``, on loopback, with interleaved rounds: predictions of one row (256 connections) and of 256
rows (4 connections) per second, and the latency of one row (64 connections) while a client learns
continuously. BLAS has one thread per process, so the number of processes is the number of cores
that a service can use. The load generator shares the cores with the services.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import problems
from load import Load, load
from reporting import markdown, options, say, write
from service_load import (
    BATCH,
    CONNECTIONS,
    as_bytes,
    batches,
    interleaved,
    settle,
    while_learning,
    write_model,
)
from serving import Served, free_port
from stamps import SERVICE

KINDS = [(1, 0), (1, 1), (2, 0), (2, 1)]
"""Server processes, and prediction workers of each."""
LEARNING_CONNECTIONS = 64


def started(path: Path, workers: int, predict_workers: int) -> Served:
    """Return a service with these processes, not started yet."""
    port = free_port()
    command = [sys.executable, "-m", "fecam", "serve", "-m", str(path), "--port", str(port)]
    command += ["--workers", str(workers), "--predict-workers", str(predict_workers)]
    return Served(command, port, environment={"OPENBLAS_NUM_THREADS": "1"})


def measure(args: Any, per_class: int) -> list[dict[str, Any]]:
    """Return a row per kind of service, with ``per_class`` samples per class."""
    classes, width = (10, 32) if args.quick else (100, problems.WIDTH)
    problem = problems.made_up(classes, per_class, width, 512)
    say(f"{problem}: learning ...")
    ones = [as_bytes(rows) for rows in batches(problem.queries, 1)]
    many = [as_bytes(rows) for rows in batches(problem.queries, BATCH)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        cases: dict[str, Callable[[], Any]] = {}
        write_model(Path(name) / "model.fecam", problem)
        for workers, predict_workers in KINDS:
            kind = f"{workers} {predict_workers}"
            path = Path(name) / f"{kind}.fecam"
            shutil.copy(Path(name) / "model.fecam", path)
            running = stack.enter_context(started(path, workers, predict_workers))
            if predict_workers:
                settle(running)
            cases[f"{kind} one"] = lambda port=running.port: load(
                port, ones, connections=CONNECTIONS, seconds=args.seconds
            )
            cases[f"{kind} batch"] = lambda port=running.port: load(
                port, many, connections=4, seconds=args.seconds
            )
            cases[f"{kind} learning"] = lambda running=running: while_learning(
                running, ones, LEARNING_CONNECTIONS, args, samples=problem.queries, pause=0.0
            )[0]
        found: dict[str, list[Load]] = interleaved(cases, args.rounds)
    return [
        {
            "model": f"{classes} x {width}, n = {per_class}",
            "workers": workers,
            "predict_workers": predict_workers,
            "one": median(found, f"{workers} {predict_workers} one"),
            "batch": median(found, f"{workers} {predict_workers} batch"),
            "p99": statistics.median(
                one.quantile(0.99) for one in found[f"{workers} {predict_workers} learning"]
            ),
            "failures": sum(
                one.failures
                for name, some in found.items()
                if name.startswith(f"{workers} {predict_workers} ")
                for one in some
            ),
        }
        for workers, predict_workers in KINDS
    ]


def median(found: dict[str, list[Load]], name: str) -> float:
    """Return the median rate of a case."""
    return statistics.median(one.rate for one in found[name])


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table with the rates."""
    header = ["model", "`--workers`", "`--predict-workers`", "processes", "one row", "256 rows"]
    header += ["p99 while learning", "failed"]
    return markdown(
        header,
        [
            [
                row["model"],
                row["workers"],
                row["predict_workers"],
                row["workers"] * (1 + row["predict_workers"]),
                f"{row['one']:,.0f} /s",
                f"{row['batch']:.1f} /s",
                f"{row['p99']:.0f} ms",
                row["failures"],
            ]
            for row in rows
        ],
    )


def main() -> int:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=1.2, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-class", type=int, nargs="+", default=[60, 500])
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.rounds, args.per_class = 0.5, 1, [5]
    rows = list[dict[str, Any]]()
    for per_class in args.per_class:
        rows += measure(args, per_class)
        say(table(rows))
    text = f"{table(rows)}\n\nThe services and the load shared {os.cpu_count()} cores."
    print(text)
    write("service_processes", text, {"rows": rows}, quick=args.quick, measures=SERVICE)
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
