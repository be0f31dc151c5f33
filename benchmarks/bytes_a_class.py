"""Bytes a class, in memory and on disk, against the paper's d x d float32.

    python benchmarks/bytes_a_class.py [--data real|synthetic] [--quick]

A model of few and one of many classes are compared: the difference, divided by the number of
classes between them, is what one class takes. In memory that is every array of what was taught;
on disk it is the ``.fecam`` file. What is derived from it for search is shown too; it can be
dropped at any time, and is not saved.
"""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import problems
import reference
from fecam import FeCAMClassifier
from fecam.heads.memory import array_nbytes
from problems import Problem
from reference import SETTINGS, derive
from reporting import markdown, options, say, write
from stamps import CLASSIFIER


def sizes(clf: FeCAMClassifier, problem: Problem) -> dict[str, int]:
    """Bytes of a whole model."""
    derive(clf, problem.queries)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fecam"
        clf.save(path)
        on_disk = path.stat().st_size
    return {
        "memory": array_nbytes(clf.state_.classes),
        "disk": on_disk,
        # Factors refer to the statistics they came from: those are counted only once.
        "derived": array_nbytes([clf._derived, clf.state_]) - array_nbytes(clf.state_),
    }


def measure(problem: Problem, setting: str, few: int) -> dict[str, Any]:
    """Bytes a class: what many classes take more than few."""
    say(f"{setting}: {problem} ...")
    small = reference.taught(setting, islice(problem.lessons(), few))
    large = reference.taught(setting, problem.lessons())
    before, after = sizes(small, problem), sizes(large, problem)
    one = {name: (after[name] - before[name]) / (problem.classes - few) for name in after}
    dense = 4 * problem.width**2
    return {
        "features": problem.features,
        "setting": setting,
        "per_class": problem.per_class,
        "width": problem.width,
        "bytes": one,
        "of_dense": {name: value / dense for name, value in one.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Bytes, and their share of the paper's."""
    names = ("memory", "disk", "derived")
    lines = [
        [
            str(row["per_class"]),
            str(row["width"]),
            row["setting"],
            *(f"{row['bytes'][name]:,.0f} ({row['of_dense'][name]:.4f})" for name in names),
        ]
        for row in rows
    ]
    header = ["n", "d", "settings", "bytes in memory (of 4 d^2)", "on disk", "derived for search"]
    return markdown(header, lines)


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__, data=("real", "synthetic")).parse_args()
    few, many, width = (2, 6, 64) if args.quick else (10, 60, problems.WIDTH)
    rows = []
    for per_class in (5, 50, 500):
        for setting in SETTINGS:
            try:
                problem = problems.of(args.data, many, per_class, width, 10)
            except problems.UnavailableError as error:
                say(f"{error}; synthetic ones instead")
                problem = problems.made_up(many, per_class, width, 10)
            rows.append(measure(problem, setting, few))
    text = table(rows)
    print(text)
    write("bytes_a_class", text, {"rows": rows}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
