"""Statistics that follow a network that goes on learning: methods, oracle ladder, drift.

    python benchmarks/moving.py EXPERIMENT [--images N] [--root FOLDER] [--learner LABEL ...]

The learners of an experiment such as cifar100-moving-cold, in one process, so that those that are
trained alike share training and features. Each has FeCAM as its head as well, for the ladder: its
accuracy with statistics as they were, as the method moved them, with the true means, and with the
true statistics of images of old classes, which no method sees. The frozen rows are heads on the
network of the first task. Tables and a picture of predicted against true drift are written from
the records of all runs of an experiment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fecam import heads, learners
from fecam.bench import spec
from fecam.bench.learner_spec import LearnerSpec
from fecam.bench.preparation import first_plan, later_plan
from fecam.data import load
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import remembered_features
from fecam.learners.oracle_ladder import OracleLadder, features_and_labels
from fecam.learners.recipe import recipe_for
from fecam.report.drawing import QUIET, Figure, as_svg, line_style, new_figure, styled
from fecam.scenarios import build
from reporting import markdown, options, read, say, write
from stamps import EXPERIMENTS, LEARNERS

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
PICTURED = ("LwF, SDC", "LDC", "FeCAM, moving")
MEASURES = (*EXPERIMENTS, *LEARNERS)
GAP = "\N{EN DASH}"
FROZEN = {"Frozen, NCM": "ncm", "Frozen, FeCAM": "fecam"}


class Run:
    """The tasks of one seed of an experiment, and the features of learners that train alike."""

    def __init__(self, experiment: spec.Spec, seed: int, root: str | None, folder: Path) -> None:
        where = {"root": root} if root else {}
        data = load(experiment.dataset.name, **experiment.dataset.options, **where)
        options = experiment.scenario.options
        self.tasks = build(data, experiment.scenario.name, seed=seed, **options)
        self.train = [data.subset(task.train) for task in self.tasks]
        self.seen = [data.subset(np.sort(task.test)) for task in self.tasks]
        self.test = self.seen[-1]
        self.first = first_plan(experiment.first_task, data, seed)
        self.experiment, self.seed, self.folder = experiment, seed, folder

    def start(self, row: LearnerSpec) -> Learner:
        """Return a learner with its recipe; its head is that of the row, or FeCAM."""
        later = later_plan(self.first, self.experiment.later_tasks)
        if row.later_tasks.as_dict():
            later = later_plan(later, row.later_tasks)
        recipe = recipe_for(
            self.train[0],
            sorted(set(self.train[0].labels.tolist())),
            self.first,
            later,
            width=self.experiment.first_task.width,
            size=self.experiment.first_task.size,
        )
        head = dict(row.head or {"name": "fecam"})
        return learners.make(row.name, **row.options).start(recipe, heads.make(**head))

    def records(self, row: LearnerSpec) -> Iterator[dict[str, Any]]:
        """Yield a record per task."""
        learner, ladder = self.start(row), OracleLadder(self.test)
        group = learner.training_key() or row.label
        for index, data in enumerate(self.train):
            start = time.perf_counter()
            first = learner.first_task_key() or "first"
            name = group if index else first
            checkpoint = self.folder / f"{name}-{self.seed}" / f"task-{index}.safetensors"
            for _ in learner.learn(data, checkpoint=checkpoint):
                pass
            seconds = time.perf_counter() - start
            record = {"label": row.label, "seed": self.seed, "task": index, "seconds": seconds}
            X, y = features_and_labels(learner, self.seen[index])
            if row.head is not None:
                yield {**record, "accuracy": float(np.mean(learner.classify(X) == y))}
                continue
            ladder.follow(learner, data)
            own = own_accuracy(learner, X, y)
            moved = float(np.mean(learner.head.predict(X) == y))
            record = {**record, "accuracy": moved if own is None else own, "head": moved}
            if index == len(self.train) - 1:
                rungs, drifts = ladder.climb(learner)
                record = {**record, **asdict(rungs), "drift": [asdict(one) for one in drifts]}
            yield record

    def frozen(self, row: LearnerSpec) -> Iterator[dict[str, Any]]:
        """Yield the records of heads on the network of the first task."""
        learner = self.start(row)
        checkpoint = self.folder / f"first-{self.seed}" / "task-0.safetensors"
        for _ in learner.learn(self.train[0], checkpoint=checkpoint):
            pass
        X, y = features_and_labels(learner, self.test)
        train = [features_and_labels(learner, data) for data in self.train]
        for label, name in FROZEN.items():
            head = heads.make(name)
            for index, rows in enumerate(train):
                head.partial_fit(*rows)
                seen = np.isin(y, head.classes_)
                accuracy = float(np.mean(head.predict(X[seen]) == y[seen]))
                yield {"label": label, "seed": self.seed, "task": index, "accuracy": accuracy}


def own_accuracy(learner: Learner, X: Any, y: Any) -> float | None:
    """Return the accuracy of the method's own rule; None if that is its head."""
    if type(learner).__name__ == "FeCAMMoving":
        return None
    head, learner.head = learner.head, None
    try:
        return float(np.mean(learner.classify(X) == y))
    finally:
        learner.head = head


