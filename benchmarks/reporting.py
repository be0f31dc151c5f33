"""Options, repeats, tables and results that the benchmarks share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from stamps import Stamp, git, stamped

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parent.parent / "docs" / "tables"
QUICK = Path(tempfile.gettempdir()) / "fecam-quick-results"
"""The results of ``--quick``, which tries a benchmark and does not measure speed."""


def options(doc: str | None, data: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with ``--quick``, and ``--data`` if there is a choice."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it in seconds")
    if data:
        parser.add_argument("--data", choices=data, default=data[0], help="default: %(default)s")
    return parser


def say(what: str) -> None:
    """Print a line of progress."""
    print(what, file=sys.stderr, flush=True)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with padded columns."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": sorted({f"{pool['internal_api']}, {pool['num_threads']} threads" for pool in blas}),
    }


def write(
    name: str,
    table: str,
    results: Mapping[str, Any],
    *,
    measures: tuple[str, ...],
    quick: bool = False,
    stamp: Stamp | None = None,
) -> None:
    """Write ``results/NAME.json`` for programs and ``docs/tables/NAME.md`` for the docs.

    The table ends with a stamp: commit, date and the paths that it ``measures``, by default of now.
    Commit the code before it is measured. A ``quick`` run writes to the folder `QUICK` only.
    """
    document = {"machine": machine(), **results}
    folder = QUICK if quick else RESULTS
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if not quick:
        if stamp is None and git("diff", "--quiet", "HEAD", "--", *measures).returncode:
            say(f"{name}: the measured code is not committed, so the stamp will call it changed.")
        TABLES.mkdir(exist_ok=True)
        (TABLES / f"{name}.md").write_text(
            stamped(table, stamp or Stamp.now(measures)), encoding="utf-8"
        )


def read(name: str, *, quick: bool = False) -> dict[str, Any] | None:
    """Return the results that `write` wrote, or None if the benchmark has not run."""
    path = (QUICK if quick else RESULTS) / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def side_by_side(
    tasks: Mapping[str, Callable[[], object]],
    repeats: int = 15,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each task; interleaved repeats spread noise evenly."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            seconds[name].append(once(task, clock))
    return {name: statistics.median(values) for name, values in seconds.items()}


def once(task: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call."""
    start = clock()
    task()
    return clock() - start


def apart(script: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Run one case of a benchmark in a new process; return ``{"left_out": reason}`` if it fails.

    The script is called with ``--case JSON``, and prints its results as JSON.
    """
    command = [sys.executable, script, "--case", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"left_out": f"its process ended with {done.returncode}"}
    return dict(json.loads(done.stdout))
