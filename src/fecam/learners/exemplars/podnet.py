"""PODNet: pooled distillation of maps, and several proxies per class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fecam.encoders.resnet import ResNet18
from fecam.errors import TrainingError
from fecam.learners.decisions import OldRows
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner, is_new
from fecam.learners.mechanisms.balanced_fine_tuning import fine_tune_balanced
from fecam.learners.mechanisms.proxies import Margin, imprinted, nca_loss
from fecam.learners.mechanisms.stage_maps import (
    StageMaps,
    flat_distillation,
    spatial_distillation,
)
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_number

EPOCH_SHARE, RATE_SHARE = 20 / 160, 0.05 / 0.1
"""Epochs and learning rate of the second phase, as parts of those of the first."""
LARGEST_GRADIENT = 5.0
"""Of each weight, in the authors' code."""


@dataclass(kw_only=True, eq=False)
class PODNet(ExemplarLearner):
    r"""Pooled outputs distillation (Douillard et al. 2020).

    .. math:: L = \mathrm{NCA}(\eta y, t) + s \lambda_s\, \mathrm{POD}(m, m^{old})
        + s \lambda_f\, (1 - \cos(\phi, \phi^{old})), \quad s = \sqrt{n / n_{new}}

    with the maps m after the four stages. Each class has ten proxies, :math:`y_c` is the mean of
    their cosines weighted by a softmax. New proxies start at the clusters of their class; old ones
    are fixed until a second phase trains all of them on as many images of each class.

    Parameters
    ----------
    spatial : float
        :math:`\lambda_s`, 3 for CIFAR-100 and 8 for ImageNet-Subset.
    flat : float
        :math:`\lambda_f`, 1 for CIFAR-100 and 10 for ImageNet-Subset.
    margin : float
        :math:`\delta` of the NCA loss.
    margin_form : {"paper", "public"}
        The NCA loss of the paper, or that of public code, in which the margin cancels.
    """

    old_rows: OldRows = "excluded"
    spatial: float = 3.0
    flat: float = 1.0
    margin: float = 0.6
    margin_form: Margin = "paper"

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "proxies"
    _recorded: StageMaps | None = field(init=False, repr=False, default=None)

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        for name in ("spatial", "flat", "margin"):
            check_number(name, getattr(self, name), error=TrainingError)
        check_choice("margin_form", self.margin_form, get_args(Margin), error=TrainingError)

    def check_network(self, network: nn.Module) -> None:
        """Raise for a network without stages."""
        if not isinstance(network, ResNet18):
            raise TrainingError(
                f"podnet distills the maps after the stages of a ResNet-18, and the network is a "
                f"{type(network).__name__}: choose icarl or wa."
            )

    def check_task(self, task: LearningTask) -> None:
        """Raise if there is only one class to tell apart."""
        super().check_task(task)
        if task.n_classes < 2:
            raise TrainingError(
                "the first task has one class, and the loss of podnet compares classes: put two "
                "into it, or choose icarl."
            )

    def first_task_settings(self) -> Mapping[str, Any]:
        """Name the loss."""
        return {"loss": "nca", "margin": self.margin, "form": self.margin_form}

    def before_task(self, task: LearningTask) -> None:
        """Set the new proxies to the clusters of their classes."""
        if task.first:
            return
        new, rows = is_new(task), task.images.rows.numpy()
        features, labels = self.features(task.images), np.asarray(task.images.labels)[rows]
        count = self.classifier.weight.shape[1]
        with torch.no_grad():
            for position, label in enumerate(task.new, start=task.n_old):
                chosen = features[new & (labels == label)]
                if len(chosen):
                    centers = imprinted(chosen, count, task.plan.seed)
                    self.classifier.weight[position] = centers

    def hooks(self, task: LearningTask) -> Hooks:
        """Replace the cross-entropy, and distill maps and features."""
        if self.old is None:
            return Hooks(loss=self._nca, backward=[clamp_gradients])
        assert isinstance(self.network, ResNet18)
        assert isinstance(self.old.network, ResNet18)
        old, scale = self.old, math.sqrt(task.n_classes / len(task.new))
        self._recorded, before = StageMaps(self.network), StageMaps(self.old.network)
        now = self._recorded

        def spatial(step: Step) -> Tensor:
            old.features(step)  # records the old maps
            pairs = [now.maps[i] for i in range(4)], [before.maps[i] for i in range(4)]
            return scale * self.spatial * spatial_distillation(*pairs)

        def flat(step: Step) -> Tensor:
            return scale * self.flat * flat_distillation(step.features, old.features(step))

        losses = {"spatial": spatial, "flat": flat}
        return Hooks(loss=self._nca, losses=losses, backward=[clamp_gradients])

    def second_phase(self, task: LearningTask) -> None:
        """Train all proxies on the same number of images per class."""
        if self._recorded is not None:
            self._recorded.remove()
            self._recorded = None
        epochs = max(1, round(task.plan.epochs * EPOCH_SHARE))
        fine_tune_balanced(self, task, epochs, task.plan.learning_rate * RATE_SHARE, self._nca)

    def _nca(self, step: Step) -> Tensor:
        scale = step.classifier.scale
        return nca_loss(step.logits, step.labels, scale, self.margin, self.margin_form)


def clamp_gradients(step: Step) -> None:
    """Limit the gradient of each weight."""
    for module in (step.network, step.classifier):
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-LARGEST_GRADIENT, LARGEST_GRADIENT)
