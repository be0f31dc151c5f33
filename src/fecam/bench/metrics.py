"""Metrics of predictions, and of the records of a run.

Accuracies are shares from 0 to 1. A metric that is not defined, such as forgetting after one task,
is None, so that it can be written as JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from fecam.errors import InputError

Record = Mapping[str, Any]
"""One line of ``records.jsonl``."""

METRICS = {
    "average": "mean of the accuracies after each task",
    "last": "accuracy after the last task",
    "average_later": "mean of the accuracies after each task but the first",
    "base": "accuracy at the end on the classes of the first task",
    "later": "accuracy at the end on the classes of all later tasks",
    "harmonic": "harmonic mean of base and later",
    "old": "accuracy at the end on the classes before the last task",
    "new": "accuracy at the end on the classes of the last task",
    "performance_drop": "accuracy after the first task minus that after the last",
    "forgetting": "mean loss of earlier tasks since their best accuracy",
    "backward_transfer": "mean gain of earlier tasks since they were learned",
    "calibration_error": "gap between confidence and accuracy after the last task",
    "novelty_auroc": "separation of later classes from learned ones, at the last task with any",
    "seconds_to_learn": "over all tasks",
    "seconds_to_predict": "over all tasks",
    "bytes": "what is kept after the last task besides the network: head, statistics, images",
    "parameters": "weights of the network and its classifier; of learners only",
}
"""The metrics of `summarize`."""


class MeanStd(NamedTuple):
    """Mean over seeds, and sample standard deviation; None for one seed."""

    mean: float
    std: float | None


# -- from predictions ------------------------------------------------------------------------------


def calibration_error(probabilities: ArrayLike, outcome: ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error with ``bins`` bins of equal width.

    :math:`\\sum_b (n_b / n) | accuracy_b - confidence_b |`. Give (n, classes) probabilities and the
    true column of each row, or n confidences and whether each prediction is correct.

    >>> round(calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 3)
    0.1
    >>> round(calibration_error([[0.9, 0.1], [0.4, 0.6]], [0, 0]), 3)
    0.35
    """
    p, outcome = np.asarray(probabilities, dtype=float), np.asarray(outcome)
    if bins < 1:
        raise InputError(f"bins={bins} must be an integer >= 1.")
    if p.ndim not in (1, 2) or outcome.shape != p.shape[:1] or not p.size:
        raise InputError(
            "calibration needs probabilities (n,) or (n, classes) and n outcomes, at least one; "
            f"got shapes {p.shape} and {outcome.shape}"
        )
    if not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1 + 1e-6):
        raise InputError("probabilities must lie between 0 and 1: use predict_proba, not distances")
    confidence = np.minimum(p if p.ndim == 1 else p.max(axis=1), 1.0)
    correct = outcome.astype(bool) if p.ndim == 1 else p.argmax(axis=1) == outcome
    # n_b times the gap of a bin is the sum of (correct - confidence) over its rows.
    gaps = np.bincount(confidence_bins(confidence, bins), weights=correct - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


def confidence_bins(confidence: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the bin of each confidence; a boundary belongs to the bin below it."""
    return np.clip(np.ceil(confidence * bins), 1, bins).astype(np.int64) - 1


def auroc(known_scores: ArrayLike, novel_scores: ArrayLike) -> float:
    """Return the area under the ROC curve of "novel" by score; 0.5 is chance.

    >>> auroc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333334
    """
    is_novel, ranks = _ranked(known_scores, novel_scores)
    return float(roc_auc_score(is_novel, ranks))


def fpr_at_tpr(known_scores: ArrayLike, novel_scores: ArrayLike, *, tpr: float = 0.95) -> float:
    """Return the share of novel inputs that is accepted where ``tpr`` of the known ones are.

    A known input that is accepted is a true positive. The threshold is the smallest score that
    accepts at least the share ``tpr`` of the known inputs.

    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4], [0.25, 0.3, 0.9], tpr=0.75)
    0.6666666666666666
    """
    is_novel, ranks = _ranked(known_scores, novel_scores)
    accepted_novel, accepted_known, _ = roc_curve(~is_novel, -ranks, drop_intermediate=False)
    return float(accepted_novel[np.argmax(accepted_known >= tpr)])


def _ranked(known_scores: ArrayLike, novel_scores: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return whether each input is novel, and the rank of its score, which may be infinite."""
    known, novel = np.ravel(known_scores).astype(float), np.ravel(novel_scores).astype(float)
    if not len(known) or not len(novel):
        counts = f"{len(known)} and {len(novel)} scores"
        raise InputError(f"a ROC curve compares known with novel inputs; got {counts}")
    if np.isnan(known).any() or np.isnan(novel).any():
        raise InputError("a score is NaN, so it cannot be ranked")
    ranks = rankdata(np.concatenate([known, novel]))
    return np.arange(len(ranks)) >= len(known), ranks


