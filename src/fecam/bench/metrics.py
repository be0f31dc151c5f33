"""What a run is worth: numbers from predictions, and from the records of tasks.

Accuracies are shares from 0 to 1. A number that does not exist (forgetting after one task, say) is
None, never 0 and never NaN, so that it can be written as JSON and shown as a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from fecam.errors import InputError

Record = Mapping[str, Any]
"""One line of a run's records: plain values under names."""


METRICS = {
    "average": "mean of the accuracies after each task",
    "last": "accuracy after the last task",
    "base": "accuracy at the end on the classes of the first task",
    "later": "accuracy at the end on the classes of all later tasks",
    "old": "accuracy at the end on the classes before the last task",
    "new": "accuracy at the end on the classes of the last task",
    "forgetting": "what earlier tasks lost since their best, on average",
    "backward_transfer": "what earlier tasks gained since they were learnt, on average",
    "calibration_error": "gap between confidence and accuracy after the last task",
    "novelty_auroc": "how well classes to come are told from known ones, at the last task with any",
    "seconds_to_learn": "over all tasks",
    "seconds_to_predict": "over all tasks",
    "bytes": "kept after the last task",
}
"""What `summarize` measures, by name."""


class OldNewAll(NamedTuple):
    """Accuracy on what was learnt before the last task, in it, and altogether."""

    old: float | None
    new: float | None
    all: float


class MeanStd(NamedTuple):
    """A mean over seeds, and the sample standard deviation if there are several."""

    mean: float
    std: float | None


# -- from predictions ------------------------------------------------------------------------------


def accuracy(predicted: ArrayLike, expected: ArrayLike) -> float:
    """The share of rows whose predicted label is the expected one.

    >>> accuracy(["cat", "dog", "dog"], ["cat", "dog", "cow"])
    0.6666666666666666
    """
    predicted, expected = np.asarray(predicted), np.asarray(expected)
    if predicted.shape != expected.shape or predicted.ndim != 1 or not len(predicted):
        raise InputError(
            "accuracy compares two lists of labels of the same length, at least one; got shapes "
            f"{predicted.shape} and {expected.shape}"
        )
    return float(np.mean(predicted == expected))


