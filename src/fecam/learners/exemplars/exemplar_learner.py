"""The base class of methods that keep some images of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.files import PathLike
from fecam.learners.decisions import OldRows, Outputs
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.exemplar_memory import (
    Budget,
    check_rows,
    concatenated,
    exemplar_rows,
    exemplars_per_class,
)
from fecam.learners.mechanisms.herding import herding
from fecam.learners.recipe import Recipe
from fecam.learners.state import read_state
from fecam.learners.task import LearningTask
from fecam.validation import check_choice, check_int

OldStatistics = Literal["carried", "exemplars"]
"""What a head knows of old classes: what it learned, or an estimate from their exemplars."""
MEMORY = 2000
"""Exemplars in the paper and in most public code."""


@dataclass(kw_only=True, eq=False)
class ExemplarLearner(Learner):
    """Train on the images of a task and on the exemplars of earlier classes.

    At the end of a task, always in this order: a second phase of training, alignment, the choice of
    exemplars by herding. The copy for the next task is made after that.

    Parameters
    ----------
    exemplars : int
        The number of images to keep. A class with fewer images keeps all.
    budget : {"total", "per_class"}
        Whether ``exemplars`` is shared equally by all classes so far, or is for each.
    old_statistics : {"carried", "exemplars"}
        With a head: whether the statistics of old classes stay as they were learned, or are
        estimated again from the exemplars in each task. Those of new classes are of all images.
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    exemplars: int = MEMORY
    budget: Budget = "total"
    old_statistics: OldStatistics = "carried"

    keeps_data: ClassVar[bool] = True
    least_exemplars: ClassVar[int] = 0
    """The smallest ``exemplars`` with which the method can predict."""
    fitted: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    """What was fitted at the end of the last task, for the record."""
    _past: list[Dataset] = field(init=False, repr=False, default_factory=list)

    def check_options(self) -> None:
        """Raise for a negative or unknown size of the memory."""
        check_int("exemplars", self.exemplars, self.least_exemplars, error=TrainingError)
        check_choice("budget", self.budget, get_args(Budget), error=TrainingError)
        choices = get_args(OldStatistics)
        check_choice("old_statistics", self.old_statistics, choices, error=TrainingError)
        outputs, old_rows = type(self).outputs, type(self).old_rows
        if (self.outputs, self.old_rows) != (outputs, old_rows):
            raise TrainingError(
                f"outputs={self.outputs!r} and old_rows={self.old_rows!r}: with exemplars all "
                f"outputs are trained. Leave out both, or set outputs={outputs!r} and "
                f"old_rows={old_rows!r}."
            )

    def check_classes(self, counts: Sequence[int]) -> None:
        """Raise if the memory is too small for the classes of all tasks."""
        exemplars_per_class(self.exemplars, self.budget, sum(counts))

    def check_task(self, task: LearningTask) -> None:
        """Raise if the memory is too small for the classes."""
        exemplars_per_class(self.exemplars, self.budget, task.n_classes)

    # ------------------------------------------------------------------ what a method fills in

    def second_phase(self, task: LearningTask) -> None:
        """Train again, with data, parameters and a loss of its own; by default not at all.

        Parameters
        ----------
        task : LearningTask
            The task. A run that is killed here repeats the phase.
        """

    def align(self, task: LearningTask) -> None:
        """Correct the classifier after the training; by default not at all.

        Parameters
        ----------
        task : LearningTask
            The task.
        """

    # ------------------------------------------------------------------ the memory

    @property
    def rows(self) -> dict[int, NDArray[np.int64]]:
        """The exemplars of each class, in the order of herding, as rows of all data so far."""
        memory = self.kept.get("exemplars", {})
        return {int(label): rows.numpy() for label, rows in memory.items()}

    def start(self, recipe: Recipe, head: Any = None) -> Self:
        """Forget all images."""
        self._past, self.fitted = [], {}
        return super().start(recipe, head)

    def exemplar_data(self) -> Dataset | None:
        """Return the exemplars, class by class in the order of learning; None without any.

        Returns
        -------
        Dataset or None
            A view: images are read when they are indexed.
        """
        rows = exemplar_rows(self.kept.get("exemplars", {}))
        return concatenated(self._past).subset(rows) if len(rows) else None

    def training_data(self, data: Dataset) -> Dataset:
        """Return the images of the task, then the exemplars."""
        exemplars = self.exemplar_data()
        self._past = [*self._past, data]
        return data if exemplars is None else concatenated([data, exemplars])

    def after_task(self, task: LearningTask) -> None:
        """Finish the training, then choose the exemplars."""
        if not task.first:
            self.second_phase(task)
            self.align(task)
        most = exemplars_per_class(self.exemplars, self.budget, task.n_classes)
        memory = {label: rows[:most] for label, rows in self.rows.items()}
        if most:
            memory.update(self._choose(task, most))
        self.kept["exemplars"] = {
            str(label): torch.from_numpy(rows.copy()) for label, rows in memory.items() if len(rows)
        }

    def _choose(self, task: LearningTask, most: int) -> dict[int, NDArray[np.int64]]:
        """Return the exemplars of new classes."""
        start = sum(len(data) for data in self._past[:-1])
        new = is_new(task)
        rows, features = task.images.rows.numpy()[new], self.features(task.images)[new]
        labels = np.asarray(task.images.labels)[rows]
        chosen = {}
        for label in task.new:
            candidates = np.flatnonzero(labels == label)
            if not len(candidates):
                raise TrainingError(
                    f"no image of {task.data.label_names[label]!r} can be read, so it has no "
                    "exemplars. Repair its files, or leave the class out."
                )
            chosen[label] = start + rows[candidates[herding(features[candidates], most)]]
        return chosen

    def update_head(self, task: LearningTask) -> None:
        """Teach the head the new classes; old ones are estimated again if that is the option."""
        labels = np.asarray(task.images.labels)[task.images.rows.numpy()]
        features = self.features(task.images)
        if self.old_statistics == "exemplars":
            self.head.fit(features, labels)
            return
        new = is_new(task)
        self.head.partial_fit(features[new], labels[new])

    def fitted_values(self) -> dict[str, Any]:
        """Return what was fitted after the training, such as the factor of an alignment."""
        return dict(self.fitted)

    def images_per_task(self, new: Sequence[int]) -> list[int]:
        """Return the images of each task with at most the exemplars of the budget."""
        past = np.cumsum([0, *new[:-1]])
        limit = self.exemplars if self.budget == "total" else past.max()
        return [int(count) for count in np.asarray(new) + np.minimum(past, limit)]

    def memory(self) -> dict[str, int]:
        """Return the bytes by kind, with those of the decoded exemplars."""
        images = sum(map(len, self.rows.values()))
        return {**super().memory(), "exemplars": images * 3 * self.recipe.preprocessing.resize**2}

    def load(self, path: PathLike, past: Sequence[Dataset] = ()) -> dict[str, Any]:
        """Restore the state; the images of the exemplars are rows of the data of past tasks."""
        notes = read_state(self, path)
        self._past = list(past[: self.n_tasks])
        check_rows(self.kept.get("exemplars", {}), self._past)
        return notes


def is_new(task: LearningTask) -> NDArray[np.bool_]:
    """Return which readable images are of the task; the others are exemplars."""
    new: NDArray[np.bool_] = task.images.rows.numpy() < len(task.data)
    return new
