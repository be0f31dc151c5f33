"""What a search spends its time on, and what keeps it from being faster still.

    python benchmarks/limits.py [--quick]

One block of queries against 100 classes of CIFAR-100 features (or synthetic ones where there are
none), on one thread. For each step: its share of the dense product's multiplications, its share of
the dense product's time, and so how well it uses the processor. Then the same search on one and on
two threads: what Python does between the products is done by one thread at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import problems
import reference
from fecam import FeCAMClassifier
from fecam.core import bounds as bounds_module
from fecam.core import hunt as hunt_module
from reference import SETTINGS
from reporting import markdown, options, say, side_by_side, write
from stamps import CLASSIFIER


class _Watched(hunt_module.Hunt):
    """A hunt that counts multiplications and takes the time of its steps."""

    def __init__(self, search: Any, block: np.ndarray, *, certain: bool) -> None:
        self.work: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        super().__init__(search, block, certain=certain)

    def _settle(self, asked: np.ndarray, *, guess: bool) -> None:
        start = time.perf_counter()
        super()._settle(asked, guess=guess)
        self.seconds["guess" if guess else "follow"] += time.perf_counter() - start

    def _measure(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.work["guess"] += len(rows) * sum(self._sizes())
        super()._measure(rows, columns)

    def _terms(self, level: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        self.work["follow"] += len(rows) * self._sizes()[level]
        return super()._terms(level, rows, columns)

    def _sizes(self) -> list[int]:
        return [block.size for block in self.search.triangle(0).blocks]


def steps(clf: FeCAMClassifier, queries: np.ndarray, *, certain: bool) -> dict[str, list[float]]:
    """Shares of the dense product's multiplications and of its time, by step."""
    clf.search = "exact" if certain else "approximate"
    clf.predict(queries[:2])
    known, metric = clf.state_, clf.metric_
    search = clf._derived.search(known, metric)
    block = search.panel.shifted(clf._queries(queries, known, metric))
    n, width = block.shape
    count = len(search.factors)
    dense = reference.Dense(clf)
    (_, bounds), *_ = search.bounds.values()
    monomials = bounds_module._monomials(block[:256, : bounds.size])
    whole = n * width * width * count
    with threadpool_limits(1):
        timed = side_by_side(
            {
                "dense": lambda: dense.predict(queries),
                "turn": lambda: block @ search.axes,
                "monomials": lambda: bounds_module._monomials(block[:256, : bounds.size]),
                "bounds": lambda: monomials @ bounds.forms,
                "all": lambda: hunt_module.Hunt(search, block, certain=certain).nearest(1),
            },
            repeats=3,
        )
        hunt = _Watched(search, block, certain=certain)
        hunt.nearest(1)
    work = {
        "turn the queries": n * width * width,
        "monomials": n * bounds.forms.shape[0],
        "bound all classes": n * bounds.forms.size,
        "measure the guess": hunt.work["guess"],
        "follow what may win": hunt.work["follow"],
    }
    seconds = {
        "turn the queries": timed["turn"],
        "monomials": timed["monomials"] * n / 256,
        "bound all classes": timed["bounds"] * n / 256,
        "measure the guess": hunt.seconds["guess"],
        "follow what may win": hunt.seconds["follow"],
    }
    shares = {step: [work[step] / whole, seconds[step] / timed["dense"]] for step in work}
    total = [sum(some[0] for some in shares.values()), timed["all"] / timed["dense"]]
    return {**shares, "all, and what lies between": total}


def threads(clf: FeCAMClassifier, queries: np.ndarray) -> dict[str, float]:
    """Seconds of a exact prediction on one thread and on two."""
    clf.search = "exact"

    def on(number: int) -> None:
        with threadpool_limits(number):
            clf.predict(queries)

    return side_by_side({"one": lambda: on(1), "two": lambda: on(2)}, repeats=5)


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    few, some, asked = (20, 130, 300) if args.quick else (100, 500, 5000)
    try:
        problem = problems.real("cifar100", few, some, 512, asked)
    except problems.UnavailableError as error:
        say(f"synthetic instead: {error}")
        problem = problems.made_up(few, some, 512, asked)
    results: dict[str, Any] = {}
    rows = []
    for setting in SETTINGS:
        say(f"{setting}: {problem} ...")
        clf = reference.taught(setting, problem.lessons())
        for certain in (True, False):
            name = "exact" if certain else "approximate"
            found = steps(clf, problem.queries[: asked // 2], certain=certain)
            results[f"{setting} {name}"] = found
            for step, (work, seconds) in found.items():
                rows.append(
                    [
                        f"{setting}, {name}",
                        step,
                        f"{100 * work:.1f} %",
                        f"{100 * seconds:.1f} %",
                        f"{work / seconds:.2f}",
                    ]
                )
        results[f"{setting} threads"] = threads(clf, problem.queries)
        ratio = results[f"{setting} threads"]["one"] / results[f"{setting} threads"]["two"]
        rows.append([f"{setting}, exact", "two threads against one", "", f"{ratio:.2f} x", ""])
    header = ["search", "step", "multiplications, of dense", "time, of dense", "use"]
    table = markdown(header, rows)
    print(table)
    write("limits", table, results, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
