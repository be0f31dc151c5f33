"""Bytes per class, in memory and on disk, against the paper's d x d float32.

    python benchmarks/bytes_a_class.py [--data real|synthetic] [--quick]

A model of few and one of many classes are compared: the difference, divided by the number of
classes between them, is the size of one class. In memory that is every array of the state; on
disk it is the ``.fecam`` file. What predictions derive from the state is shown too; it is not
saved.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import problems
import reference
from fecam import FeCAMClassifier
from fecam.heads.memory import array_nbytes
from problems import Problem
from reference import SETTINGS
from reporting import markdown, options, say, write
from stamps import CLASSIFIER


def sizes(clf: FeCAMClassifier) -> dict[str, int]:
    """Bytes of a whole model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fecam"
        clf.save(path)
        on_disk = path.stat().st_size
    return {
        "memory": array_nbytes(clf.state_.classes),
        "disk": on_disk,
        "derived": derived_bytes(clf),
    }


def derived_bytes(clf: FeCAMClassifier) -> int:
    """Bytes that a model without anything derived allocates for its predictions, and keeps."""
    clf.copy().warm_up()  # fills caches that do not belong to the model
    cold = clf.copy().set_state(clf.state_)
    tracemalloc.start()
    cold.warm_up()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def measure(problem: Problem, setting: str, few: int) -> dict[str, Any]:
    """Bytes per class: the difference between many classes and few."""
    say(f"{setting}: {problem} ...")
    small = reference.fitted(setting, islice(problem.batches(), few))
    large = reference.fitted(setting, problem.batches())
    before, after = sizes(small), sizes(large)
    per_class = {name: (after[name] - before[name]) / (problem.classes - few) for name in after}
    dense = 4 * problem.width**2
    return {
        "features": problem.features,
        "setting": setting,
        "per_class": problem.per_class,
        "width": problem.width,
        "bytes": per_class,
        "of_dense": {name: value / dense for name, value in per_class.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Bytes, and their ratio to the paper's."""
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
    header = [
        "n",
        "d",
        "settings",
        "bytes in memory (of 4 d^2)",
        "on disk",
        "derived for predictions",
    ]
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
