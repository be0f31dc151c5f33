"""What the benchmarks share: where results go, tables, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parent.parent / "docs" / "tables"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well as plain text too."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def machine() -> dict[str, Any]:
    """What a reader needs to know about the machine."""
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def write(name: str, table: str, results: Mapping[str, Any]) -> None:
    """Leave ``results/NAME.json`` for programs and ``docs/tables/NAME.md`` for the docs."""
    RESULTS.mkdir(exist_ok=True)
    TABLES.mkdir(exist_ok=True)
    document = {"machine": machine(), **results}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (TABLES / f"{name}.md").write_text(table + "\n")


def side_by_side(tasks: Mapping[str, Callable[[], object]], repeats: int = 15) -> dict[str, float]:
    """Median seconds of each task, their repeats interleaved: noise then hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
