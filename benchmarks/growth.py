"""How costs grow with classes, features and samples, on synthetic features.

    python benchmarks/growth.py [--classes N ...] [--widths D ...] [--per-class N ...] [--quick]

Classes 10, 100, 1,000, 3,000; d = 256, 512, 768, 1280; n = 5, 50, 500; the paper's settings and
the default: microseconds a query (`search="auto"`, a batch of 1,000), milliseconds to learn a class
when all others are known, milliseconds per class to derive its factor, bytes per class. Each case
has a process of its own; what does not fit the memory is listed with the reason. Every case is kept
when it is done: a run that was stopped goes on where it was, ``--again`` measures all of them anew.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

import problems
import reference
from fecam import FeCAMClassifier
from fecam.heads.memory import array_nbytes
from reference import SETTINGS, asking, searching
from reporting import apart, markdown, once, options, read, say, side_by_side, write
from stamps import CLASSIFIER

CLASSES = (10, 100, 1000, 3000)
WIDTHS = (256, 512, 768, 1280)
PER_CLASS = (5, 50, 500)
ABOUT = ("classes", "width", "per_class", "setting")
"""What tells one case from another."""


def too_large(classes: int, width: int, per_class: int) -> str | None:
    """Why a case is left out: an estimate of what is kept and derived, against half the memory.

    From d / 2 samples on that is two d x d float32 a class, below it in proportion.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    estimate = classes * width * min(width, 2 * per_class) * 4 * 2
    if estimate <= memory / 2:
        return None
    return f"needs about {estimate / 2**30:.0f} GiB, more than half of {memory / 2**30:.0f} GiB"


def measure(case: Mapping[str, Any]) -> dict[str, float]:
    """Return one case: seconds per query, to learn and to derive factors, and bytes per class."""
    problem = problems.made_up(
        case["classes"], case["per_class"], case["width"], queries=case["queries"]
    )
    clf, seconds = learn(problem, case["setting"])
    ask = asking(searching(clf, "auto"), problem.queries, case["queries"])
    first, batch = once(ask), once(ask)
    if batch < 30:  # a longer call is as good as its own median
        batch = side_by_side({"auto": ask}, 3 if batch > 1 else 7)["auto"]
    return {
        "seconds_a_query": batch / case["queries"],
        "seconds_to_learn": statistics.median(seconds[-10:]),
        "seconds_to_build": max(first - batch, 0.0) / problem.classes,
        "bytes_a_class": array_nbytes(clf.state_.classes) / problem.classes,
    }


def learn(problem: problems.Problem, setting: str) -> tuple[FeCAMClassifier, list[float]]:
    """A classifier that learned class by class, and the seconds of each batch."""
    clf, seconds = reference.classifier(setting), []
    for label, X in problem.batches():
        labels = np.full(len(X), label)
        seconds.append(once(lambda: clf.partial_fit(X, labels)))  # noqa: B023
    return clf, seconds


def table(rows: list[dict[str, Any]]) -> str:
    """One line a case; those left out say why."""
    lines = []
    for row in rows:
        if "left_out" in row:
            cells = [f"left out: {row['left_out']}", "-", "-", "-"]
        else:
            cells = [
                f"{1e6 * row['seconds_a_query']:,.1f}",
                f"{1e3 * row['seconds_to_learn']:.2f}",
                f"{1e3 * row['seconds_to_build']:.2f}",
                f"{row['bytes_a_class']:,.0f}",
            ]
        about = [f"{row['classes']:,}", str(row["width"]), str(row["per_class"]), row["setting"]]
        lines.append(about + cells)
    header = ["classes", "d", "n", "settings", "µs per query", "ms to learn a class"]
    header += ["ms per class to derive factors", "bytes per class"]
    return markdown(header, lines)


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--per-class", type=int, nargs="+", default=PER_CLASS)
    parser.add_argument("--queries", type=int, default=1000, help="in a batch; default 1000")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--case", type=json.loads, help="for itself: one case, in its own process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    if args.quick:
        args.classes, args.widths, args.per_class, args.queries = (5, 10), (32,), (5, 50), 100
    before = None if args.again or args.quick else read("growth")
    kept = before["rows"] if before and before["queries"] == args.queries else []
    plan = [
        dict(zip(ABOUT, case, strict=True))
        for case in product(args.classes, args.widths, args.per_class, SETTINGS)
    ]
    rows = [row for row in kept if any(is_of(row, case) for case in plan)]
    for number, case in enumerate(plan, start=1):
        if any(is_of(row, case) for row in rows):
            continue
        say(
            f"{number}/{len(plan)}: {case['setting']}, {case['classes']} classes, "
            f"d = {case['width']}, n = {case['per_class']} ..."
        )
        start, reason = time.perf_counter(), too_large(*(case[name] for name in ABOUT[:3]))
        measured = (
            {"left_out": reason} if reason else apart(__file__, case | {"queries": args.queries})
        )
        rows.append({**case, **measured})
        say(f"  {reason or f'{time.perf_counter() - start:.0f} s'}")
        rows.sort(key=lambda row: [plan.index({name: row[name] for name in ABOUT})])
        write(
            "growth",
            table(rows),
            {"queries": args.queries, "rows": rows},
            quick=args.quick,
            measures=CLASSIFIER,
        )
    print(table(rows))


def is_of(row: Mapping[str, Any], case: Mapping[str, Any]) -> bool:
    """Whether a row is what was measured of a case."""
    return all(row[name] == value for name, value in case.items())


if __name__ == "__main__":
    main()
