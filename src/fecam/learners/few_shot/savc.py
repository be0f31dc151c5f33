"""SAVC without contrastive learning: transforms of images as classes, also in the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor, nn

from fecam.errors import TrainingError
from fecam.learners.few_shot.frozen_learner import FrozenLearner
from fecam.learners.mechanisms.class_statistics import class_means, features_of, labels_of
from fecam.learners.mechanisms.label_multiplication import (
    TRANSFORMS,
    Transform,
    TransformedFeatures,
    multiply,
)
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks
from fecam.validation import check_choice


@dataclass(kw_only=True, eq=False)
class SAVC(FrozenLearner):
    r"""Semantic-aware virtual classes (Song et al., CVPR 2023), without contrastive learning.

    .. math:: L = \mathrm{CE}(s \cos(f(t_k(x)), W), m y + k), \qquad
        z_c = \frac{1}{m} \sum_k s \cos(f(t_k(x)), w_{mc+k})

    over m transforms :math:`t_k`, each of which makes a class of its own from a class. The rows of
    later classes are the means of their transformed images, and a prediction averages over all
    transforms of the image. The published loss also has a contrastive part with a momentum encoder
    and a queue, which is left out here.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    transforms : {"rotation2", "rotation4", "rotation-color12", "none"}
        Turns by 0 and 180 degrees, as for CIFAR-100 and CUB-200; by quarters; quarters with three
        orders of the color channels, as for miniImageNet. Rotations confuse letters and digits.
    """

    transforms: str = "rotation2"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("transforms", self.transforms, TRANSFORMS, error=TrainingError)

    @property
    def _each(self) -> Sequence[Transform]:
        return TRANSFORMS[self.transforms]

    def n_outputs(self, n_classes: int) -> int:
        """Return an output per class and transform."""
        return n_classes * len(self._each)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        return {**super().first_task_settings(), "transforms": self.transforms}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the multiplication of the batch."""

        def transform(images: Tensor, labels: Tensor, _: Generator) -> tuple[Tensor, Tensor]:
            return multiply(images, labels, self._each)

        return Hooks(batch=transform if len(self._each) > 1 else None)

    def feature_network(self) -> nn.Module:
        """Return the network of all transforms; a head gets the features of the image alone."""
        return self.network if self.head is not None else self._transformed()

    def _transformed(self) -> nn.Module:
        return TransformedFeatures(self.network, self._each)

    def prototypes(self, task: LearningTask) -> Tensor:
        """Return the mean per class and transform."""
        features = features_of(self._transformed(), task.images, self.device)
        means = class_means(features, labels_of(task), task.new)
        return means.reshape(-1, self.network.n_features)

    def scores(self, features: Tensor) -> Tensor:
        """Return the mean over transforms of the cosines to their rows."""
        m = len(self._each)
        by_transform = features.unflatten(1, (m, -1)).unbind(1)
        logits = [super(SAVC, self).scores(x)[:, k::m] for k, x in enumerate(by_transform)]
        return sum(logits[1:], start=logits[0]) / m
