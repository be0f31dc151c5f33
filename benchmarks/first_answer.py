"""The first prediction of a model that has nothing derived yet, as after opening a file.

    python benchmarks/first_answer.py [--quick]

Seconds until one query is answered at 100 and 1,000 classes of 500 samples at d = 512, by a cold
search and after deriving all precisions, and until the first novelty. The model is in memory and
has its prior, like one from a file; reading is not counted. All precisions of 1,000 classes would
take a minute, so the time is that of the first 50 classes, times 20.
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
from fecam.core.state import ClassifierState
from problems import Problem
from reference import SETTINGS
from reporting import markdown, once, options, say, write
from stamps import CLASSIFIER

MAX_DERIVED = 50
"""Classes whose precisions are derived if there are too many classes."""


def cool_down(clf: FeCAMClassifier) -> None:
    """Discard everything derived but the prior."""
    prior = clf.current_prior() if clf.metric_.has_prior else None
    clf.set_state(clf.state_, prior=prior)


def cold(clf: FeCAMClassifier, queries: np.ndarray, repeats: int) -> dict[str, Any]:
    """Seconds of the first prediction and of the first novelty; the number of classes derived."""
    answers, novelties, derived = [], [], []
    for query in islice(cycle(queries[:, None, :]), repeats):
        cool_down(clf)
        answers.append(once(lambda: clf.predict(query)))  # noqa: B023
        derived.append(len(clf.predictor_._derived))
        cool_down(clf)
        novelties.append(once(lambda: clf.novelty(query)))  # noqa: B023
    return {
        "glance": statistics.median(answers),
        "slowest": max(answers),
        "measured": statistics.mean(derived),
        "novelty": statistics.median(novelties),
    }


def warm(clf: FeCAMClassifier, query: np.ndarray) -> float:
    """Seconds until all precisions are derived, and the query is answered with them."""
    state, n_classes = clf.state_, len(clf.state_.classes)
    part = FeCAMClassifier(**{**clf.get_params(), "search": "exact"})
    part.set_state(_first(state, MAX_DERIVED if n_classes > 100 else n_classes))
    cool_down(part)
    return once(lambda: reference.derive(part, query)) * n_classes / len(part.state_.classes)


def _first(state: ClassifierState, count: int) -> ClassifierState:
    labels = list(state.classes)[:count]
    return replace(
        state,
        classes={label: state.classes[label] for label in labels},
        tasks={label: state.tasks[label] for label in labels},
    )


def measure(problem: Problem, setting: str, repeats: int) -> dict[str, Any]:
    """The first prediction with and without precisions."""
    say(f"{setting}: {problem}: learning ...")
    clf = reference.fitted(setting, problem.batches())
    cool_down(clf)
    say("  deriving precisions ...")
    seconds_warm = warm(clf, problem.queries[:1])
    say(f"  cold searches, {repeats} repeats ...")
    seconds = cold(clf, problem.queries, repeats)
    return {
        "setting": setting,
        "classes": problem.classes,
        "per_class": problem.per_class,
        "width": problem.width,
        "seconds": {**seconds, "build": seconds_warm},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Seconds with and without precisions, and their ratio."""

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

    header = ["classes", "settings", "first answer", "slowest", "classes derived"]
    header += ["with all precisions", "times as long", "first novelty"]
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
