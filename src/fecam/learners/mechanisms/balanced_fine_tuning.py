"""Balanced fine-tuning: a second phase of training with the same number of images per class."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fecam.learners.mechanisms.freezing import freeze_network
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Loss
from fecam.training.loop import train

if TYPE_CHECKING:
    from fecam.learners.learner import Learner


def balanced_rows(rows: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Return as many random rows of each class as the smallest class has.

    >>> labels = torch.tensor([0, 0, 0, 1, 1])
    >>> labels[balanced_rows(torch.arange(5), labels, 0)].tolist()
    [0, 0, 1, 1]
    """
    rng, present = np.random.default_rng(seed), labels[rows]
    groups = [rows[present == label].numpy() for label in present.unique()]
    count = min(map(len, groups))
    chosen = [np.sort(rng.permutation(group)[:count]) for group in groups]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


def fine_tune_balanced(
    learner: Learner, task: LearningTask, epochs: int, learning_rate: float, loss: Loss
) -> None:
    """Train the classifier on the same number of images per class; the network is frozen.

    The rest of the plan is that of the task, with a cosine schedule.
    """
    images = copy.copy(task.images)
    images.rows = balanced_rows(images.rows, images.labels, task.plan.seed)
    plan = replace(
        task.plan, epochs=epochs, learning_rate=learning_rate, warmup_epochs=0, milestones=()
    )
    hooks = Hooks(loss=loss, epoch_start=[freeze_network(learner.network)])
    for _ in train(
        learner.network, learner.classifier, images, plan, classes=learner.classes, hooks=hooks,
        device=learner.device,
    ):  # fmt: skip
        pass