def calibration_error(probabilities: ArrayLike, outcome: ArrayLike, bins: int = 15) -> float:
    """The expected calibration error: how far confidence is from accuracy.

    Rows are sorted into ``bins`` of equal width by their confidence c, and

    :math:`\\sum_b (n_b / n) | accuracy_b - confidence_b |`

    is taken over them. Either give a row of ``probabilities`` a query, (n, classes), and as
    ``outcome`` the column of its true class; or the confidence of each prediction, (n,), and
    whether it was right.

    >>> round(calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 3)
    0.1
    >>> round(calibration_error([[0.9, 0.1], [0.4, 0.6]], [0, 0]), 3)
    0.35
    """
    p, outcome = np.asarray(probabilities, dtype=float), np.asarray(outcome)
    if bins < 1:
        raise InputError(f"bins={bins} cannot be: use 1 or more")
    if p.ndim not in (1, 2) or outcome.shape != p.shape[:1] or not p.size:
        raise InputError(
            "calibration needs probabilities (n,) or (n, classes) and n outcomes, at least one; "
            f"got shapes {p.shape} and {outcome.shape}"
        )
    if not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1 + 1e-6):
        raise InputError("probabilities must lie between 0 and 1: use predict_proba, not distances")
    confidence = np.minimum(p if p.ndim == 1 else p.max(axis=1), 1.0)
    right = outcome.astype(bool) if p.ndim == 1 else p.argmax(axis=1) == outcome
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    # n_b times the gap of a bin is the sum of (right - confidence) over its rows.
    gaps = np.bincount(place, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def auroc(known_scores: ArrayLike, novel_scores: ArrayLike) -> float:
    """How often a novel input scores higher than a known one; a tie counts half.

    1 separates them perfectly, 0.5 is chance. This is the area under the ROC curve of "novel" by
    score, from ranks.

    >>> auroc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333334
    """
    known, novel = np.ravel(known_scores).astype(float), np.ravel(novel_scores).astype(float)
    if not len(known) or not len(novel):
        raise InputError(
            f"AUROC compares known with novel inputs; got {len(known)} and {len(novel)} scores"
        )
    if np.isnan(known).any() or np.isnan(novel).any():
        raise InputError("a score is NaN, so it cannot be ranked")
    ranks = rankdata(np.concatenate([known, novel]))[len(known) :]
    pairs = ranks.sum() - len(novel) * (len(novel) + 1) / 2
    return float(pairs / (len(known) * len(novel)))


# -- from accuracies -------------------------------------------------------------------------------


def average_incremental_accuracy(accuracies: Sequence[float]) -> float:
    """The mean of the accuracies after each task.

    >>> average_incremental_accuracy([0.75, 0.5, 0.25])
    0.5
    """
    return float(np.mean(_some(accuracies)))


def last_accuracy(accuracies: Sequence[float]) -> float:
    """The accuracy after the last task.

    >>> last_accuracy([0.75, 0.5, 0.25])
    0.25
    """
    return float(_some(accuracies)[-1])


def old_new_all(accuracies: Sequence[float], rows: Sequence[int]) -> OldNewAll:
    """Old, new and all classes, from the accuracy and the number of test rows of each task so far.

    >>> old_new_all([0.75, 0.5, 0.25], rows=[200, 100, 100])
    OldNewAll(old=0.6666666666666666, new=0.25, all=0.5625)
    """
    everything = _weighted(accuracies, rows)
    if everything is None:
        raise InputError("no test rows, so no accuracy: each task needs some")
    return OldNewAll(
        _weighted(accuracies[:-1], rows[:-1]), _weighted(accuracies[-1:], rows[-1:]), everything
    )


def accuracy_matrix(records: Iterable[Record]) -> NDArray[np.float64]:
    """One row a task, one column a part of the test rows: the accuracy on it after that task.

    Where tasks bring new classes, this is lower-triangular, with NaN above: what was not yet
    learnt. The records are those of one head and one seed, in any order.

    >>> accuracy_matrix([
    ...     {"task": 0, "parts": [["a", 10, 0.9]]},
    ...     {"task": 1, "parts": [["a", 10, 0.7], ["b", 10, 0.8]]},
    ... ])
    array([[0.9, nan],
           [0.7, 0.8]])
    """
    rows = [
        [part[2] for part in r["parts"]] for r in sorted(records, key=lambda record: record["task"])
    ]
    matrix = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for place, row in enumerate(rows):
        matrix[place, : len(row)] = row
    return matrix


def forgetting(matrix: ArrayLike) -> float | None:
    """How much earlier tasks lost: the mean of their best accuracy so far minus the last one.

    ``matrix`` is an `accuracy_matrix`. "So far" excludes the last row, so a task that gained has a
    negative share. None after a single task.

    >>> round(forgetting([[0.9, float("nan")], [0.7, 0.8]]), 3)
    0.2
    """
    earlier, final = _earlier(matrix)
    return float(np.mean(np.nanmax(earlier, axis=0) - final)) if final.size else None


def backward_transfer(matrix: ArrayLike) -> float | None:
    """How much later tasks helped earlier ones: the mean of their last minus their first accuracy.

    Negative where they were forgotten. None after a single task.

    >>> round(backward_transfer([[0.6, float("nan")], [0.7, 0.8]]), 3)
    0.1
    """
    earlier, final = _earlier(matrix)
    if not final.size:
        return None
    first = np.argmax(~np.isnan(earlier), axis=0)
    return float(np.mean(final - earlier[first, np.arange(len(final))]))


# -- over seeds ------------------------------------------------------------------------------------


def mean_std(values: Sequence[float]) -> MeanStd:
    """The mean, and the sample standard deviation (divisor n - 1) of several values.

    >>> mean_std([1.0, 2.0, 3.0])
    MeanStd(mean=2.0, std=1.0)
    >>> mean_std([4.0]).std is None
    True
    """
    values = _some(values)
    return MeanStd(
        float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
    )


def group_by_run(records: Iterable[Record]) -> dict[str, dict[int, list[Record]]]:
    """Task records by head, then by seed, in the order of tasks; heads in order of appearance.

    Where a task was recorded twice, as after a resumed run, the later record counts.
    """
    found: dict[str, dict[int, dict[int, Record]]] = {}
    for record in records:
        if record.get("kind") == "task":
            seeds = found.setdefault(record["head"], {})
            seeds.setdefault(record["seed"], {})[record["task"]] = record
    return {
        head: {seed: [tasks[at] for at in sorted(tasks)] for seed, tasks in sorted(seeds.items())}
        for head, seeds in found.items()
    }


def mean_over_seeds(seeds: Mapping[int, Sequence[Record]], name: str) -> dict[int, MeanStd]:
    """One value of the records of a head after each task: mean and spread over its seeds."""
    found: dict[int, list[float]] = {}
    for tasks in seeds.values():
        for record in tasks:
            found.setdefault(record["task"], []).append(record[name])
    return {task: mean_std(values) for task, values in sorted(found.items())}


def is_complete(tasks: Sequence[Record]) -> bool:
    """Whether all tasks of a head and a seed have been recorded."""
    return len(tasks) == int(tasks[0]["tasks"])


def adds_classes(tasks: Sequence[Record]) -> bool:
    """Whether tasks bring new test rows, as new classes do.

    In a domain-incremental run every task is judged on the same parts. Old and new, base and later
    mean nothing there.
    """
    counts = [len(record["parts"]) for record in tasks]
    return counts[0] == 1 and (len(counts) == 1 or counts[-1] > 1)


def run_metrics(tasks: Sequence[Record]) -> dict[str, float | None]:
    """All numbers of one head and one seed, by the names of `METRICS`."""
    accuracies = [record["accuracy"] for record in tasks]
    _, rows, parts = zip(*tasks[-1]["parts"], strict=True)
    growing = adds_classes(tasks)
    matrix = accuracy_matrix(tasks)
    at_the_end = old_new_all(parts, rows)
    return {
        "average": average_incremental_accuracy(accuracies),
        "last": last_accuracy(accuracies),
        "base": _weighted(parts[:1], rows[:1]) if growing else None,
        "later": _weighted(parts[1:], rows[1:]) if growing else None,
        "old": at_the_end.old if growing else None,
        "new": at_the_end.new if growing else None,
        "forgetting": forgetting(matrix) if growing else None,
        "backward_transfer": backward_transfer(matrix) if growing else None,
        "calibration_error": _latest(tasks, "calibration_error"),
        "novelty_auroc": _latest(tasks, "novelty_auroc"),
        "seconds_to_learn": sum(record["seconds_to_learn"] for record in tasks),
        "seconds_to_predict": sum(record["seconds_to_predict"] for record in tasks),
        "bytes": _latest(tasks, "bytes"),
    }


def summarize(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row a head: each of `METRICS` as mean and spread over its seeds.

    ``seeds`` counts the seeds that are in the row; ``unfinished`` those that are not, because some
    of their tasks are missing: the last accuracy of half a run is not a last accuracy.

    >>> summarize([{
    ...     "kind": "task", "head": "ncm", "seed": 0, "task": 0, "tasks": 1, "accuracy": 0.5,
    ...     "parts": [["task 1", 10, 0.5]], "seconds_to_learn": 1.0, "seconds_to_predict": 2.0,
    ...     "bytes": 80, "calibration_error": None, "novelty_auroc": None,
    ... }])[0]["last"]
    {'mean': 0.5, 'std': None}
    """
    table = []
    for head, seeds in group_by_run(records).items():
        measured = [run_metrics(tasks) for tasks in seeds.values() if is_complete(tasks)]
        row: dict[str, Any] = {
            "head": head,
            "seeds": len(measured),
            "unfinished": len(seeds) - len(measured),
        }
        for name in METRICS:
            values = [value for each in measured if (value := each[name]) is not None]
            row[name] = mean_std(values)._asdict() if values else None
        table.append(row)
    return table


def _latest(tasks: Sequence[Record], name: str) -> float | None:
    """The value after the last task that has one: after the very last, no class is novel."""
    values = [record[name] for record in tasks if record.get(name) is not None]
    return values[-1] if values else None


def _some(values: Sequence[float]) -> Sequence[float]:
    if not len(values):
        raise InputError("no values, so no mean and no last one: at least one is needed")
    return values


def _weighted(accuracies: Sequence[float], rows: Sequence[int]) -> float | None:
    """The accuracy on several parts together; None if they hold no rows."""
    if len(accuracies) != len(rows):
        raise InputError(f"{len(accuracies)} accuracies but {len(rows)} numbers of rows")
    return float(np.average(accuracies, weights=rows)) if sum(rows) else None


def _earlier(matrix: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The columns known before the last row: their earlier rows, and their last one."""
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2:
        raise InputError(f"an accuracy matrix has two dimensions, not {matrix.ndim}")
    known = ~np.isnan(matrix[:-1]).all(axis=0) & ~np.isnan(matrix[-1:]).any(axis=0)
    if len(matrix) < 2:
        known = np.zeros(matrix.shape[1], dtype=bool)
    return matrix[:-1, known], matrix[-1:, known].ravel()
