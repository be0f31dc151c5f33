"""Joint training: the upper bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.learners.decisions import OldRows, Outputs
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.exemplar_memory import concatenated
from fecam.learners.recipe import Recipe
from fecam.learners.task import LearningTask
from fecam.training.base_training import new_network
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice

Start = Literal["scratch", "warm"]


@dataclass(kw_only=True, eq=False)
class Joint(Learner):
    r"""Train on the images of all tasks so far: not a continual method, but its upper bound.

    .. math:: L = \mathrm{CE}(z, y)

    over all classes and all their images. A warm start, as in FACIL, is weaker than training from
    scratch if epochs are few.

    Parameters
    ----------
    weights : {"scratch", "warm"}
        Train a new network in each task, by the plan of the first; or go on from the current
        weights, by the plan of later tasks.
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    weights: Start = "scratch"

    keeps_data: ClassVar[bool] = True
    _past: list[Dataset] = field(init=False, repr=False, default_factory=list)

    def check_options(self) -> None:
        """Raise for an unknown start, or for decisions that contradict joint training."""
        check_choice("weights", self.weights, get_args(Start), error=TrainingError)
        if (self.outputs, self.old_rows) != ("all", "included"):
            raise TrainingError(
                f"outputs={self.outputs!r} and old_rows={self.old_rows!r}: joint training trains "
                'all outputs. Leave out both, or set outputs="all" and old_rows="included".'
            )

    def start(self, recipe: Recipe, head: Any = None) -> Self:
        """Forget all images."""
        self._past.clear()
        return super().start(recipe, head)

    def training_data(self, data: Dataset) -> Dataset:
        """Keep the images of the task, and return those of all tasks."""
        self._past.append(data)
        return concatenated(self._past)

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the first task if training starts from scratch."""
        return self.recipe.plan(index, from_scratch=self.weights == "scratch")

    def before_task(self, task: LearningTask) -> None:
        """Start from a new network."""
        if self.weights == "scratch" and not task.first:
            self.network, self.classifier = new_network(
                self.recipe.network, task.plan, task.n_classes
            )

    def update_head(self, task: LearningTask) -> None:
        """Teach the head all classes again, on the features of the new network."""
        labels = np.asarray(task.images.labels)[task.images.rows.numpy()]
        self.head.fit(self.features(task.images), labels)

    def images_per_task(self, new: Sequence[int]) -> list[int]:
        """Return the images of all tasks so far."""
        return list(np.cumsum(new).tolist())

    def memory(self) -> dict[str, int]:
        """Return the bytes by kind, with the decoded images of all tasks."""
        side = self.recipe.preprocessing.resize
        images = sum(len(data) for data in self._past) * 3 * side**2
        return {**super().memory(), "exemplars": images}
