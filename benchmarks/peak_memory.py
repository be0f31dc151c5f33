"""Peak extra memory of `predict`, by queries and classes.

    python benchmarks/peak_memory.py [--per-class N] [--search NAME] [--quick]

1,000, 10,000 and 50,000 queries against 10, 100 and 1,000 synthetic classes at d = 512, each in a
fresh process in which everything a search derives has been derived. Two measures of the same call:

arrays
    the peak of `tracemalloc`, to which NumPy reports every array. It is exact, the same on each
    run, and begins at zero when the call does; it knows nothing of what a compiled library
    allocates for itself. This is the figure to go by.
process
    the peak of resident memory (Linux's VmHWM, reset before the call) above what was resident. It
    sees everything, also the buffers of BLAS, but what Python had free already does not count.
    `ru_maxrss` would not do: it cannot be reset, and teaching may have taken more than the call.
"""

from __future__ import annotations

import ctypes
import gc
import json
import tracemalloc
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import problems
import reference
from reference import SEARCHES, SETTINGS
from reporting import apart, markdown, options, say, write
from stamps import CLASSIFIER

QUERIES = (1_000, 10_000, 50_000)
CLASSES = (10, 100, 1_000)


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """The peaks of one call, in bytes."""
    problem = problems.made_up(case["classes"], case["per_class"], case["width"], 1000)
    clf = reference.fitted(case["setting"], problem.batches())
    clf.search = case["search"]
    clf.predict(problem.queries[:100])
    clf.predict(problem.queries[:1])
    queries = np.resize(problem.queries, (case["queries"], case["width"]))
    resident = _begin()
    tracemalloc.start()
    clf.predict(queries)
    _, arrays = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    peak = _status("VmHWM") if resident is not None else None
    process = None if peak is None or resident is None else max(peak - resident, 0)
    return {"arrays": arrays, "process": process, "queries_bytes": queries.nbytes}


def _begin() -> int | None:
    """Give free memory back and reset the peak: what is resident now, or None if not on Linux."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def _status(name: str) -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Mebibytes of each case."""

    def mebibytes(value: float | None) -> str:
        return "-" if value is None else f"{value / 2**20:,.1f}"

    lines = [
        [
            f"{row['queries']:,}",
            f"{row['classes']:,}",
            row["setting"],
            row.get("left_out") or mebibytes(row["arrays"]),
            mebibytes(row.get("process")),
            mebibytes(row.get("queries_bytes")),
        ]
        for row in rows
    ]
    header = ["queries", "classes", "settings", "arrays, MiB", "process, MiB", "the queries, MiB"]
    return markdown(header, lines)


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--per-class", type=int, default=50, help="samples a class; default 50")
    parser.add_argument("--search", choices=SEARCHES, default="auto")
    parser.add_argument("--case", type=json.loads, help="for itself: one case, in its own process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    asked, known = ((100, 1000), (5, 10)) if args.quick else (QUERIES, CLASSES)
    rows = []
    for classes, queries, setting in product(known, asked, SETTINGS):
        say(f"{setting}: {queries} queries, {classes} classes, search={args.search!r} ...")
        case = {"queries": queries, "classes": classes, "setting": setting, "search": args.search}
        case |= {"per_class": args.per_class, "width": 64 if args.quick else problems.WIDTH}
        rows.append({**case, **apart(__file__, case)})
    text = table(rows)
    print(text)
    write("peak_memory", text, {"rows": rows}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
