"""Learning a class against the bare product of its samples, and the first answer after it.

    python benchmarks/learning.py [--data synthetic|real] [--quick]

A class of 5, 50 and 500 samples at d = 512 on top of 1, 30 and 100 classes, against ``X.T @ X`` of
the same samples and against that product after the transform, which is the least that any
covariance costs. What a search needs is derived by the first query after a batch: the time of that
query minus the time of the next one is the time of deriving, once, measured with exact search.
Last, a batch followed by one query at 345 classes x 1,280 features, with `search="auto"`.
"""

from __future__ import annotations

import statistics
from itertools import islice
from typing import Any

import numpy as np

import problems
import reference
from fecam import FeCAMClassifier
from problems import Problem
from reference import SETTINGS
from reporting import markdown, once, options, say, side_by_side, write
from stamps import CLASSIFIER


def after(count: int, problem: Problem, setting: str) -> tuple[FeCAMClassifier, np.ndarray]:
    """A classifier that learned this number of classes, and the samples of one more."""
    batches = iter(problem.batches())
    clf = reference.fitted(setting, islice(batches, count))
    return clf, next(batches)[1]


def learning(clf: FeCAMClassifier, X: np.ndarray, repeats: int) -> dict[str, float]:
    """Seconds of learning a new class, of the bare product, and of transform and product."""
    transform = clf.state_.transform
    labels = np.full(len(X), -1)

    def learn() -> None:
        clf.copy().partial_fit(X, labels)  # the same step each time

    def transformed() -> np.ndarray:
        features = transform(X)
        return features.T @ features

    tasks = {"learn": learn, "product": lambda: X.T @ X, "transformed": transformed}
    return side_by_side(tasks, repeats)


def deriving_after(
    clf: FeCAMClassifier, X: np.ndarray, query: np.ndarray, repeats: int
) -> dict[str, float]:
    """Seconds of the first query after learning a new class, and of the next one."""
    state, labels = clf.state_, np.full(len(X), -1)
    first, cached = [], []
    clf.search = "exact"
    for _ in range(repeats):
        clf.set_state(state)  # nothing derived yet
        reference.derive(clf, query)
        clf.partial_fit(X, labels)
        first.append(once(lambda: clf.predict(query)))
        cached.append(once(lambda: clf.predict(query)))
    deriving = statistics.median(a - b for a, b in zip(first, cached, strict=True))
    return {
        "first": statistics.median(first),
        "cached": statistics.median(cached),
        "building": deriving,
    }


def learn_and_predict(problem: Problem, setting: str, repeats: int) -> list[float]:
    """Seconds of batches of known classes, each followed by one query."""
    batches = list(problem.batches())
    clf = reference.fitted(setting, batches)
    query = problem.queries[:1]
    say(f"  deriving {problem.classes} precisions once ...")
    reference.derive(clf, query)
    seconds = []
    for label, X in batches[:repeats]:
        labels = np.full(len(X), label)
        seconds.append(once(lambda: clf.partial_fit(X, labels).predict(query)))  # noqa: B023
    return seconds


def run(data: str, quick: bool) -> dict[str, Any]:
    """All sizes and settings."""
    width, sizes = (64, (1, 3)) if quick else (problems.WIDTH, (1, 30, 100))
    rows = []
    for setting in SETTINGS:
        for per_class in (5, 50, 500):
            # CIFAR-100 has no 101st class: there, 99 are known.
            problem = problems.of(
                data, min(sizes[-1] + 1, 100 if data == "real" else 101), per_class, width, 10
            )
            for size in sizes:
                count = min(size, problem.classes - 1)
                say(f"{setting}: learning {per_class} x {width} on top of {count} classes ...")
                clf, X = after(count, problem, setting)
                seconds = learning(clf, X, 5 if quick else 25)
                say("  deriving what search needs ...")
                seconds |= deriving_after(clf, X, problem.queries[:1], 3 if quick else 5)
                rows.append(
                    {
                        "setting": setting,
                        "features": problem.features,
                        "per_class": per_class,
                        "width": width,
                        "known": count,
                        "seconds": seconds,
                        "over_product": seconds["learn"] / seconds["product"],
                        "over_transformed": seconds["learn"] / seconds["transformed"],
                    }
                )
    classes, width = (10, 128) if quick else (345, 1280)
    many = problems.made_up(classes, 20, width, 10)
    pairs = []
    for setting in SETTINGS:
        say(f"{setting}: a batch and a query at {classes} classes x {width} features ...")
        seconds_each = learn_and_predict(many, setting, 10)
        about = {"setting": setting, "classes": classes, "width": width, "per_class": 20}
        pairs.append({**about, "seconds": seconds_each})
    return {"rows": rows, "lesson_and_query": pairs}


def table(results: dict[str, Any]) -> str:
    """Ratios of learning, milliseconds of deriving; then the batch and the query."""
    lines = [
        [
            f"{row['per_class']} x {row['width']}",
            str(row["known"]),
            row["setting"],
            f"{1e3 * row['seconds']['learn']:.2f} ms",
            f"{row['over_product']:.2f} x",
            f"{row['over_transformed']:.2f} x",
            f"{1e3 * row['seconds']['building']:.2f} ms",
        ]
        for row in results["rows"]
    ]
    header = ["one more class", "classes before", "settings", "to learn", "of the time of X.T @ X"]
    header += ["of transform and product", "deriving precisions, once"]
    pairs = [
        [
            f"{one['classes']} x {one['width']}",
            one["setting"],
            f"{1e3 * statistics.median(one['seconds']):.0f} ms",
            f"{1e3 * max(one['seconds']):.0f} ms",
        ]
        for one in results["lesson_and_query"]
    ]
    second = ["classes x features", "settings", "learn a batch, then one query", "slowest of ten"]
    return f"{markdown(header, lines)}\n\n{markdown(second, pairs)}"


def main() -> None:
    """Measure, print tables, write results."""
    args = options(__doc__, data=("synthetic", "real")).parse_args()
    results = run(args.data, args.quick)
    text = table(results)
    print(text)
    write("learning", text, {"data": args.data, **results}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
