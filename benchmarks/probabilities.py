"""The cost of probabilities beside the label alone, and the error of those of a search.

    python benchmarks/probabilities.py [--quick]

An exact search evaluates the nearest class and all classes within the softmax cutoff. Its
probabilities are compared with those of an exhaustive search. CIFAR-100 if available (see
`feature_sets`) and synthetic features, 100 classes of 512 features, on one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import problems
from fecam import FeCAMClassifier
from reference import SETTINGS, fitted
from reporting import markdown, options, say, side_by_side, write
from stamps import CLASSIFIER

BATCH, QUERIES = 128, 2000
"""Queries per timed call, about as many as a busy service batches; queries in total."""


def predicted(clf: FeCAMClassifier, queries: np.ndarray, search: str) -> Any:
    """Labels and probabilities by this search."""
    return clf.set_params(search=search).predict_detailed(queries)


def measure(problem: problems.Problem, setting: str) -> dict[str, Any]:
    """One row of the table."""
    say(f"{problem}, {setting}")
    clf = fitted(setting, problem.batches())
    exact = predicted(clf, problem.queries, "exhaustive")
    found = predicted(clf, problem.queries, "exact")
    off = np.abs(exact.probabilities[:, 0] - found.probabilities[:, 0])
    some = problem.queries[:BATCH]
    with threadpool_limits(1):
        seconds = side_by_side(
            {
                "probabilities": lambda: clf.predict_detailed(some),
                "label": lambda: clf.predict_detailed(some, probabilities=False),
            }
        )
    return {
        "features": problem.features,
        "per_class": problem.per_class,
        "setting": setting,
        "queries": len(off),
        "labels": int(np.sum(exact.labels != found.labels)),
        "mean": float(np.mean(off)),
        "most": float(np.max(off)),
        "microseconds": 1e6 * seconds["probabilities"] / len(some),
        "ratio": seconds["probabilities"] / seconds["label"],
    }


def table(results: list[dict[str, Any]]) -> str:
    """All rows."""
    return markdown(
        [
            "features",
            "settings",
            "different labels",
            "mean error of the probability",
            "at most",
            "with probabilities, µs per row",
            "relative to the label alone",
        ],
        [
            [
                f"{one['features']}, {one['per_class']} each",
                one["setting"],
                f"{one['labels']} of {one['queries']:,}",
                f"{one['mean']:.5f}",
                f"{one['most']:.4f}",
                f"{one['microseconds']:,.0f}",
                f"{one['ratio']:.2f} x",
            ]
            for one in results
        ],
    )


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    width, queries = (64, 200) if args.quick else (problems.WIDTH, QUERIES)
    asked = []
    if not args.quick:
        try:
            asked.append(problems.real("cifar100", 100, 500, width, queries))
        except problems.UnavailableError as error:
            say(str(error))
    sizes = (60,) if args.quick else (5, 60, 500)
    asked += [problems.made_up(100, size, width, queries) for size in sizes]
    results = [measure(problem, setting) for problem in asked for setting in SETTINGS]
    told = table(results)
    print(told)
    write("probabilities", told, {"results": results}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
