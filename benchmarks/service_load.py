"""The throughput of a service, and its latency while it learns.

    python benchmarks/service_load.py [--seconds 3] [--rounds 5] [--per-class 5 60] [--quick]

All on loopback in one run, with interleaved rounds: requests per second of an empty Starlette
endpoint, and of predictions from embeddings, 100 classes of 512 features, one row per request, as
JSON and as bytes; batches of 256 against the same call without a service; and the latency of
predictions during learning. The limit of the maths alone is shown too: 256 rows at a time without
a service. "Label alone" requests no probabilities (``top=0``); "approximate" is a model with
``search="approximate"``. No process is bound to a core: the service is one process, and the load
generator shares the cores with it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import fecam
import problems
from fecam.client import Client
from load import Load, Running, load, request
from reporting import apart, markdown, options, say, write
from serving import Served, free_port, service
from stamps import SERVICE

GOALS = {"one": 0.60, "batch": 0.70, "p99": 3.0}
"""Shares of an empty endpoint and of the process; factor on the latency."""
CONNECTIONS, CALM, BATCH = 256, (8, 64), 256
EMPTY = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def empty(request):
    return JSONResponse({})

app = Starlette(routes=[Route("/", empty)])
"""


@contextmanager
def empty_service(folder: Path) -> Iterator[Served]:
    """Run an empty endpoint in the same way as the service."""
    (folder / "empty.py").write_text(EMPTY)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "empty:app", "--app-dir", str(folder)]
    command += ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    with Served(command, port, ready="/") as running:
        yield running


def write_model(path: Path, problem: problems.Problem, search: str = "auto") -> None:
    """Write a model of the problem to a file."""
    with fecam.open(path, settings={"search": search}) as model:
        samples, labels = [], list[str]()
        for label, X in problem.batches():
            samples.append(X)
            labels += [f"class {label}"] * len(X)
        model.learn(np.concatenate(samples), labels)


def as_json(rows: np.ndarray) -> bytes:
    """Return a prediction request as JSON."""
    body = json.dumps({"features": np.round(rows.astype(float), 6).tolist()}).encode()
    return request("POST", "/v1/predict", "application/json", body)


def as_bytes(rows: np.ndarray, top: int = 1) -> bytes:
    """Return a prediction request as bytes."""
    body = np.ascontiguousarray(rows, "<f4").tobytes()
    return request("POST", f"/v1/predict?top={top}", "application/octet-stream", body)


