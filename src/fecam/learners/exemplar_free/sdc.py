"""SDC: an embedding without a classifier, and class means that follow its drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.learners.adam_learner import AdamLearner
from fecam.learners.decisions import BatchNorm
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import (
    Array,
    append_rows,
    class_means,
    features_of,
    labels_of,
)
from fecam.learners.mechanisms.drift import check_sigma, semantic_drift
from fecam.learners.mechanisms.feature_distillation import sample_norms
from fecam.learners.mechanisms.metric_learning import metric_importance, triplet_loss
from fecam.learners.mechanisms.moving_means import move_means
from fecam.learners.mechanisms.parameter_penalty import quadratic_penalty, stable_importance
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.training.images import TrainingImages
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice, check_int, check_number

Regularizer = Literal["ft", "lwf", "ewc"]
FirstLoss = Literal["cross-entropy", "triplet"]
WEIGHTS = {"ft": 0.0, "lwf": 1.0, "ewc": 1e7}
"""By regularizer: the tradeoffs in the authors' demo."""
PUBLISHED_BATCH = 32
"""Images over which the authors sum the distillation."""


@dataclass(kw_only=True, eq=False)
class SDC(AdamLearner):
    r"""Semantic drift compensation (Yu et al., CVPR 2020) on E-FT, E-LwF or E-EWC.

    .. math:: L = \frac{1}{|T|} \sum_{(a, p, n) \in T} \max(0, d_{ap} - d_{an} + m) + R, \quad
        R_{LwF} = \frac{\gamma}{2} \, 32 \, \frac1B \sum_i \|f_i - f_i^{old}\|^2, \quad
        R_{EWC} = \frac{\gamma}{2} \sum_j F_j (\theta_j - \theta_j^*)^2

    on embeddings f of unit length, over all triplets T of a batch; F is from the triplet loss.
    After each task the means of old classes move by `semantic_drift`, also those of a head that is
    put on the embeddings. The nearest mean predicts.

    Parameters
    ----------
    regularizer : {"ft", "lwf", "ewc"}
        E-FT, E-LwF or E-EWC.
    weight : float, optional
        :math:`\gamma`; by default the authors' 1 for E-LwF and 10^7 for E-EWC.
    sigma : float
        The width of the kernel of the drift, 0.2 in the authors' demo, which names 0.3 as another
        value; infinity gives all means the same drift.
    compensate : bool
        Whether the means move; without, this is nearest-mean classification with E-FT, E-LwF, ...
    margin : float
        m, 0 in the authors' code.
    first_task : {"cross-entropy", "triplet"}
        The loss of the first task. The authors start from checkpoints that are pre-trained on the
        classes of the first task.
    optimizer : {"adam", "recipe"}
        Of later tasks: Adam as in the authors' code, or the optimizer of the recipe.
    learning_rate : float, optional
        Of Adam, by default 10^-5. The authors' demo has 10^-6 for 51 epochs of batches of 32, their
        default is 10^-4.
    weight_decay : float
        Of Adam, 2e-4 in the authors' code.
    samples : int
        Images of a task for F.
    """

    batch_norm: BatchNorm = "frozen"
    regularizer: Regularizer = "lwf"
    weight: float | None = None
    sigma: float = 0.2
    compensate: bool = True
    margin: float = 0.0
    first_task: FirstLoss = "cross-entropy"
    samples: int = 1000

    needs_old_network = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("regularizer", self.regularizer, get_args(Regularizer), error=TrainingError)
        check_choice("first_task", self.first_task, get_args(FirstLoss), error=TrainingError)
        check_number("margin", self.margin, error=TrainingError)
        check_int("samples", self.samples, error=TrainingError)
        check_sigma(self.sigma)
        if self.weight is not None:
            check_number("weight", self.weight, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a task of one class."""
        if len(task.new) < 2:
            raise TrainingError(
                f"task {task.index + 1} has one class: its triplets need images of another one. "
                "Use tasks of at least two classes, or the learner ft-frozen with head = 'ncm'."
            )

    def published_rate(self, plan: TrainingPlan) -> float:
        """Return a rate between those of the authors' demo and of their default."""
        return 1e-5

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the recipe, in later tasks with Adam."""
        return super().plan_for(index) if index else Learner.plan_for(self, index)

    def first_task_settings(self) -> dict[str, object]:
        """Return what distinguishes the first task from plain cross-entropy."""
        return {"loss": "triplet", "margin": self.margin} if self.first_task == "triplet" else {}

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the triplet loss and the regularizer."""
        if task.first and self.first_task == "cross-entropy":
            return Hooks()
        losses: dict[str, Callable[[Step], Tensor]] = {}
        if self.regularizer == "lwf" and not task.first:
            losses = {"distillation": self._distill}
        elif self.regularizer == "ewc" and not task.first:
            losses = {"penalty": self._penalty(task)}
        return Hooks(loss=self._triplets, losses=losses)

    @property
    def _gamma(self) -> float:
        return WEIGHTS[self.regularizer] if self.weight is None else self.weight

    def _triplets(self, step: Step) -> Tensor:
        return triplet_loss(functional.normalize(step.features), step.labels, self.margin)

    def _distill(self, step: Step) -> Tensor:
        assert self.old is not None
        old = functional.normalize(self.old.features(step))
        squares = sample_norms(functional.normalize(step.features), old).square()
        return self._gamma / 2 * PUBLISHED_BATCH * squares.mean()

    def _penalty(self, task: LearningTask) -> Callable[[Step], Tensor]:
        anchors, importance = (
            {name: value.to(self.device) for name, value in self.kept.get(kind, {}).items()}
            for kind in ("weights of the last task", "importance")
        )
        importance = stable_importance(importance, self._gamma, task.plan.learning_rate)

        def penalty(step: Step) -> Tensor:
            parameters = dict(step.network.named_parameters())
            return self._gamma * quadratic_penalty(parameters, anchors, importance)

        return penalty

    def after_task(self, task: LearningTask) -> None:
        """Move the old means, and keep those of the new classes and the importance of weights."""
        old, new = self._embeddings(task)
        statistics = self.kept.setdefault("statistics", {})
        if old is not None:
            means = statistics["means"].double().numpy()
            drift = semantic_drift(means, old, new, self.sigma)
            statistics["means"] = torch.from_numpy(means + drift).float()
        append_rows(statistics, "means", class_means(new, labels_of(task), task.new))
        if self.regularizer == "ewc":
            self.kept["importance"] = metric_importance(
                self.network,
                task.images,
                Generator().manual_seed(task.plan.seed),
                samples=self.samples,
                batch=PUBLISHED_BATCH,
                margin=self.margin,
                device=self.device,
            )
            self.kept["weights of the last task"] = {
                name: value.detach().clone() for name, value in self.network.named_parameters()
            }

    def _embeddings(self, task: LearningTask) -> tuple[Array | None, Array]:
        """Return the embeddings before and after a task; no old ones if means do not move."""
        networks = [self.network]
        if self.old is not None and self.compensate:
            networks.append(self.old.network)
        new, *old = (_unit(features_of(net, task.images, self.device)) for net in networks)
        return (old[0] if old else None), new

    def update_head(self, task: LearningTask) -> None:
        """Move the old means of the head by the same drift, and teach it the new classes."""
        old, new = self._embeddings(task)
        if old is not None:
            move_means(
                self.head,
                lambda means, transform: semantic_drift(
                    means, transform(old), transform(new), self.sigma
                ),
            )
        super().update_head(task)

    def features(self, images: Dataset | TrainingImages) -> NDArray[np.float32]:
        """Return the embeddings of images, which have unit length.

        Parameters
        ----------
        images : Dataset or TrainingImages
            The images, not augmented.

        Returns
        -------
        array of shape (n, n_features)
            One row per image, in their order.
        """
        return _unit(super().features(images)).astype(np.float32)

    def scores(self, features: Tensor) -> Tensor:
        """Return minus the distances to the means."""
        means = self.kept["statistics"]["means"].to(features.device)
        return -torch.cdist(functional.normalize(features), means)

    def memory(self) -> dict[str, int]:
        """Return the bytes by kind: the classifier is not used after the first task."""
        return {kind: size for kind, size in super().memory().items() if kind != "classifier"}


def _unit(features: Array) -> Array:
    """Return rows of unit length in double precision; a row of zeros stays."""
    values = features.astype(np.float64)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    unit: Array = values / np.where(norms > 0, norms, 1)
    return unit