def rows_of(records: list[dict[str, Any]], name: str) -> dict[str, list[list[float]]]:
    """Return the values of complete runs: per label, a list over tasks for each seed."""
    tasks = 1 + max(record["task"] for record in records)
    runs: dict[tuple[str, int], list[float]] = {}
    for record in sorted(records, key=lambda record: record["task"]):
        if name in record:
            runs.setdefault((record["label"], record["seed"]), []).append(record[name])
    found: dict[str, list[list[float]]] = {}
    for (label, _), values in runs.items():
        if len(values) == tasks:
            found.setdefault(label, []).append(values)
    return found


def table(records: list[dict[str, Any]], order: list[str]) -> str:
    """Return accuracies and ladders as Markdown."""
    rungs = ("fixed", "moved", "true_means", "true")
    header = ["method", "average %", "last %", "seeds", "fixed", "moved", "true means", "true"]
    accuracies = rows_of(records, "accuracy")
    last = [record for record in records if "true" in record]
    lines = []
    for label in order:
        if label not in accuracies:
            continue
        values = 100 * np.array(accuracies[label])
        cells = [_spread(values.mean(1)), _spread(values[:, -1]), str(len(values))]
        for name in rungs:
            found = [record[name] for record in last if record["label"] == label]
            cells.append(f"{100 * np.mean(found):.1f}" if found else GAP)
        lines.append([label, *cells])
    return markdown(header, lines)


def _spread(values: Any) -> str:
    """Return a mean, and the standard deviation over seeds if there are several."""
    if len(values) < 2:
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


@styled
def draw(records: list[dict[str, Any]]) -> Figure:
    """Draw the predicted drift of each old class against the true one, per method."""
    figure, axes = new_figure(3.6)
    top = 0.0
    for index, label in enumerate(PICTURED):
        drifts = [d for r in records if r["label"] == label for d in r.get("drift", [])]
        true, predicted = ([d[name] for d in drifts] for name in ("true", "predicted"))
        style = {**line_style(index), "linestyle": "none"}
        axes.plot(true, predicted, label=label, markersize=2.5, **style)
        top = max(top, *true, *predicted)
    axes.plot([0, top], [0, top], color=QUIET, linewidth=0.8)
    axes.set(xlabel="true drift of a class mean", ylabel="predicted drift")
    axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Run, write records, tables and a picture."""
    parser = options(__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--images", type=int, metavar="N", help="per class, instead of its own")
    parser.add_argument("--root", help="the folder of the data set")
    parser.add_argument("--learner", action="append", metavar="LABEL", help="default: all")
    parser.add_argument("--seed", type=int, action="append", metavar="N")
    parser.add_argument("--folder", type=Path, default=Path("moving-runs"), help="checkpoints")
    args = parser.parse_args()
    changes = {"scenario.samples_per_class": args.images} if args.images else {}
    experiment = spec.load(args.experiment, changes)
    chosen = [
        row
        for row in experiment.learners
        if (row.label in args.learner if args.learner else row.name != "joint")
    ]
    name = f"moving-{experiment.name}{f'-{args.images}-images' if args.images else ''}"
    records = (read(name, quick=args.quick) or {"records": []})["records"]
    text = ""
    order = [*FROZEN, *(row.label for row in experiment.learners)]
    for seed in args.seed or experiment.seeds:
        run = Run(experiment, seed, args.root, args.folder / name)
        jobs = [run.frozen(chosen[0]), *(run.records(row) for row in chosen)]
        with remembered_features():
            for record in chain.from_iterable(jobs):
                same = (record["label"], seed, record["task"])
                records = [r for r in records if (r["label"], r["seed"], r["task"]) != same]
                records.append(record)
                say(f"{record['label']}, task {record['task'] + 1}: {record['accuracy']:.3f}")
                text = table(records, order)
                write(name, text, {"records": records}, quick=args.quick, measures=MEASURES)
    print(text, flush=True)
    drawn = {record["label"] for record in records if record.get("drift")}
    if not args.quick and drawn.issuperset(PICTURED) and (figure := draw(records)) is not None:
        (PICTURES / f"{name}.svg").write_bytes(as_svg(figure))


if __name__ == "__main__":
    main()
