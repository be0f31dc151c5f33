"""CLOSER: classes close to each other, views of an image closer, in the first task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fecam.errors import TrainingError
from fecam.learners.few_shot.frozen_learner import FrozenLearner
from fecam.learners.mechanisms.views import cosine_between_classes, info_nce
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class Closer(FrozenLearner):
    r"""Towards better representation learning for few-shot classes (Oh et al., ECCV 2024).

    .. math:: L = \mathrm{CE}(s \cos(f, W), y) + \alpha\, \mathrm{InfoNCE}(f)
        - \beta \operatorname{mean}_{y_i \ne y_j} \cos(f_i, f_j)

    over the views of all images. InfoNCE is between the views of an image, at the temperature 1/s;
    the last term brings different classes closer together.

    Parameters
    ----------
    scale : float
        s, 32 in the authors' code.
    contrast : float
        :math:`\alpha`, 0.1 in the authors' code, and 0.01 for CUB-200.
    closeness : float
        :math:`\beta`, 1 in the authors' code for CIFAR-100, 0.5 for miniImageNet, 1.5 for CUB-200.
    views : int
        Augmentations per image, 3 in the authors' code.
    """

    scale: float = 32.0
    contrast: float = 0.1
    closeness: float = 1.0
    views: int = 3

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_number("contrast", self.contrast, error=TrainingError)
        check_number("closeness", self.closeness, error=TrainingError)
        check_int("views", self.views, 2, error=TrainingError)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        own = {name: getattr(self, name) for name in ("contrast", "closeness", "views")}
        return {**super().first_task_settings(), **own}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the views and the two losses that are added to the cross-entropy."""
        return Hooks(
            views=self.views,
            losses={
                "contrast": lambda step: (
                    self.contrast * info_nce(step.features, self.views, self.scale)
                ),
                "closeness": lambda step: (
                    -self.closeness * cosine_between_classes(step.features, step.labels)
                ),
            },
        )
