"""One head in one scenario: a record per task."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score

from fecam import heads
from fecam.bench.metrics import auroc, calibration_error
from fecam.bench.preparation import PreparedScenario
from fecam.bench.spec import HeadSpec
from fecam.errors import FecamError, SpecError
from fecam.scenarios import Scenario, Task

Record = dict[str, Any]
MAX_ROWS = 2000
"""Test rows for calibration and novelty, which compute the distance to every class."""


def evaluate_scenario(prepared: PreparedScenario, head: HeadSpec) -> Iterator[Record]:
    """Yield a record per task: learn it with a new head, then predict its test rows.

    The time to learn is that of `partial_fit`; what a head derives at its first prediction is in
    the time to predict. Raises `SpecError` if the head cannot learn or predict.
    """
    try:
        yield from _tasks(prepared, head)
    except FecamError as error:
        raise SpecError(
            f"the head {head.label!r} (seed {prepared.scenario.seed}) cannot go on: {error} "
            "Change its options, or name the other heads with --head"
        ) from error


def _tasks(prepared: PreparedScenario, head: HeadSpec) -> Iterator[Record]:
    features, scenario, seed = prepared.features, prepared.scenario, prepared.scenario.seed
    X, y = np.asarray(features.items), features.labels
    classifier = heads.make(head.name, **seeded_options(head.name, head.options, seed))
    for task in scenario:
        start = time.perf_counter()
        classifier.partial_fit(X[task.train], y[task.train])
        learned = time.perf_counter()
        labels = np.asarray(classifier.predict(X[task.test]))
        predicted = time.perf_counter()
        record: Record = {
            **task_record(head.label, scenario, task, y, labels),
            "classes": len(classifier.classes_),
            "seconds_to_learn": learned - start,
            "seconds_to_predict": predicted - learned,
            "bytes": heads.state_nbytes(classifier),
            "calibration_error": calibration(classifier, X[task.test], y[task.test]),
            "novelty_auroc": _novelty(classifier, X, y, scenario[-1].test),
            "options": dict(head.options),
        }
        if task.index == 0 and head.first_task == "network":
            record["accuracy"] = prepared.network_accuracy
            record["parts"] = [[task.parts[0][0], len(task.test), prepared.network_accuracy]]
        yield record


def task_record(
    label: str, scenario: Scenario, task: Task, y: NDArray[np.int64], predicted: NDArray[Any]
) -> Record:
    """Return the parts of a record that follow from the predictions of a task's test rows."""
    correct = np.zeros(len(y), bool)
    correct[task.test] = predicted == y[task.test]
    return {
        "kind": "task",
        "head": label,
        "seed": scenario.seed,
        "task": task.index,
        "tasks": len(scenario),
        "name": task.name,
        "train_rows": len(task.train),
        "test_rows": len(task.test),
        "accuracy": float(accuracy_score(y[task.test], predicted)),
        "parts": [[name, len(rows), float(correct[rows].mean())] for name, rows in task.parts],
    }


def seeded_options(name: str, options: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return the options of a head, with the seed of the run if it takes one."""
    parameters = heads.make(name).get_params()
    return {**({"seed": seed} if "seed" in parameters else {}), **options}


def calibration(head: Any, X: NDArray[Any], y: NDArray[np.int64]) -> float | None:
    """Return the calibration error, or None for a head without probabilities."""
    if not hasattr(head, "predict_proba"):
        return None
    columns = np.searchsorted(head.classes_, _subset(y))
    return calibration_error(head.predict_proba(_subset(X)), columns)


def _novelty(
    head: Any, X: NDArray[Any], y: NDArray[np.int64], rows: NDArray[np.intp]
) -> float | None:
    """Return the AUROC of test rows of later classes against those of learned classes."""
    learned = np.isin(y[rows], head.classes_)
    if not hasattr(head, "novelty") or learned.all():
        return None
    return novelty_auroc(head, X[rows[learned]], X[rows[~learned]])


def novelty_auroc(head: Any, learned: NDArray[Any], later: NDArray[Any]) -> float | None:
    """Return the AUROC of features of later classes against those of learned classes."""
    scores = [np.asarray(head.novelty(_subset(X))) for X in (learned, later)]
    known, novel = (x[~np.isnan(x)] for x in scores)  # NaN: the head cannot tell yet
    return auroc(known, novel) if len(known) and len(novel) else None


def _subset(rows: NDArray[Any]) -> NDArray[Any]:
    """Return at most `MAX_ROWS` rows at even steps, the same each time."""
    return rows[:: -(-len(rows) // MAX_ROWS)]
