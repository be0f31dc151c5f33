"""IL2A: mixtures of classes as classes, and semantic augmentation of old classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.exemplar_free.prototype_learner import PrototypeLearner
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    check_samples,
    class_covariances,
    class_means,
    labels_of,
)
from fecam.learners.mechanisms.pair_mixup import (
    check_pairs,
    mix_pairs,
    n_pairs,
    with_pairs,
    without_pairs,
)
from fecam.learners.mechanisms.prototype_replay import draw_classes, implicitly_augmented_logits
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_int, check_number

Bound = Literal["published", "exact"]


@dataclass(kw_only=True, eq=False)
class IL2A(PrototypeLearner):
    r"""Dual augmentation (Zhu et al., NeurIPS 2021).

    .. math:: L = \mathrm{CE}(z / T, y) + \alpha\, \mathrm{CE}(\tilde z / T, c)
        + \beta \sqrt{n_0 d_0 / (n d)}\, \|F - F^{old}\|_F, \quad
        \tilde z_j = w_j^T \mu_c + b_j + \frac{s}{2} (w_j - w_c)^T S_c (w_j - w_c)

    where y includes a label per pair of the task's classes, for mixtures of their images, and c are
    random old classes with their own mean and covariance. The outputs of pairs are dropped after
    the task. The weight of the distillation is that of batches of 256 images and 512 features.

    The authors' code prepends the covariances of new classes but looks them up by class, so that
    from the third task on a class gets the covariance of another one; here row c is class c.

    Parameters
    ----------
    replay : float
        :math:`\alpha`, 10 in the authors' code.
    distillation : float
        :math:`\beta`, 10 in the authors' code.
    temperature : float
        T, 0.1 in the authors' code.
    optimizer : {"adam", "recipe"}
        Adam as in the authors' code, or the optimizer of the recipe.
    learning_rate : float, optional
        Of Adam; by default the authors' 0.001 for 101 epochs, larger for fewer.
    weight_decay : float
        Of Adam, 2e-4 in the authors' code.
    strength : float
        s, 2.5 in the authors' code.
    mixtures : int
        Mixtures per image, 4 in the authors' code; 0 for none.
    limits : tuple of two floats
        The share of an image in a mixture; 0.3 and 0.7 for Tiny-ImageNet.
    bound : {"published", "exact"}
        The quadratic term before the division by T: with s / 2 as in the paper, which has no T, and
        in all public code; or with s / (2 T), the bound of the expected loss at temperature T. The
        exact one is larger by 1 / T, and worse with the published s.
    """

    strength: float = 2.5
    mixtures: int = 4
    limits: tuple[float, float] = (0.4, 0.6)
    bound: Bound = "published"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        low, high = self.limits
        self.limits = low, high  # a list from JSON
        super().check_options()
        check_number("strength", self.strength, error=TrainingError)
        check_int("mixtures", self.mixtures, 0, error=TrainingError)
        check_choice("bound", self.bound, get_args(Bound), error=TrainingError)
        if not 0 <= low <= high <= 1:
            raise TrainingError(f"limits={self.limits!r} must be 0 <= low <= high <= 1.")

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class with one image, or a task of one class."""
        check_samples(labels_of(task), task.new)
        if self.mixtures:
            check_pairs(len(task.new))

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        limits = list(self.limits) if self.mixtures else None
        own = {"mixtures": self.mixtures, "limits": limits}
        return {**super().first_task_settings(), **own}

    def before_task(self, task: LearningTask) -> None:
        """Add an output per pair of new classes."""
        if self.mixtures:
            pairs = n_pairs(len(task.new))
            self.classifier = with_pairs(self.classifier, pairs, task.plan.seed)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the mixtures and the three losses."""

        def mix(images: Tensor, labels: Tensor, generator: torch.Generator) -> Any:
            return mix_pairs(
                images,
                labels,
                generator,
                n_old=task.n_old,
                n_classes=task.n_classes,
                repeats=self.mixtures,
                limits=self.limits,
            )

        def replay(step: Step) -> Tensor:
            labels = draw_classes(len(step.rows), task.n_old, step.generator)
            return self.replay * self._replay(step.classifier, labels, task.n_classes)

        distill = self.frobenius_distillation
        return Hooks(
            loss=lambda step: self.cross_entropies(step, task).mean(),
            losses={} if task.first else {"distillation": distill, "replay": replay},
            batch=mix if self.mixtures else None,
        )

    def _replay(self, classifier: nn.Module, labels: Tensor, n_classes: int) -> Tensor:
        """Return the loss of old classes, over the outputs of real classes."""
        weight, bias = classifier.weight[:n_classes], classifier.bias[:n_classes]
        device, temperature = weight.device, self.temperature
        labels = labels.to(device)
        means, covariances = (
            self.kept["statistics"][name].to(device) for name in ("means", "covariances")
        )
        if self.bound == "exact":
            logits = implicitly_augmented_logits(
                weight / temperature, bias / temperature, means, covariances, labels, self.strength
            )
        else:
            logits = (
                implicitly_augmented_logits(weight, bias, means, covariances, labels, self.strength)
                / temperature
            )
        return functional.cross_entropy(logits, labels)

    def after_task(self, task: LearningTask) -> None:
        """Drop the outputs of pairs; keep mean and covariance of each new class."""
        self.classifier = without_pairs(self.classifier, task.n_classes)
        features, labels = self.features(task.images), labels_of(task)
        statistics = self.kept.setdefault("statistics", {})
        append_rows(statistics, "means", class_means(features, labels, task.new))
        append_rows(statistics, "covariances", class_covariances(features, labels, task.new))
