"""Finetune: training on the few images of each session, the lower bound of few-shot tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fecam.errors import TrainingError
from fecam.learners.decisions import OldRows, Outputs
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.cosine_prototypes import check_images
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.validation import check_number


@dataclass(kw_only=True, eq=False)
class FewShotFineTuning(Learner):
    r"""Fine-tuning on few images (Ft-CNN of TOPIC, Tao et al., CVPR 2020).

    .. math:: L = \mathrm{CE}(W f + b, y)

    over the outputs of all classes so far, on the images of the session alone. The network forgets
    the classes of the first task.

    Parameters
    ----------
    initial_std : float
        Standard deviation of the new rows of W, 0.001 in the authors' code; their b is 0.
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    initial_std: float = 0.001

    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("initial_std", self.initial_std, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class without a readable image."""
        check_images(task)

    def before_task(self, task: LearningTask) -> None:
        """Draw small rows for the new classes."""
        if task.first:
            return
        generator = torch.Generator().manual_seed(task.plan.seed)
        with torch.no_grad():
            rows = torch.empty(len(task.new), self.classifier.weight.shape[1])
            rows.normal_(0, self.initial_std, generator=generator)
            self.classifier.weight[task.n_old :] = rows.to(self.classifier.weight.device)
            self.classifier.bias[task.n_old :] = 0