# -- from accuracies -------------------------------------------------------------------------------


def accuracy_matrix(records: Iterable[Record]) -> NDArray[np.float64]:
    """Return the accuracy on each part of the test rows (columns) after each task (rows).

    Where tasks add classes it is lower-triangular, with NaN above. The records are those of one
    head and one seed, in any order.

    >>> accuracy_matrix([
    ...     {"task": 0, "parts": [["a", 10, 0.9]]},
    ...     {"task": 1, "parts": [["a", 10, 0.7], ["b", 10, 0.8]]},
    ... ])
    array([[0.9, nan],
           [0.7, 0.8]])
    """
    tasks = sorted(records, key=lambda record: record["task"])
    matrix = np.full((len(tasks), max((len(r["parts"]) for r in tasks), default=0)), np.nan)
    for row, record in zip(matrix, tasks, strict=True):
        row[: len(record["parts"])] = [part[2] for part in record["parts"]]
    return matrix


def forgetting(matrix: ArrayLike) -> float | None:
    """Return the mean over earlier tasks of their best earlier accuracy minus their last one.

    ``matrix`` is an `accuracy_matrix`. None after a single task.

    >>> round(forgetting([[0.9, float("nan")], [0.7, 0.8]]), 3)
    0.2
    """
    earlier, final = _earlier(matrix)
    return float(np.mean(np.nanmax(earlier, axis=0) - final)) if final.size else None


def backward_transfer(matrix: ArrayLike) -> float | None:
    """Return the mean over earlier tasks of their last accuracy minus their first one.

    None after a single task.

    >>> round(backward_transfer([[0.6, float("nan")], [0.7, 0.8]]), 3)
    0.1
    """
    earlier, final = _earlier(matrix)
    if not final.size:
        return None
    first = np.argmax(~np.isnan(earlier), axis=0)
    return float(np.mean(final - earlier[first, np.arange(len(final))]))


def harmonic_mean(base: float, later: float) -> float:
    """Return :math:`2ab / (a + b)`, or 0 if both are 0: at most either of the two.

    >>> harmonic_mean(0.8, 0.2)
    0.32000000000000006
    """
    return 2 * base * later / (base + later) if base + later else 0.0


def base_later_harmonic(record: Record) -> tuple[float | None, float | None, float | None]:
    """Return the accuracy on the classes of the first task, on later ones, and their harmonic mean.

    They are None where the task has no such test rows.

    >>> base_later_harmonic({"parts": [["a", 30, 0.9], ["b", 10, 0.5], ["c", 10, 0.7]]})[:2]
    (0.9, 0.6)
    """
    base, later = _share(record["parts"][:1]), _share(record["parts"][1:])
    if base is None or later is None:
        return base, later, None
    return base, later, harmonic_mean(base, later)


def _share(parts: Sequence[Sequence[Any]]) -> float | None:
    """Return the accuracy on several parts, weighted by their rows; None without rows."""
    weights = [rows for _, rows, _ in parts]
    accuracies = [accuracy for *_, accuracy in parts]
    return float(np.average(accuracies, weights=weights)) if sum(weights) else None


# -- over seeds ------------------------------------------------------------------------------------


def mean_std(values: Sequence[float]) -> MeanStd:
    """Return the mean and the sample standard deviation (divisor n - 1).

    >>> mean_std([1.0, 2.0, 3.0])
    MeanStd(mean=2.0, std=1.0)
    >>> mean_std([4.0]).std is None
    True
    """
    if not len(values):
        raise InputError("there are no values: a mean needs at least one")
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return MeanStd(float(np.mean(values)), deviation)


def group_by_run(records: Iterable[Record]) -> dict[str, dict[int, list[Record]]]:
    """Return task records by head, then by seed, in the order of tasks.

    The later of two records of one task counts, as after a resumed run.
    """
    grouped: dict[str, dict[int, dict[int, Record]]] = {}
    for record in records:
        if record.get("kind") == "task":
            seeds = grouped.setdefault(record["head"], {})
            seeds.setdefault(record["seed"], {})[record["task"]] = record
    return {
        head: {seed: [tasks[i] for i in sorted(tasks)] for seed, tasks in sorted(seeds.items())}
        for head, seeds in grouped.items()
    }


