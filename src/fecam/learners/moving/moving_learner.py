"""What methods share whose class means follow the network."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.heads.head import Floats
from fecam.learners.decisions import OldRows
from fecam.learners.exemplar_free.lwf import LwF
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    class_means,
    features_of,
    labels_of,
)
from fecam.learners.mechanisms.moving_means import Drift, move_means
from fecam.learners.task import LearningTask

LWF_WEIGHT = 10.0
"""Of the distillation in the code of LDC, ADC and DPCR."""


@dataclass(kw_only=True, eq=False)
class MovingLearner(Learner):
    """A learner that estimates after each task how the means of old classes have moved.

    It has the features of the current images before and after the training. The means that it keeps
    move, and so do those of a head that is put on the features. The mean with the largest cosine
    predicts.
    """

    drift: Drift | None = field(init=False, repr=False, default=None)
    """How class means move, in the order of the classifier's outputs: between a task and the head's
    update."""

    needs_old_network: ClassVar[bool] = True

    @abstractmethod
    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Estimate how class means move.

        Parameters
        ----------
        task : LearningTask
            A later task.
        old, new : array of shape (n, n_features)
            Features of the task's images before and after the training.

        Returns
        -------
        callable
            Means (old classes, n_features) of transformed features, and the transform, to the drift
            of each mean. Classes are in the order of the classifier's outputs.
        """

    def after_task(self, task: LearningTask) -> None:
        """Move the old means, and keep those of the new classes."""
        new = self.features_by(self.network, task)
        statistics = self.kept.setdefault("statistics", {})
        self.drift = None
        if self.old is not None:
            self.drift = self.estimate(task, self.features_by(self.old.network, task), new)
            means = statistics["means"].double().numpy()
            moved = means + self.drift(means, lambda features: features)
            statistics["means"] = torch.from_numpy(moved).float()
        append_rows(statistics, "means", class_means(new, labels_of(task), task.new))
        if self.head is None:
            self.drift = None

    def features_by(self, network: nn.Module, task: LearningTask) -> Floats:
        """Return the features of a task's images by a network, in double precision.

        Parameters
        ----------
        network : torch.nn.Module
            The network, or that before the task.
        task : LearningTask
            The task.

        Returns
        -------
        array of shape (n, n_features)
            A row per readable image.
        """
        return features_of(network, task.images, self.device).astype(np.float64)

    def update_head(self, task: LearningTask) -> None:
        """Move the old means of the head by the same estimate, and teach it the new classes."""
        if (drift := self.drift) is not None:
            by_label = np.argsort(task.old)  # the order of the head's classes
            by_output = np.argsort(by_label)
            move_means(
                self.head,
                lambda means, transform: drift(means[by_output], transform)[by_label],
            )
        self.drift = None
        super().update_head(task)

    def scores(self, features: Tensor) -> Tensor:
        """Return the cosines to the means."""
        means = self.kept["statistics"]["means"].to(features.device)
        return functional.linear(functional.normalize(features), functional.normalize(means))


@dataclass(kw_only=True, eq=False)
class MovingLwF(MovingLearner, LwF):
    """A learner that is trained as LwF, and whose class means follow the network.

    All such learners with equal options train alike, so that they share checkpoints of every task.
    They differ in what they do between two tasks.

    Parameters
    ----------
    weight : float
        Of the distillation of old outputs, 10 in public code.
    temperature : float
        Of the distillation.
    """

    old_rows: OldRows = "included"
    weight: float = LWF_WEIGHT
