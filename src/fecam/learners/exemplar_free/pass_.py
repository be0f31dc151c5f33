"""PASS: noisy prototypes, feature distillation, rotations as classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.exemplar_free.prototype_learner import PrototypeLearner
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    check_samples,
    class_means,
    class_variances,
    labels_of,
)
from fecam.learners.mechanisms.prototype_replay import common_radius, draw_classes, noisy_means
from fecam.learners.mechanisms.rotations import N_ROTATIONS, rotate_four
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice

Radius = Literal["first", "all"]


@dataclass(kw_only=True, eq=False)
class PASS(PrototypeLearner):
    r"""Prototype augmentation and self-supervision (Zhu et al., CVPR 2021).

    .. math:: L = \mathrm{CE}(z / T, 4y + k) + \alpha\, \mathrm{CE}(h(\mu_c + r \epsilon) / T, 4c)
        + \beta \sqrt{n_0 d_0 / (n d)}\, \|F - F^{old}\|_F

    over all outputs h; images are rotated by k quarters, c is a random old class,
    :math:`\epsilon \sim N(0, I)`, and :math:`r^2` the mean variance of a feature in a class. Only
    unrotated outputs predict. The weight of the distillation is that of batches of 256 images and
    512 features.

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
    rotations : bool
        Whether rotated images are classes of their own. Wrong for letters and digits.
    radius : {"first", "all"}
        The classes whose variance is averaged: those of the first task, or all (PyCIL).
    """

    rotations: bool = True
    radius: Radius = "first"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("radius", self.radius, get_args(Radius), error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class with one image, or a first task without anything to distinguish."""
        check_samples(labels_of(task), task.new)
        if task.first and not self.rotations and task.n_classes < 2:
            raise TrainingError(
                "the first task has one class: without rotations its network has nothing to "
                "distinguish. Use a first task of at least two classes, or rotations=True."
            )

    def n_outputs(self, n_classes: int) -> int:
        """Return four outputs per class, one per rotation."""
        return n_classes * self._per_class

    @property
    def _per_class(self) -> int:
        return N_ROTATIONS if self.rotations else 1

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        return {**super().first_task_settings(), "rotations": self.rotations}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the rotations and the three losses."""
        distill, replay = self.frobenius_distillation, self._replay
        return Hooks(
            loss=lambda step: self.cross_entropies(step, task).mean(),
            losses={} if task.first else {"distillation": distill, "replay": replay},
            batch=_rotate if self.rotations else None,
        )

    def _replay(self, step: Step) -> Tensor:
        """Return the loss of the classifier on as many prototypes as there are images."""
        statistics = self.kept["statistics"]
        count = len(step.labels) // self._per_class
        labels = draw_classes(count, len(statistics["means"]), step.generator)
        samples = noisy_means(statistics["means"], labels, self._radius(), step.generator)
        logits = step.classifier(samples.to(step.features.device)).float() / self.temperature
        targets = (self._per_class * labels).to(logits.device)
        return self.replay * functional.cross_entropy(logits, targets)

    def _radius(self) -> Tensor:
        variances = self.kept["statistics"]["variances"]
        return common_radius(variances[: self._n_first] if self.radius == "first" else variances)

    @property
    def _n_first(self) -> int:
        return int(self.kept["statistics"]["n_first"])

    def after_task(self, task: LearningTask) -> None:
        """Keep the mean of each new class, and its mean variance."""
        features, labels = self.features(task.images), labels_of(task)
        statistics = self.kept.setdefault("statistics", {})
        statistics.setdefault("n_first", torch.tensor(task.n_classes))
        append_rows(statistics, "means", class_means(features, labels, task.new))
        append_rows(statistics, "variances", class_variances(features, labels, task.new).mean(1))

    def scores(self, features: Tensor) -> Tensor:
        """Return the outputs for unrotated images."""
        return super().scores(features)[:, :: self._per_class]


def _rotate(images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return rotate_four(images, labels)