def batches(queries: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the queries in batches; some are repeated if there are too few."""
    rows = np.resize(np.arange(len(queries)), max(count * 8, len(queries)) // count * count)
    return [queries[batch] for batch in rows.reshape(-1, count)]


def interleaved(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Return the results of each case; interleaved rounds spread noise evenly."""
    found: dict[str, list[Any]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            say(f"  round {number + 1} of {rounds}: {name}")
            found[name].append(case())
    return found


def in_process(case: dict[str, Any]) -> dict[str, Any]:
    """Return the batches per second without a service."""
    queries = np.load(case["queries"])
    with fecam.open(case["model"], readonly=True) as model:
        parts = cycle(batches(queries, case["rows"]))
        for _ in range(3):
            model.predict_detailed(next(parts))
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < case["seconds"]:
            model.predict_detailed(next(parts))
            count += 1
        return {"rate": count / (time.perf_counter() - start)}


class LearningClient(threading.Thread):
    """Sends learn requests until it is stopped."""

    def __init__(self, url: str, samples: np.ndarray, pause: float) -> None:
        super().__init__(daemon=True)
        self.url, self.samples, self.pause = url, samples, pause
        self.requests, self.seconds, self.ending = 0, list[float](), threading.Event()

    def run(self) -> None:
        """Send ten samples of one class after another."""
        rng = np.random.default_rng(1)
        with Client(self.url) as client:
            while not self.ending.is_set():
                rows = self.samples[rng.integers(len(self.samples), size=10)]
                rows = rows * rng.uniform(0.9, 1.1, size=rows.shape).astype(np.float32)
                start = time.perf_counter()
                client.learn(rows, f"class {self.requests % 20}")
                self.seconds.append(time.perf_counter() - start)
                self.requests += 1
                self.ending.wait(self.pause)

    def stop(self) -> None:
        """Stop after the current request."""
        self.ending.set()
        self.join()


def while_learning(
    running: Served,
    asked: Sequence[bytes],
    connections: int,
    args: Any,
    *,
    samples: np.ndarray,
    pause: float,
) -> tuple[Load, int]:
    """Return the result of a load during learning, and the number of learn requests."""
    learner = LearningClient(running.url, samples, pause)
    under_way = Running(running.port, asked, connections, args.seconds, 0.5)
    learner.start()
    found = under_way.wait()
    learner.stop()
    return found, learner.requests


def measure(args: Any, per_class: int) -> dict[str, Any]:
    """Return all measurements, with ``per_class`` samples per class."""
    classes, width = (10, 32) if args.quick else (100, problems.WIDTH)
    problem = problems.made_up(classes, per_class, width, 512)
    say(f"{problem}: learning ...")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, saved = folder / "model.fecam", folder / "queries.npy"
        write_model(path, problem)
        write_model(folder / "short.fecam", problem, "approximate")
        np.save(saved, problem.queries)
        case = {"model": str(path), "queries": str(saved), "seconds": args.seconds}
        ones, many = batches(problem.queries, 1), batches(problem.queries, BATCH)
        with (
            empty_service(folder) as empty,
            service(path) as ours,
            service(folder / "short.fecam") as short,
        ):

            def asks(port: int, asked: list[bytes], connections: int) -> Callable[[], Load]:
                return lambda: load(port, asked, connections=connections, seconds=args.seconds)

            one_by_one = {
                "empty": asks(empty.port, [request("GET", "/")], CONNECTIONS),
                "json": asks(ours.port, [as_json(row) for row in ones], CONNECTIONS),
                "bytes": asks(ours.port, [as_bytes(row) for row in ones], CONNECTIONS),
                "label": asks(ours.port, [as_bytes(row, 0) for row in ones], CONNECTIONS),
                "short": asks(short.port, [as_bytes(row) for row in ones], CONNECTIONS),
                "short label": asks(short.port, [as_bytes(row, 0) for row in ones], CONNECTIONS),
                "maths": lambda: apart(__file__, case | {"rows": CONNECTIONS}),
            }
            in_batches = {
                "process": lambda: apart(__file__, case | {"rows": BATCH}),
                "batch json": asks(ours.port, [as_json(rows) for rows in many], 4),
                "batch bytes": asks(ours.port, [as_bytes(rows) for rows in many], 4),
            }
            found = interleaved(one_by_one | in_batches, args.rounds)
            asked = [as_bytes(row) for row in ones]
            during_learning: dict[str, Any] = {}
            for connections in CALM:
                cases: dict[str, Callable[[], Any]] = {"idle": asks(ours.port, asked, connections)}
                for what, pause in (
                    ("learning five times per second", 0.2),
                    ("learning continuously", 0.0),
                ):
                    cases[what] = lambda pause=pause, connections=connections: while_learning(
                        ours, asked, connections, args, samples=problem.queries, pause=pause
                    )
                say(f"{connections} connections, learning meanwhile:")
                during_learning[str(connections)] = interleaved(cases, args.rounds)
    return {"per_class": per_class, "classes": classes, "width": width} | summary(
        found, during_learning
    )


def summary(found: dict[str, list[Any]], during_learning: dict[str, Any]) -> dict[str, Any]:
    """Return the medians over the rounds."""
    rates = {name: median(map(rate_of, some)) for name, some in found.items()}
    rates["maths"] *= CONNECTIONS
    loads = [one for some in found.values() for one in some if isinstance(one, Load)]
    latencies = []
    for connections, cases in during_learning.items():
        idle = cases.pop("idle")
        calm = median(one.quantile(0.99) for one in idle)
        loads += idle
        for what, some in cases.items():
            loads += [one for one, _ in some]
            latencies.append(
                {
                    "connections": int(connections),
                    "what": what,
                    "learned_per_second": median(count / one.seconds for one, count in some),
                    "idle_ms": calm,
                    "ms": median(one.quantile(0.99) for one, _ in some),
                    "rate": median(one.rate for one, _ in some),
                }
            )
    failures = sum(one.failures for one in loads)
    return {
        "rates": rates,
        "taught": latencies,
        "failures": failures,
        "answers": sum(one.answers for one in loads),
    }


def rate_of(one: Load | dict[str, float]) -> float:
    """Return the rate of a load, or of a case in another process."""
    return one.rate if isinstance(one, Load) else one["rate"]


def median(values: Iterator[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def table(results: list[dict[str, Any]]) -> str:
    """Return a table of measurements, references and goals."""
    rows = []
    for one in results:
        size, rates = f"{one['classes']} x {one['width']}, n = {one['per_class']}", one["rates"]
        for what, name, base, goal in (
            ("one row, JSON", "json", "empty", "one"),
            ("one row, bytes", "bytes", "empty", "one"),
            ("one row, bytes, label alone", "label", "empty", "one"),
            ("one row, bytes, approximate", "short", "empty", "one"),
            ("one row, bytes, approximate, label alone", "short label", "empty", "one"),
            ("one row, bytes", "bytes", "maths", ""),
            ("256 rows, JSON", "batch json", "process", "batch"),
            ("256 rows, bytes", "batch bytes", "process", "batch"),
        ):
            against = {
                "empty": "an empty endpoint",
                "maths": f"without a service, {CONNECTIONS} rows at a time",
                "process": "without a service",
            }[base]
            share = rates[name] / rates[base]
            rows.append(
                [
                    size,
                    what,
                    f"{shown(rates[name])} /s",
                    f"{against}: {shown(rates[base])} /s",
                    f"{share:.0%}",
                    f"at least {GOALS[goal]:.0%}" if goal else "",
                ]
            )
        for case in one["taught"]:
            rows.append(
                [
                    size,
                    f"p99, {case['connections']} connections, {case['what']} "
                    f"({case['learned_per_second']:.1f} /s)",
                    f"{case['ms']:.0f} ms",
                    f"without learning: {case['idle_ms']:.0f} ms",
                    f"{case['ms'] / case['idle_ms']:.1f} x",
                    f"at most {GOALS['p99']:.0f} x",
                ]
            )
        failed = f"{one['failures']} of {one['answers']:,}"
        rows.append([size, "requests that failed", failed, "", "", "0"])
    return markdown(["model", "what", "measured", "against", "ratio", "goal"], rows)


def shown(rate: float) -> str:
    """Return a rate with at least two digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def main() -> int:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 60, 500])
    parser.add_argument("--case", help="for itself")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(in_process(json.loads(args.case))))
        return 0
    if args.quick:
        args.seconds, args.rounds, args.per_class = 0.5, 1, [5]
    results = [measure(args, per_class) for per_class in args.per_class]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = os.getloadavg()[0] - 2  # without the service and the load
    others = ", which other programs used too" if busy > 0.5 else ""
    text = f"{table(results)}\n\nThe service and the load shared {cores} cores{others}."
    print(text)
    write("service_load", text, {"results": results}, quick=args.quick, measures=SERVICE)
    return 1 if any(one["failures"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
