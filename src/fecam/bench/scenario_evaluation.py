"""One head through one scenario: a record a task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam import heads
from fecam.bench.metrics import accuracy, auroc, calibration_error
from fecam.bench.preparation import Prepared
from fecam.bench.spec import HeadSpec
from fecam.errors import FecamError, SpecError

Record = dict[str, Any]
ROWS = 2000
"""Calibration and novelty are judged on at most so many test rows: they measure every class."""


def evaluate_scenario(prepared: Prepared, head: HeadSpec) -> Iterator[Record]:
    """Teach a new head task by task, and ask it after each about all it should know.

    Time to learn is that of `partial_fit`; what a head derives only when it is asked is in the time
    to predict.

    Raises:
        SpecError: the head cannot learn or answer; the message names it, and says why.
    """
    try:
        yield from _tasks(prepared, head)
    except FecamError as error:
        raise SpecError(
            f"the head {head.label!r} (seed {prepared.scenario.seed}) cannot go on: {error} "
            "Change its options, or leave it out by naming the others with --head"
        ) from error


def _tasks(prepared: Prepared, head: HeadSpec) -> Iterator[Record]:
    features, scenario, seed = prepared.features, prepared.scenario, prepared.scenario.seed
    X, y = np.asarray(features.items), features.labels
    taught = heads.make(head.name, **_options(head, seed))
    everything = scenario[-1].test
    right = np.zeros(len(y), bool)
    for task in scenario:
        start = time.perf_counter()
        taught.partial_fit(X[task.train], y[task.train])
        learnt = time.perf_counter()
        answers = np.asarray(taught.predict(X[task.test]))
        asked = time.perf_counter()
        right[task.test] = answers == y[task.test]
        record: Record = {
            "kind": "task",
            "head": head.label,
            "seed": seed,
            "task": task.index,
            "tasks": len(scenario),
            "name": task.name,
            "classes": len(taught.classes_),
            "train_rows": len(task.train),
            "test_rows": len(task.test),
            "accuracy": accuracy(answers, y[task.test]),
            "parts": [[name, len(rows), float(right[rows].mean())] for name, rows in task.parts],
            "seconds_to_learn": learnt - start,
            "seconds_to_predict": asked - learnt,
            "bytes": heads.state_nbytes(taught),
            "calibration_error": _calibration(taught, X, y, task.test),
            "novelty_auroc": _novelty(taught, X, y, everything),
            "options": dict(head.options),
        }
        if task.index == 0 and head.first_task == "network":
            record["accuracy"] = prepared.network_accuracy
            record["parts"] = [[task.parts[0][0], len(task.test), prepared.network_accuracy]]
        yield record


def _options(head: HeadSpec, seed: int) -> Mapping[str, Any]:
    """A head that draws at random does so from the seed of the run."""
    known = heads.make(head.name).get_params()
    return {**({"seed": seed} if "seed" in known else {}), **head.options}


def _calibration(
    head: Any, X: NDArray[Any], y: NDArray[np.int64], rows: NDArray[np.intp]
) -> float | None:
    if not hasattr(head, "predict_proba"):
        return None
    some = _some(rows)
    return calibration_error(head.predict_proba(X[some]), np.searchsorted(head.classes_, y[some]))


def _novelty(
    head: Any, X: NDArray[Any], y: NDArray[np.int64], rows: NDArray[np.intp]
) -> float | None:
    """How well test rows of classes that have not come yet are told from those that have."""
    known = np.isin(y[rows], head.classes_)
    if not hasattr(head, "novelty") or known.all():
        return None
    return auroc(*(head.novelty(X[_some(rows[chosen])]) for chosen in (known, ~known)))


def _some(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Evenly over all, and the same each time."""
    return rows[:: -(-len(rows) // ROWS)]
