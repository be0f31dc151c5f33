"""One task while it is learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fecam.data.dataset import Dataset
from fecam.training.images import TrainingImages
from fecam.training.plan import TrainingPlan


@dataclass(frozen=True, eq=False)
class LearningTask:
    """The task that a learner is handed, and the classes before it."""

    index: int
    """From 0."""
    data: Dataset
    """The images and labels of this task and of no other."""
    images: TrainingImages
    """What the network is trained on: these images, decoded."""
    old: tuple[int, ...]
    """The labels of earlier tasks, in the order of the classifier's outputs."""
    new: tuple[int, ...]
    """The labels of this task, in the same order."""
    plan: TrainingPlan

    @property
    def first(self) -> bool:
        """Whether no task came before."""
        return not self.old

    @property
    def n_old(self) -> int:
        """The number of old classes."""
        return len(self.old)

    @property
    def n_classes(self) -> int:
        """The number of classes after this task."""
        return len(self.old) + len(self.new)

    @property
    def positions(self) -> Tensor:
        """The output index of the class of each row of ``images``."""
        index = {label: i for i, label in enumerate((*self.old, *self.new))}
        return torch.tensor([index[label] for label in self.images.labels.tolist()])
