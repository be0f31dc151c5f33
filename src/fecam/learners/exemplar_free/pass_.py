"""PASS: noisy prototypes, feature distillation, rotations as classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.learner import Learner, OldRows, Outputs
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    check_samples,
    class_means,
    class_variances,
    labels_of,
)
from fecam.learners.mechanisms.feature_distillation import frobenius_norm, frobenius_weight
from fecam.learners.mechanisms.prototype_replay import common_radius, draw_classes, noisy_means
from fecam.learners.mechanisms.rotations import N_ROTATIONS, rotate_four
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_number

Radius = Literal["first", "all"]


@dataclass(kw_only=True, eq=False)
class PASS(Learner):
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
    rotations : bool
        Whether rotated images are classes of their own. Wrong for letters and digits.
    radius : {"first", "all"}
        The classes whose variance is averaged: those of the first task, or all (PyCIL).
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    replay: float = 10.0
    distillation: float = 10.0
    temperature: float = 0.1
    rotations: bool = True
    radius: Radius = "first"

    needs_old_network = True

    def check_options(self) -> None:
        """Raise for values that are out of range."""
        check_number("replay", self.replay, error=TrainingError)
        check_number("distillation", self.distillation, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)
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
        return {"rotations": self.rotations, "temperature": self.temperature}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the rotations and the three losses."""
        start = self.n_outputs(task.n_old) if self.outputs == "new" else 0

        def classification(step: Step) -> Tensor:
            logits = step.logits[:, start:].float() / self.temperature
            return functional.cross_entropy(logits, step.labels - start)

        return Hooks(
            loss=classification,
            losses={} if task.first else {"distillation": self._distill, "replay": self._replay},
            batch=_rotate if self.rotations else None,
        )

    def _distill(self, step: Step) -> Tensor:
        assert self.old is not None
        weight = frobenius_weight(self.distillation, step.features)
        return weight * frobenius_norm(step.features, self.old.features(step))

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
        append_rows(
            statistics, "variances", class_variances(features, labels, task.new).mean(1)
        )

    def scores(self, features: Tensor) -> Tensor:
        """Return the outputs for unrotated images."""
        return super().scores(features)[:, :: self._per_class]


def _rotate(images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return rotate_four(images, labels)
