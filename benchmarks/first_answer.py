"""The first prediction of a model without derived factors, as after opening a file.

    python benchmarks/first_answer.py [--quick]

Seconds of the first prediction at 100 and 1,000 classes of 500 samples at d = 512, without factors
and with all of them, and of the first novelty. The model is in memory and has its prior, like one
from a file: reading is not counted. All factors of 1,000 classes take about a minute, so they are
not computed: the time is that for the first 50 classes, times 20.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np

import problems
import reference
from fecam import FeCAMClassifier
from fecam.core.cache import FactorCache
from fecam.core.state import ClassifierState
from problems import Problem
from reference import SETTINGS
from reporting import markdown, once, options, say, write
from stamps import CLASSIFIER

BUILT = 50
"""Classes whose factors are made where there are too many."""


def anew(clf: FeCAMClassifier) -> None:
    """Drop all that was derived, but the prior."""
    metric = clf.metric_
    prior = clf._derived.renewed_prior(clf.state_, metric, may_lag=False)
    clf._derived = FactorCache()
    clf._derived.start_from(metric, prior if metric.has_prior else None)


def glancing(clf: FeCAMClassifier, queries: np.ndarray, repeats: int) -> dict[str, Any]:
    """Seconds of the first answer and of the first novelty; how many classes were measured."""
    answers, novelties, measured = [], [], []
    for query in islice(cycle(queries[:, None, :]), repeats):
        anew(clf)
        answers.append(once(lambda: clf.predict(query)))  # noqa: B023
        measured.append(len(clf._derived._by_class))
        anew(clf)
        novelties.append(once(lambda: clf.novelty(query)))  # noqa: B023
    return {
        "glance": statistics.median(answers),
        "slowest": max(answers),
        "measured": statistics.mean(measured),
        "novelty": statistics.median(novelties),
    }


def building(clf: FeCAMClassifier, query: np.ndarray) -> float:
    """Seconds until all factors are there, and the query is answered through them."""
    known, classes = clf.state_, len(clf.state_.classes)
    some = FeCAMClassifier(**{**clf.get_params(), "search": "exact"})
    some.set_state(_first(known, min(BUILT, classes) if classes > 100 else classes))
    anew(some)
    metric, queries = some.metric_, some._queries(query, some.state_, some.metric_)

    def build() -> None:
        search = some._derived.search(some.state_, metric)
        assert search is not None
        search.find(queries, 1)

    return once(build) * classes / len(some.state_.classes)


def _first(known: ClassifierState, count: int) -> ClassifierState:
    labels = list(known.classes)[:count]
    return replace(
        known,
        classes={label: known.classes[label] for label in labels},
        tasks={label: known.tasks[label] for label in labels},
    )


def measure(problem: Problem, setting: str, repeats: int) -> dict[str, Any]:
    """Both ways to a first answer."""
    say(f"{setting}: {problem}: teaching ...")
    clf = reference.taught(setting, problem.lessons())
    anew(clf)
    say("  making factors ...")
    build = building(clf, problem.queries[:1])
    say(f"  without factors, {repeats} repeats ...")
    seconds = glancing(clf, problem.queries, repeats)
    return {
        "setting": setting,
        "classes": problem.classes,
        "per_class": problem.per_class,
        "width": problem.width,
        "seconds": {**seconds, "build": build},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Seconds of both ways, and their ratio."""

    def line(row: dict[str, Any]) -> list[str]:
        seconds = row["seconds"]
        return [
            f"{row['classes']:,}",
            row["setting"],
            f"{seconds['glance']:.2f} s",
            f"{seconds['slowest']:.2f} s",
            f"{seconds['measured']:.1f}",
            f"{seconds['build']:.1f} s",
            f"{seconds['build'] / seconds['glance']:.0f} x",
            f"{seconds['novelty']:.2f} s",
        ]

    header = ["classes", "settings", "first answer", "slowest", "classes measured"]
    header += ["with all factors", "times as long", "first novelty"]
    return markdown(header, [line(row) for row in rows])


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    width, sizes, per_class = (128, (20, 150), 100) if args.quick else (512, (100, 1000), 500)
    rows = []
    for classes in sizes:
        problem = problems.made_up(classes, per_class, width, 100)
        rows += [measure(problem, setting, 5 if args.quick else 15) for setting in SETTINGS]
    text = table(rows)
    print(text)
    write("first_answer", text, {"rows": rows}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
