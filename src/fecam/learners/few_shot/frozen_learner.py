"""What methods share that train in the first task only: class means as rows of the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fecam.errors import TrainingError
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import class_means, labels_of
from fecam.learners.mechanisms.cosine_prototypes import check_images, fix_scale, set_rows
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.validation import check_number


@dataclass(kw_only=True, eq=False)
class FrozenLearner(Learner):
    """A learner whose network is frozen after the first task.

    It predicts the class with the largest cosine between a feature and its mean. The mean is over
    images without augmentation. A new class changes neither the network nor another class.

    Parameters
    ----------
    scale : float
        s, the factor of the cosines in the loss of the first task: the inverse temperature.
    """

    scale: float = 16.0

    classifier_name: ClassVar[ClassifierName | None] = "cosine"
    trains_later: ClassVar[bool] = False

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("scale", self.scale, above=0, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class without a readable image."""
        check_images(task)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        return {"loss": type(self).__name__, "scale": self.scale}

    def before_task(self, task: LearningTask) -> None:
        """Fix the scale of the cosines."""
        fix_scale(self.classifier, self.scale)

    def after_task(self, task: LearningTask) -> None:
        """Set the rows of the new classes to their prototypes."""
        set_rows(self.classifier, self.n_outputs(task.n_old), self.prototypes(task))

    def prototypes(self, task: LearningTask) -> Tensor:
        """Return a prototype per new class.

        Parameters
        ----------
        task : LearningTask
            The task.

        Returns
        -------
        tensor of shape (n_outputs, n_features)
            By default the means.
        """
        return class_means(self.features(task.images), labels_of(task), task.new)
