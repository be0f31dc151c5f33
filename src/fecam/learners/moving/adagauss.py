"""AdaGauss: means and covariances follow an adapter network; features may not collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    check_samples,
    class_covariances,
    labels_of,
)
from fecam.learners.mechanisms.extra_rotations import (
    first_outputs,
    rotate_apart,
    with_rotations,
)
from fecam.learners.mechanisms.feature_adapter import (
    CLIP,
    HIDDEN,
    anti_collapse,
    sampled_statistics,
    trained_adapter,
)
from fecam.learners.mechanisms.feature_distillation import Projector, projected_mean_square
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.moving.moving_learner import MovingLearner
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_int, check_number

SHRINKAGE = 3.0
"""Of the mean variance, added to the variances before the prediction in the authors' code."""


@dataclass(kw_only=True, eq=False)
class AdaGauss(MovingLearner):
    r"""Task-recency bias strikes back (Rypesc et al., NeurIPS 2024).

    .. math:: L = \mathrm{CE}(z_{new}, y) + \lambda \frac{1}{nd} \|g(F) - F^{old}\|^2
        - \frac{\gamma}{d} \sum_j \min(L_{jj}, 1), \quad L L^T = \mathrm{cov}(F)

    with a projector g per task. After it an adapter h is trained on the current images,
    :math:`\min_h \|h(F^{old}) - F\|^2` with the same last term, and the statistics of old classes
    become those of :math:`h(x), x \sim N(\mu_c, S_c)`. The class with the smallest Mahalanobis
    distance predicts, at unit length, with :math:`S_c + 3 \bar\sigma^2 I` as a correlation matrix.

    Parameters
    ----------
    weight : float
        :math:`\lambda`, 10 in the authors' code.
    collapse : float
        :math:`\gamma`, 1 in the authors' code.
    bottleneck : int
        Features after a linear layer behind the network, 64 in the authors' code.
    samples : int
        Samples per class, 10000 in the authors' code.
    adapter_epochs : int, optional
        By default half of those of the task, as in the authors' code.
    rotations : bool
        Whether rotated images are classes of their own in the first task, as in the authors' code.
    """

    weight: float = 10.0
    collapse: float = 1.0
    bottleneck: int = 64
    samples: int = 10_000
    adapter_epochs: int | None = None
    rotations: bool = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("weight", self.weight, error=TrainingError)
        check_number("collapse", self.collapse, error=TrainingError)
        check_int("bottleneck", self.bottleneck, 2, error=TrainingError)
        check_int("samples", self.samples, 2, error=TrainingError)
        if self.adapter_epochs is not None:
            check_int("adapter_epochs", self.adapter_epochs, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class with one image, or batches too small for a covariance."""
        check_samples(labels_of(task), task.new)
        batches = math.ceil(len(task.images) / task.plan.batch_size)
        smallest = len(task.images) // batches
        if self.collapse and smallest <= self.bottleneck:
            raise TrainingError(
                f"a batch of task {task.index + 1} has {smallest} images, too few for the "
                f"covariance of {self.bottleneck} features. Set bottleneck to fewer than that, or "
                "a larger batch_size in the recipe, or collapse=0."
            )

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the recipe, with gradients clipped as in the authors' code."""
        plan = super().plan_for(index)
        return plan if plan.clip is not None else replace(plan, clip=CLIP)

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return the network with the linear layer behind it."""
        return Bottleneck(self.recipe.network(), self.bottleneck)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        rotations = {"extra outputs": "rotations"} if self.rotations else {}
        return {"bottleneck": self.bottleneck, "collapse": self.collapse, **rotations}

    def before_task(self, task: LearningTask) -> None:
        """Add the outputs of rotated images to the first task."""
        if task.first and self.rotations:
            self.classifier = with_rotations(self.classifier, task.plan.seed)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the loss against collapse, and the distillation in later tasks."""

        def against_collapse(step: Step) -> Tensor:
            return self.collapse * anti_collapse(step.features.float())

        losses = {"collapse": against_collapse} if self.collapse else {}
        if self.old is None:
            batch = rotate_apart(task.n_classes) if self.rotations else None
            return Hooks(losses=losses, batch=batch)
        old = self.old
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            projector = Projector(self.bottleneck, HIDDEN)

        def distillation(step: Step) -> Tensor:
            features = step.features.float()
            return self.weight * projected_mean_square(projector, features, old.features(step))

        return Hooks(
            losses={**losses, "distillation": distillation}, heads={"projector": projector}
        )

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Sample the statistics anew through an adapter, and return the drift of the means."""
        epochs = self.adapter_epochs or max(1, task.plan.epochs // 2)
        seed = task.plan.seed

        def adapter(before: Floats, after: Floats) -> nn.Module:
            return trained_adapter(before, after, epochs=epochs, seed=seed, collapse=self.collapse)

        statistics = self.kept["statistics"]
        moved, statistics["covariances"] = sampled_statistics(
            adapter(old, new), statistics["means"], statistics["covariances"], self.samples, seed
        )

        def drift(means: Floats, transform: Transform) -> Floats:
            before, after = transform(old), transform(new)
            if before is old:
                return np.asarray(moved.double().numpy() - means)
            trained = adapter(before, after)
            with torch.inference_mode():  # of the means alone: a head has no samples
                rows = trained(torch.from_numpy(means).float())
            return np.asarray(rows.double().numpy() - means)

        return drift

    def after_task(self, task: LearningTask) -> None:
        """Move the statistics, and keep those of the new classes."""
        if task.first and self.rotations:
            self.classifier = first_outputs(self.classifier, task.n_classes)
        super().after_task(task)
        covariances = class_covariances(self.features(task.images), labels_of(task), task.new)
        append_rows(self.kept["statistics"], "covariances", covariances)

    def scores(self, features: Tensor) -> Tensor:
        """Return minus the Mahalanobis distances at unit length."""
        means, covariances = (
            self.kept["statistics"][name].to(features.device).double()
            for name in ("means", "covariances")
        )
        variances = covariances.diagonal(dim1=1, dim2=2)
        added = (SHRINKAGE * variances.mean(1)).clamp(min=torch.finfo(torch.float32).tiny)
        shrunk = covariances + torch.diag_embed(added[:, None].expand_as(variances))
        scales = shrunk.diagonal(dim1=1, dim2=2).sqrt()
        inverses = torch.linalg.inv(shrunk / (scales[:, :, None] * scales[:, None, :]))
        unit, centers = functional.normalize(features.double()), functional.normalize(means)
        distances = []
        for center, inverse in zip(centers, inverses, strict=True):
            d = unit - center
            distances.append(((d @ inverse) * d).sum(1))
        return -torch.stack(distances, 1)


class Bottleneck(nn.Module):
    """A network and a linear layer to fewer features.

    The authors' 1 x 1 convolution before the pooling is the same function.

    >>> from fecam.encoders.resnet import ResNet18
    >>> Bottleneck(ResNet18(2), 4)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 4])
    """

    def __init__(self, network: nn.Module, n_features: int) -> None:
        super().__init__()
        self.network = network
        self.n_features = n_features
        self.layer = nn.Linear(int(network.n_features), n_features)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        features: Tensor = self.layer(self.network(images))
        return features
