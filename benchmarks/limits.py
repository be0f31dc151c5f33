"""Where a search spends its time, and what limits it.

    python benchmarks/limits.py [--quick]

One block of queries against 100 classes of CIFAR-100 features (or synthetic ones if there are
none), on one thread. For each step: its multiplications and its time relative to those of the
dense product, and the quotient, which is how well the step uses the processor. Then the same search
on one and on two threads: the Python code between the products runs in one thread at a time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import problems
import reference
from fecam import FeCAMClassifier
from fecam.core.bounds import _monomials
from fecam.core.distances import group_runs
from fecam.core.search import PrunedSearch
from fecam.core.tuning import TUNING
from reference import SETTINGS
from reporting import markdown, options, say, side_by_side, write
from stamps import CLASSIFIER


class _Counted(PrunedSearch):
    """A search that counts the multiplications and the seconds of its refinement."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.work, self.seconds = 0, 0.0

    def _prune(self, *args: Any) -> tuple[np.ndarray, np.ndarray]:
        start = time.perf_counter()
        result = super()._prune(*args)
        self.seconds += time.perf_counter() - start
        return result

    def _block_terms(
        self,
        rotated: np.ndarray,
        norms: np.ndarray,
        level: int,
        rows: np.ndarray,
        classes: np.ndarray,
    ) -> np.ndarray:
        self.work += len(rows) * self.in_basis[0].blocks[level].size
        return super()._block_terms(rotated, norms, level, rows, classes)


def steps(clf: FeCAMClassifier, queries: np.ndarray, *, exact: bool) -> dict[str, list[float]]:
    """Multiplications and time per step, relative to the dense product."""
    predictor = clf.predictor_
    search = _Counted(predictor.exhaustive, predictor.axes)
    if len(search.in_basis) < len(search.precisions):
        raise SystemExit("every class needs more samples than a quarter of the features")
    block = search.exhaustive.shift(clf._queries(queries, predictor))
    epsilon = 0.0 if exact else TUNING.epsilon
    n, width = block.shape
    dense = reference.Dense(clf)
    (bounds,) = search.prefix_bounds
    coefficients, part = bounds._coefficients, block[:256, : bounds.size]
    monomials = _monomials(part)
    total = n * width * width * len(search.precisions)
    rotated = block @ search.axes
    guesses = np.argmin(bounds.bound(rotated)[1], axis=1)
    order = np.argsort(guesses, kind="stable")

    def evaluate_guesses() -> None:
        for i, run in group_runs(guesses[order]):
            differences = rotated[order[run]] - search.rotated_centers[i]
            search.in_basis[i].rotated_sq_norm(differences)

    with threadpool_limits(1):
        timed = side_by_side(
            {
                "dense": lambda: dense.predict(queries),
                "rotate": lambda: block @ search.axes,
                "monomials": lambda: _monomials(part),
                "bounds": lambda: monomials @ coefficients,
                "guesses": evaluate_guesses,
                "all": lambda: search._search_block(block, 1, 0.0, epsilon),
            },
            repeats=3,
        )
        search.work, search.seconds = 0, 0.0
        search._search_block(block, 1, 0.0, epsilon)
    scale = n / len(part)
    measured = {
        "rotate the queries": (n * width * width, timed["rotate"]),
        "monomials": (n * len(coefficients), timed["monomials"] * scale),
        "bound all classes": (n * coefficients.size, timed["bounds"] * scale),
        "evaluate the guesses": (
            n * sum(b.size for b in search.in_basis[0].blocks),
            timed["guesses"],
        ),
        "refine the others": (search.work, search.seconds),
    }
    shares = {
        step: [work / total, seconds / timed["dense"]] for step, (work, seconds) in measured.items()
    }
    all_work = sum(work for work, _ in shares.values())
    return {**shares, "all, and between the steps": [all_work, timed["all"] / timed["dense"]]}


def threads(clf: FeCAMClassifier, queries: np.ndarray) -> dict[str, float]:
    """Seconds of an exact search on one thread and on two."""
    clf.search = "exact"

    def run_on(number: int) -> None:
        with threadpool_limits(number):
            clf.predict(queries)

    return side_by_side({"one": lambda: run_on(1), "two": lambda: run_on(2)}, repeats=5)


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    classes, per_class, n_queries = (20, 130, 300) if args.quick else (100, 500, 5000)
    try:
        problem = problems.real("cifar100", classes, per_class, 512, n_queries)
    except problems.UnavailableError as error:
        say(f"synthetic instead: {error}")
        problem = problems.made_up(classes, per_class, 512, n_queries)
    results: dict[str, Any] = {}
    rows = []
    for setting in SETTINGS:
        say(f"{setting}: {problem} ...")
        clf = reference.fitted(setting, problem.batches())
        for name in ("exact", "approximate"):
            measured = steps(clf, problem.queries[: n_queries // 2], exact=name == "exact")
            results[f"{setting} {name}"] = measured
            for step, (work, seconds) in measured.items():
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
