"""ALICE: a margin, mixtures of classes as classes, and two views in the first task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from fecam.errors import TrainingError
from fecam.learners.few_shot.frozen_learner import FrozenLearner
from fecam.learners.mechanisms.class_statistics import class_means, labels_of
from fecam.learners.mechanisms.cosine_prototypes import (
    ProjectedClassifier,
    cosface_loss,
    nearest_to_mean,
)
from fecam.learners.mechanisms.pair_mixup import check_pairs, mix_pairs, n_pairs
from fecam.learners.mechanisms.views import stack_views, unstack_views
from fecam.learners.task import LearningTask
from fecam.training.classifiers import CosineClassifier
from fecam.training.hooks import Hooks
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class ALICE(FrozenLearner):
    r"""Angular penalty and balanced prototypes (Peng et al., ECCV 2022).

    .. math:: L = \mathrm{CE}(s (\cos(P(f), W) - m\, e_y), y)

    over the views of all images, and their mixtures, whose label is a class per pair of classes. P
    is a projector; both P and W are dropped. A prototype of a class is the mean of its images that
    are closest to its mean, as many as the shots of a later class.

    Parameters
    ----------
    scale : float
        s, 30 in the authors' code.
    margin : float
        m, 0.4 in the authors' code.
    mixtures : int
        Mixtures per image, 4 in the authors' code, and none for CUB-200.
    views : int
        Augmentations per image; 2.
    hidden : int
        Outputs of each layer of P, 2048 in the authors' code.
    images_per_prototype : int, optional
        5; None for all images.
    """

    scale: float = 30.0
    margin: float = 0.4
    mixtures: int = 4
    views: int = 2
    hidden: int = 2048
    images_per_prototype: int | None = 5

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_number("margin", self.margin, error=TrainingError)
        check_int("mixtures", self.mixtures, 0, error=TrainingError)
        check_int("views", self.views, error=TrainingError)
        check_int("hidden", self.hidden, error=TrainingError)
        if self.images_per_prototype is not None:
            check_int("images_per_prototype", self.images_per_prototype, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class without a readable image, or a first task of one class."""
        super().check_task(task)
        if task.first and self.mixtures:
            check_pairs(task.n_classes)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        names = ("margin", "mixtures", "views", "hidden")
        own = {name: getattr(self, name) for name in names}
        return {**super().first_task_settings(), **own}

    def before_task(self, task: LearningTask) -> None:
        """Train a projector and its classifier, with an output per pair of classes."""
        if task.first:
            outputs = task.n_classes + (n_pairs(task.n_classes) if self.mixtures else 0)
            with torch.random.fork_rng([]):
                torch.manual_seed(task.plan.seed)
                self.classifier = ProjectedClassifier(
                    self.network.n_features, self.hidden, outputs, scale=self.scale
                )

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the views, the mixtures and the loss with a margin."""

        def mix(images: Tensor, labels: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
            stacked, own = stack_views(images, self.views), labels[: len(labels) // self.views]
            mixed, targets = mix_pairs(
                stacked, own, generator, n_old=0, n_classes=task.n_classes, repeats=self.mixtures
            )
            return unstack_views(mixed, self.views), targets.repeat(self.views)

        return Hooks(
            loss=lambda step: cosface_loss(step.logits, step.labels, self.scale, self.margin),
            views=self.views,
            batch=mix if self.mixtures else None,
        )

    def after_task(self, task: LearningTask) -> None:
        """Drop the projector and its classifier; set the rows of the new classes."""
        if task.first:
            features: int = self.network.n_features
            self.classifier = CosineClassifier(features, task.n_classes, scale=self.scale)
        super().after_task(task)

    def prototypes(self, task: LearningTask) -> Tensor:
        """Return the mean of the images that are closest to the mean, per new class."""
        features, labels = self.features(task.images), labels_of(task)
        count = self.images_per_prototype
        if count is None:
            return class_means(features, labels, task.new)
        means = [
            features[nearest_to_mean(features, labels, label, count)].mean(0) for label in task.new
        ]
        return torch.stack([torch.from_numpy(mean) for mean in means])
