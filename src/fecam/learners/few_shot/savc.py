"""SAVC: transforms of images as classes, also in the prediction, and contrastive learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
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
from fecam.learners.mechanisms.momentum_queue import (
    MomentumQueue,
    labeled_contrast,
    small_crops,
)
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_int, check_number

CONTRAST = (
    "global_weight", "local_weight", "dimension", "queue", "momentum", "temperature", "crops",
    "crop_size", "crop_area",
)  # fmt: skip
"""The options of the contrastive losses."""


@dataclass(kw_only=True, eq=False)
class SAVC(FrozenLearner):
    r"""Semantic-aware virtual classes (Song et al., CVPR 2023).

    .. math:: L = \mathrm{CE}(s \cos(f(t_k(x)), W), m y + k) + \alpha L_g + \beta L_l, \qquad
        z_c = \frac{1}{m} \sum_k s \cos(f(t_k(x)), w_{mc+k})

    over m transforms :math:`t_k`, each of which makes a class of its own from a class. The rows of
    later classes are the means of their transformed images, and a prediction averages over all
    transforms of the image. :math:`L_g` contrasts an image with the key that a slow copy of the
    network makes of another view of it, and with a queue of earlier keys; :math:`L_l` does so with
    small crops of the image. Positive are keys of the same class and transform.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    transforms : {"rotation2", "rotation4", "rotation-color12", "identity"}
        Turns by 0 and 180 degrees, as for CIFAR-100 and CUB-200; by quarters; quarters with three
        orders of the color channels, as for miniImageNet. Rotations confuse letters and digits.
    contrast : bool
        Whether there are the two contrastive losses, which make an epoch about four times as long.
    global_weight, local_weight : float
        :math:`\alpha` and :math:`\beta`, 0.2 and 0.8 in the authors' code.
    dimension, queue, momentum, temperature
        Of the projection, 32 in the authors' code for CIFAR-100 and 128 for the others; keys in the
        queue, 8192; of the slow copy, 0.995 (0.999); and of the loss, 0.07.
    crops : int
        Small crops per image, 4 in the authors' code.
    crop_size : float
        Their side as a share of the image's, 18 / 32 in the authors' code for CIFAR-100.
    crop_area : (float, float)
        The range of their share of its area, 0.2 to 0.7 in the authors' code for CIFAR-100. Theirs
        also overlap the key; here they are anywhere.
    """

    transforms: str = "rotation2"
    contrast: bool = True
    global_weight: float = 0.2
    local_weight: float = 0.8
    dimension: int = 32
    queue: int = 8192
    momentum: float = 0.995
    temperature: float = 0.07
    crops: int = 4
    crop_size: float = 0.5625
    crop_area: tuple[float, float] = (0.2, 0.7)

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("transforms", self.transforms, TRANSFORMS, error=TrainingError)
        if not isinstance(self.contrast, bool):
            raise TrainingError(f"contrast={self.contrast!r} must be a bool.")
        self.crop_area = check_range("crop_area", self.crop_area)
        check_number("global_weight", self.global_weight, error=TrainingError)
        check_number("local_weight", self.local_weight, error=TrainingError)
        check_number("momentum", self.momentum, maximum=1, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)
        check_number("crop_size", self.crop_size, above=0, maximum=1, error=TrainingError)
        for name in ("dimension", "queue", "crops"):
            check_int(name, getattr(self, name), error=TrainingError)

    @property
    def _each(self) -> Sequence[Transform]:
        return TRANSFORMS[self.transforms]

    def n_outputs(self, n_classes: int) -> int:
        """Return an output per class and transform."""
        return n_classes * len(self._each)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        own = {"transforms": self.transforms}
        if self.contrast:
            own |= {name: getattr(self, name) for name in CONTRAST}
        return {**super().first_task_settings(), **own}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the multiplication of the batch, and the contrastive losses."""
        if self.contrast and task.first:
            return self._contrast_hooks(task)

        def transform(images: Tensor, labels: Tensor, _: Generator) -> tuple[Tensor, Tensor]:
            return multiply(images, labels, self._each)

        return Hooks(batch=transform if len(self._each) > 1 else None)

    def _contrast_hooks(self, task: LearningTask) -> Hooks:
        """Return hooks with two views: one is trained on, the slow copy makes keys of the other."""
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            slow = MomentumQueue(self.network, self.dimension, self.queue, self.momentum)
        size = max(1, round(self.crop_size * task.images.preprocessing.size))
        others: list[Tensor] = []  # the second view of the current batch

        def transform(images: Tensor, labels: Tensor, _: Generator) -> tuple[Tensor, Tensor]:
            images, labels = multiply(images, labels, self._each)
            half = len(images) // 2
            others[:] = [images[half:]]
            return images[:half], labels[:half]

        def contrast(step: Step) -> Tensor:
            keys = slow.keys(others[0])
            crops = [
                small_crops(step.images, size, self.crop_area, step.generator)
                for _ in range(self.crops)
            ]
            near = slow.queries(step.network(torch.cat(crops)))
            same = slow.queries(step.features)
            options = (step.labels, keys, slow, self.temperature)
            loss = self.global_weight * labeled_contrast(same, *options)
            loss = loss + self.local_weight * labeled_contrast(near, *options)
            others[:] = [keys]
            return loss

        def update(step: Step) -> None:
            slow.follow(step.network)
            slow.enqueue(others[0], step.labels)

        return Hooks(
            views=2,
            batch=transform,
            heads={"contrast": slow},
            losses={"contrast": contrast},
            updated=[update],
        )

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


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Return a range of shares, or raise."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TrainingError(f"{name}={value!r} must be two shares, as (0.2, 0.7).")
    low, high = (check_number(name, x, above=0, maximum=1, error=TrainingError) for x in value)
    if low > high:
        raise TrainingError(f"{name}={value!r} must be in increasing order.")
    return low, high