def mean_over_seeds(seeds: Mapping[int, Sequence[Record]], name: str) -> dict[int, MeanStd]:
    """Return the mean and deviation over seeds of a value of the records, by task."""
    by_task: dict[int, list[float]] = {}
    for tasks in seeds.values():
        for record in tasks:
            by_task.setdefault(record["task"], []).append(record[name])
    return {task: mean_std(values) for task, values in sorted(by_task.items())}


def base_later_curves(
    seeds: Mapping[int, Sequence[Record]],
) -> tuple[dict[int, MeanStd], dict[int, MeanStd], dict[int, MeanStd]]:
    """Return base accuracy, later accuracy and their harmonic mean by task, over seeds.

    A task without such test rows is left out.
    """
    curves: tuple[dict[int, list[float]], ...] = ({}, {}, {})
    for tasks in seeds.values():
        for record in tasks:
            for curve, value in zip(curves, base_later_harmonic(record), strict=True):
                if value is not None:
                    curve.setdefault(record["task"], []).append(value)
    base, later, harmonic = (
        {task: mean_std(values) for task, values in sorted(curve.items())} for curve in curves
    )
    return base, later, harmonic


def is_complete(tasks: Sequence[Record]) -> bool:
    """Return whether all tasks of a head and a seed are recorded."""
    return len(tasks) == int(tasks[0]["tasks"])


def adds_classes(tasks: Sequence[Record]) -> bool:
    """Return whether tasks add test rows, as new classes do.

    In a domain-incremental run all tasks have the same parts: old, new, base and later are
    undefined there.
    """
    counts = [len(record["parts"]) for record in tasks]
    return counts[0] == 1 and (len(counts) == 1 or counts[-1] > 1)


def run_metrics(tasks: Sequence[Record]) -> dict[str, float | None]:
    """Return the `METRICS` of one head and one seed."""
    accuracies = [record["accuracy"] for record in tasks]
    parts = tasks[-1]["parts"]
    growing = adds_classes(tasks)
    several = growing and len(tasks) > 1
    base, later, harmonic = base_later_harmonic(tasks[-1]) if growing else (None, None, None)
    matrix = accuracy_matrix(tasks)
    return {
        "average": float(np.mean(accuracies)),
        "last": float(accuracies[-1]),
        "average_later": float(np.mean(accuracies[1:])) if several else None,
        "base": base,
        "later": later,
        "harmonic": harmonic,
        "old": _share(parts[:-1]) if growing else None,
        "new": _share(parts[-1:]) if growing else None,
        "performance_drop": float(accuracies[0] - accuracies[-1]) if several else None,
        "forgetting": forgetting(matrix) if growing else None,
        "backward_transfer": backward_transfer(matrix) if growing else None,
        "calibration_error": _latest(tasks, "calibration_error"),
        "novelty_auroc": _latest(tasks, "novelty_auroc"),
        "seconds_to_learn": sum(record["seconds_to_learn"] for record in tasks),
        "seconds_to_predict": sum(record["seconds_to_predict"] for record in tasks),
        "bytes": _latest(tasks, "bytes"),
        "parameters": _latest(tasks, "parameters"),
    }


def summarize(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return one row per head: each of `METRICS` as mean and standard deviation over its seeds.

    Parameters
    ----------
    records : iterable of mapping
        The records of a run, in any order; other kinds than ``task`` are ignored.

    Returns
    -------
    list of dict
        ``head``, ``seeds`` (complete ones, over which the means are), ``unfinished`` (the others),
        and ``{"mean": ..., "std": ...}`` or None per metric.

    Examples
    --------
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
    """Return the value of the last task that has one: after the very last, no class is novel."""
    values = [record[name] for record in tasks if record.get(name) is not None]
    return values[-1] if values else None


def _earlier(matrix: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the earlier rows and the last row of the columns that have both."""
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2:
        raise InputError(f"an accuracy matrix must have two dimensions, not {matrix.ndim}.")
    # Without earlier rows, all() is true for every column.
    measured = ~np.isnan(matrix[:-1]).all(axis=0) & ~np.isnan(matrix[-1:]).any(axis=0)
    return matrix[:-1, measured], matrix[-1:, measured].ravel()
