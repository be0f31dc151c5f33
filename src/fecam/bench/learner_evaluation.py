"""One learner in one scenario: a record per epoch and per task; it resumes from a saved state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fecam import heads, learners
from fecam.bench.learner_spec import LearnerSpec
from fecam.bench.preparation import (
    PreparedScenario,
    Progress,
    ProgressCallback,
    TrainingData,
)
from fecam.bench.results import file_name
from fecam.bench.scenario_evaluation import (
    calibration,
    novelty_auroc,
    seeded_options,
    task_record,
)
from fecam.data import Dataset
from fecam.errors import FecamError, MissingPackageError, SpecError
from fecam.scenarios import Scenario, Task
from fecam.scenarios.split import Rows

if TYPE_CHECKING:
    from fecam.learners import Learner
    from fecam.training.records import EpochRecord
    from fecam.training.records import Progress as EpochProgress

Record = dict[str, Any]
STATE = "state.safetensors"


def evaluate_learner(
    prepared: PreparedScenario, spec: LearnerSpec, progress: ProgressCallback | None = None
) -> Iterator[Record]:
    """Yield a record per epoch and per task: train on it, then predict its test rows.

    The learner is handed the images of one task at a time; only one that keeps data sees those of
    earlier tasks again. Tasks that were completed before a kill are not trained again. Raises
    `SpecError` if the learner cannot go on.
    """
    try:
        yield from _tasks(prepared, spec, progress or (lambda now: None))
    except MissingPackageError:
        raise
    except FecamError as error:
        raise SpecError(
            f"the learner {spec.label!r} (seed {prepared.scenario.seed}) cannot go on: {error} "
            "The records are kept, and the same command resumes the run. --head names the others, "
            "with another --output."
        ) from error


def _tasks(
    prepared: PreparedScenario, spec: LearnerSpec, progress: ProgressCallback
) -> Iterator[Record]:
    training, scenario = prepared.training, prepared.scenario
    if training is None:
        raise SpecError("there are no images to train on.")
    learner = _start(spec, training, scenario)
    folder = training.folder / f"{file_name(spec.label)}-{scenario.seed}"
    records = _resume(learner, folder / STATE, training, scenario)
    yield from records
    report = _reporter(learner, spec, scenario, progress)
    test_features = _TestFeatures(learner, training.data, scenario[-1].test)
    for task in scenario[learner.n_tasks :]:
        epochs, start = [], time.perf_counter()
        for epoch in _learn(learner, task, training, folder, partial(report, task.index)):
            epochs.append(epoch)
            yield {
                "kind": "training",
                "head": spec.label,
                "seed": scenario.seed,
                "task": task.index,
                **asdict(epoch),
            }
        # Without the epochs of an earlier process, whose time is in their records.
        seconds = time.perf_counter() - start + sum(e.seconds for e in epochs if e.restored)
        record = _record(learner, spec, task, test_features, scenario, seconds)
        records.append(record)
        if learner.can_save:
            learner.save(folder / STATE, {"records": records})
            _checkpoint(folder, task).unlink(missing_ok=True)
        yield record


def _start(spec: LearnerSpec, training: TrainingData, scenario: Scenario) -> Learner:
    """Return the learner with its recipe and its head."""
    learner = learners.make(spec.name, **spec.options)
    head = None
    if spec.head is not None:
        name, options = _head(spec)
        head = heads.make(name, **seeded_options(name, options, scenario.seed))
    return learner.start(training.recipe(spec.later_tasks), head)


def _head(spec: LearnerSpec) -> tuple[str, dict[str, Any]]:
    options = dict(spec.head or {})
    return options.pop("name"), options


def _resume(
    learner: Learner, path: Path, training: TrainingData, scenario: Scenario
) -> list[Record]:
    """Restore the state of an earlier process, if there is one, and return its records."""
    if not path.exists():
        return []
    past = [_task_data(training, task) for task in scenario] if learner.keeps_data else []
    records: list[Record] = learner.load(path, past)["records"]
    return records


def _task_data(training: TrainingData, task: Task) -> Dataset:
    """Return the training images of a task."""
    return training.data.subset(task.train) if task.index else training.first


def _learn(
    learner: Learner,
    task: Task,
    training: TrainingData,
    folder: Path,
    report: Callable[[EpochProgress], None],
) -> Iterator[EpochRecord]:
    """Train on a task; tasks that are trained alike share a checkpoint."""
    locked: AbstractContextManager[Path] = nullcontext(_checkpoint(folder, task))
    if not task.index:
        locked = training.locked_first_checkpoint(learner.first_task_key(), lambda now: None)
    elif key := learner.training_key():
        name = f"{key}-{folder.name.rpartition('-')[2]}"  # with the seed
        locked = training.locked_later_checkpoint(name, task.index)
    with locked as checkpoint:
        yield from learner.learn(_task_data(training, task), checkpoint=checkpoint, progress=report)


def _checkpoint(folder: Path, task: Task) -> Path:
    return folder / f"task-{task.index}.safetensors"


def _reporter(
    learner: Learner, spec: LearnerSpec, scenario: Scenario, progress: ProgressCallback
) -> Callable[[int, EpochProgress], None]:
    """Return a callback that reports task, epoch and loss, and the share of all tasks."""
    rows = learner.images_per_task([len(task.train) for task in scenario])
    plans = [learner.plan_for(task.index) for task in scenario]
    # In images, because the last batch of a task may be smaller.
    work = np.multiply(rows, [plan.epochs for plan in plans])
    if not learner.trains_later:
        work[1:] = 0

    def report(task: int, now: EpochProgress) -> None:
        share = ((now.epoch - 1) * now.n_batches + now.batch) / (now.epochs * now.n_batches)
        done = int(work[:task].sum() + share * work[task])
        note = (
            f"task {task + 1} of {len(scenario)}, epoch {now.epoch} of {now.epochs}, "
            f"loss {now.loss:.3f}"
        )
        progress(Progress(f"{spec.label}, seed {scenario.seed}", done, int(work.sum()), note))

    return report


class _TestFeatures:
    """Features of test rows. A network that is trained only once computes them only once."""

    def __init__(self, learner: Learner, data: Dataset, rows: Rows) -> None:
        self.learner, self.data, self.rows = learner, data, rows
        self._computed: NDArray[np.float32] | None = None

    def __getitem__(self, rows: Rows) -> NDArray[np.float32]:
        if self.learner.trains_later:
            return self.learner.features(self.data.subset(rows))
        if self._computed is None:
            self._computed = self.learner.features(self.data.subset(self.rows))
        return self._computed[np.searchsorted(self.rows, rows)]


def _record(
    learner: Learner,
    spec: LearnerSpec,
    task: Task,
    test_features: _TestFeatures,
    scenario: Scenario,
    seconds: float,
) -> Record:
    """Predict the test rows of a task, and return its record."""
    y = test_features.data.labels
    start = time.perf_counter()
    X = test_features[task.test]
    labels = learner.classify(X)
    predicted = time.perf_counter()
    memory = learner.memory()
    others = learner.other_predictions(X, test_features.data.subset(task.test))
    return {
        **task_record(spec.label, scenario, task, y, labels),
        "classes": len(learner.classes),
        "seconds_to_learn": seconds,
        "seconds_to_predict": predicted - start,
        "bytes": sum(size for kind, size in memory.items() if kind != "network"),
        "bytes_by_kind": memory,
        "parameters": learner.n_parameters(),
        "fitted": learner.fitted_values(),
        "other_accuracy": {
            name: float(np.mean(answers == y[task.test])) for name, answers in others.items()
        },
        "calibration_error": calibration(learner.head, X, y[task.test]),
        "novelty_auroc": _novelty(learner, X, test_features),
        "options": dict(spec.options),
        "learner": spec.name,
        **({} if learner.approximation is None else {"approximation": learner.approximation}),
        "head_options": None if spec.head is None else dict(spec.head),
        "settings": {**learner.options(), "recipe": learner.plan_for(task.index).as_dict()},
    }


def _novelty(learner: Learner, X: Any, test_features: _TestFeatures) -> float | None:
    """Return the AUROC of test rows of later classes, if the learner has a head that can tell."""
    rows = test_features.rows
    later = rows[~np.isin(test_features.data.labels[rows], learner.classes)]
    if not hasattr(learner.head, "novelty") or not len(later):
        return None
    return novelty_auroc(learner.head, X, test_features[later])
