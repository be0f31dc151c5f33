"""Elastic weight consolidation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Generator, Tensor

from fecam.errors import TrainingError
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.parameter_penalty import (
    FisherLabels,
    fisher_diagonal,
    merge_importance,
    pull_back,
    quadratic_penalty,
    stable_importance,
)
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_int, check_number

PUBLISHED_WEIGHT, PUBLISHED_BATCH = 5000.0, 64
"""Of FACIL, for squared mean gradients of batches. Their expectation is the Fisher information
divided by the number of images, because the gradients of single images have the mean 0."""
WEIGHT = PUBLISHED_WEIGHT / PUBLISHED_BATCH
Merge = Literal["proportional", "sum"]


@dataclass(kw_only=True, eq=False)
class EWC(Learner):
    r"""Elastic weight consolidation (Kirkpatrick et al. 2017), with one merged penalty.

    .. math:: L = \mathrm{CE}(z_{new}, y)
        + \lambda \, \frac12 \sum_i F_i (\theta_i - \theta^*_i)^2

    over the weights of the network, where :math:`\theta^*` are those after the last task and F is
    the Fisher information of the tasks so far. The outputs of its softmax are those of the loss.

    Parameters
    ----------
    weight : float
        :math:`\lambda`, by default FACIL's 5000 for squared mean gradients of batches of 64 images,
        which are 64 times smaller than F. PyCIL has 1000 for batches of 128, which is 8 here, and
        clips at 10^-4; mammoth has 10 for CIFAR-10, without the 1/2.
    labels : {"sampled", "true", "predicted", "all"}
        The labels of F, see `fecam.learners.mechanisms.parameter_penalty.fisher_diagonal`: FACIL
        has "predicted", PyCIL and mammoth "true".
    samples : int
        Images of a task for F.
    merge : {"proportional", "sum"}
        The share of the old F is that of the old classes, as in PyCIL; or both are added, as in the
        paper, which makes the network more rigid with each task.
    """

    weight: float = WEIGHT
    labels: FisherLabels = "sampled"
    samples: int = 1000
    merge: Merge = "proportional"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("weight", self.weight, error=TrainingError)
        check_int("samples", self.samples, error=TrainingError)
        check_choice("labels", self.labels, get_args(FisherLabels), error=TrainingError)
        check_choice("merge", self.merge, get_args(Merge), error=TrainingError)

    def hooks(self, task: LearningTask) -> Hooks:
        """Add the penalty in later tasks."""
        if task.first or not self.weight:
            return Hooks()
        anchors, importance = (
            {name: value.to(self.device) for name, value in self.kept[kind].items()}
            for kind in ("weights of the last task", "importance")
        )
        rate = task.plan.learning_rate
        stable = stable_importance(importance, self.weight, rate)

        def penalty(step: Step) -> Tensor:
            parameters = dict(step.network.named_parameters())
            return self.weight * quadratic_penalty(parameters, anchors, stable)

        pull = pull_back(anchors, importance, self.weight, rate)
        return Hooks(losses={"penalty": penalty}, updated=[pull])

    def after_task(self, task: LearningTask) -> None:
        """Compute the Fisher information of the task, and merge it."""
        first_output = task.n_old if self.outputs == "new" else 0
        fisher = fisher_diagonal(
            self.network,
            self.classifier,
            task.images,
            task.positions,
            range(first_output, task.n_classes),
            Generator().manual_seed(task.plan.seed),
            which=self.labels,
            samples=self.samples,
            device=self.device,
        )
        if not task.first:
            old = {name: value.to(self.device) for name, value in self.kept["importance"].items()}
            if self.merge == "sum":
                fisher = {name: old[name] + value for name, value in fisher.items()}
            else:
                fisher = merge_importance(old, fisher, task.n_old / task.n_classes)
        weights = {name: value.detach().clone() for name, value in self.network.named_parameters()}
        self.kept["importance"] = fisher
        self.kept["weights of the last task"] = {name: weights[name] for name in fisher}
