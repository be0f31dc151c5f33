"""Coil: classifiers of old and new classes are transported into each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner
from fecam.learners.mechanisms.class_statistics import class_means
from fecam.learners.mechanisms.logit_distillation import softmax_distillation, weighted_distillation
from fecam.learners.mechanisms.transport import transport_plan, transported
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Modules, Step
from fecam.validation import check_number


@dataclass(kw_only=True, eq=False)
class Coil(ExemplarLearner):
    r"""Co-transport for class-incremental learning (Zhou et al. 2021).

    .. math:: L = (1 - \lambda)\, \mathrm{CE}(z, y) + \lambda\, \mathrm{KD}_2(z^{old}, z) + \tau L_T

    with a cosine classifier; :math:`\lambda` is the share of old classes. T is the transport plan
    between the class means of old and new classes. New rows of the classifier start as transported
    old ones. In the first epoch the new outputs are distilled to those of the transported rows; in
    later epochs, with a weight that grows by the square, the old outputs of the teacher are
    distilled to those of rows that are transported back from the new ones.

    Parameters
    ----------
    weight : float
        :math:`\tau`, 0.001 in the authors' code.
    """

    weight: float = 0.001

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "cosine"
    least_exemplars: ClassVar[int] = 1
    _plan: Tensor = field(init=False, repr=False)

    def check_options(self) -> None:
        """Raise for a negative weight."""
        super().check_options()
        check_number("weight", self.weight, error=TrainingError)

    def before_task(self, task: LearningTask) -> None:
        """Transport the rows of old classes to the new ones."""
        if task.first:
            return
        self._plan = self._solve(task)
        with torch.no_grad():
            weight = self.classifier.weight
            old = weight[: task.n_old]
            weight[task.n_old :] = transported(old, self._plan, old.norm(dim=1).mean())

    def _solve(self, task: LearningTask) -> Tensor:
        """Return the plan between old and new classes: of exemplars, and of images of the task."""
        labels = np.asarray(task.images.labels)[task.images.rows.numpy()]
        means = class_means(self.features(task.images), labels, (*task.old, *task.new))
        return transport_plan(means[: task.n_old], means[task.n_old :])

    def hooks(self, task: LearningTask) -> Hooks:
        """Add the distillation and the losses of the transport."""
        if self.old is None:
            return Hooks()
        old, share = self.old, task.n_old / task.n_classes
        smoothing = task.plan.label_smoothing
        base = weighted_distillation(share, old.logits, label_smoothing=smoothing)
        if not self.weight:
            return base
        start = self.classifier.weight.detach()[task.n_old :].clone()

        def solve_again(modules: Modules) -> None:
            if modules.epoch:
                modes = [(module, module.training) for module in modules.network.modules()]
                self._plan = self._solve(task)
                for module, training in modes:
                    module.training = training

        def transport(step: Step) -> Tensor:
            features = functional.normalize(step.features.float(), dim=1)
            scale, weight = step.classifier.scale, step.classifier.weight
            if step.epoch == 0:
                targets = scale.detach() * features.detach() @ unit(start.to(weight.device)).T
                return self.weight * softmax_distillation(step.logits[:, task.n_old :], targets)
            rows = transported(weight[task.n_old :], self._plan.T, weight.norm(dim=1).mean())
            growth = (step.epoch / task.plan.epochs) ** 2
            back = scale * features @ unit(rows).T
            return self.weight * growth * softmax_distillation(back, old.logits(step))

        losses = {**base.losses, "transport": transport}
        return replace(base, losses=losses, epoch_start=[solve_again])


def unit(rows: Tensor) -> Tensor:
    """Return rows of unit length."""
    return functional.normalize(rows, dim=1)
