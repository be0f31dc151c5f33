"""EFC: features move freely where the classifier does not see it; class means follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Generator, Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.adam_learner import AdamLearner
from fecam.learners.decisions import BatchNorm, OldRows
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    check_samples,
    class_covariances,
    labels_of,
)
from fecam.learners.mechanisms.drift import check_sigma
from fecam.learners.mechanisms.extra_rotations import (
    first_outputs,
    rotate_apart,
    with_rotations,
)
from fecam.learners.mechanisms.feature_metric import (
    feature_metric,
    metric_distance,
    metric_weights,
)
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.mechanisms.prototype_replay import (
    covariance_factors,
    draw_classes,
    normal_samples,
)
from fecam.learners.moving.moving_learner import MovingLearner
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice, check_number

Variant = Literal["efc", "efc++"]
PUBLISHED_RATE, PUBLISHED_EPOCHS = 1e-4, 100
"""Of later tasks, in the authors' code."""
REBALANCING_EPOCHS, REBALANCING_RATE, REBALANCING_BATCH = 50, 1e-3, 256
"""Of EFC++, in the authors' code."""
JITTER = 1e-5
"""Added to the variances of samples, in the authors' code."""


@dataclass(kw_only=True, eq=False)
class EFC(MovingLearner, AdamLearner):
    r"""Elastic feature consolidation (Magistri et al., ICLR 2024), and EFC++.

    .. math:: L = \mathrm{CE}(z_{new}, y) + \mathrm{CE}(z, \hat y)
        + \frac1B \sum_i d_i^T (\lambda E + 0.1 I) d_i, \quad d_i = f_i - f_i^{old}

    with the metric E of `feature_metric` from the last task's images. The second term is over all
    outputs of as many samples as the batch has: of :math:`N(\mu_c, S_c)` of old classes, and of
    current images, in proportion to the numbers of classes. EFC++ leaves it out, and afterwards
    trains the classifier alone on current images and as many samples of each old class as it had
    images. Means follow the drift of current images, weighted by E (`metric_weights`); covariances
    stay. The largest output predicts.

    Parameters
    ----------
    variant : {"efc", "efc++"}
        Whether old classes are replayed while the network is trained, or afterwards.
    weight : float
        :math:`\lambda`, 10 in the authors' code.
    sigma : float
        The width of the weights of the drift, 0.2 in the authors' code.
    rotations : bool
        Whether rotated images are classes of their own in the first task, as in the authors' code.
    optimizer : {"adam", "recipe"}
        Of later tasks: Adam as in the authors' code, or the optimizer of the recipe.
    learning_rate : float, optional
        Of Adam; by default the authors' 10^-4 for 100 epochs, larger for fewer.
    weight_decay : float
        Of Adam, 2e-4 in the authors' code.
    """

    old_rows: OldRows = "included"
    batch_norm: BatchNorm = "frozen"
    variant: Variant = "efc"
    weight: float = 10.0
    sigma: float = 0.2
    rotations: bool = True

    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("variant", self.variant, get_args(Variant), error=TrainingError)
        check_number("weight", self.weight, error=TrainingError)
        check_sigma(self.sigma)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class with one image."""
        check_samples(labels_of(task), task.new)

    def published_rate(self, plan: TrainingPlan) -> float:
        """Return the published rate of later tasks, larger for fewer epochs."""
        return PUBLISHED_RATE * math.sqrt(max(1, PUBLISHED_EPOCHS / plan.epochs))

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the recipe, in later tasks with Adam."""
        return super().plan_for(index) if index else MovingLearner.plan_for(self, index)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Name the rotations, if there are any."""
        return {"extra outputs": "rotations"} if self.rotations else {}

    def before_task(self, task: LearningTask) -> None:
        """Add the outputs of rotated images to the first task."""
        if task.first and self.rotations:
            self.classifier = with_rotations(self.classifier, task.plan.seed)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the rotations of the first task, or the two more losses of a later one."""
        if task.first:
            return Hooks(batch=rotate_apart(task.n_classes) if self.rotations else None)
        statistics = {name: x.to(self.device) for name, x in self.kept["statistics"].items()}
        metric = self.kept["metric"]["metric"].to(self.device)
        old = self.old
        assert old is not None

        def distance(step: Step) -> Tensor:
            return metric_distance(step.features, old.features(step), metric, self.weight)

        if self.variant == "efc++":
            return Hooks(losses={"metric": distance})
        factors = _factors(statistics["covariances"])

        def replay(step: Step) -> Tensor:
            count = round(len(step.labels) * task.n_old / task.n_classes)
            labels = draw_classes(count, task.n_old, step.generator)
            samples = normal_samples(
                statistics["means"], factors, labels.to(factors.device), step.generator
            )
            chosen = torch.randperm(len(step.labels), generator=step.generator)[count:]
            logits = torch.cat([step.classifier(samples), step.logits[chosen]]).float()
            return functional.cross_entropy(
                logits, torch.cat([labels.to(logits.device), step.labels[chosen]])
            )

        return Hooks(losses={"metric": distance, "replay": replay})

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Return the drift of current images, weighted by the metric."""
        means, metric = (
            self.kept[kind][name].double().numpy()
            for kind, name in (("statistics", "means"), ("metric", "metric"))
        )
        weights = metric_weights(means, old, metric, self.sigma)

        def drift(means: Floats, transform: Transform) -> Floats:
            moved: Floats = weights @ (transform(new) - transform(old))
            return moved

        return drift

    def after_task(self, task: LearningTask) -> None:
        """Move the means, keep the statistics of new classes, and the metric of the classifier."""
        if task.first and self.rotations:
            self.classifier = first_outputs(self.classifier, task.n_classes)
        super().after_task(task)
        features, labels = self.features(task.images), labels_of(task)
        statistics = self.kept["statistics"]
        append_rows(statistics, "covariances", class_covariances(features, labels, task.new))
        counts = torch.tensor([int((labels == label).sum()) for label in task.new])
        append_rows(statistics, "counts", counts)
        if self.variant == "efc++" and not task.first:
            self._rebalance(task, torch.from_numpy(features))
        with torch.no_grad():
            logits = self.classifier(torch.from_numpy(features).to(self.device))
            metric = feature_metric(logits, self.classifier.weight)
        self.kept["metric"] = {"metric": metric.cpu()}

    def _rebalance(self, task: LearningTask, features: Tensor) -> None:
        """Train the classifier on current features and samples of old classes."""
        positions = task.positions[task.images.rows]
        statistics = self.kept["statistics"]
        factors = _factors(statistics["covariances"])
        old = torch.arange(task.n_old).repeat_interleave(statistics["counts"][: task.n_old])
        generator = Generator().manual_seed(task.plan.seed)
        optimizer = torch.optim.SGD(
            self.classifier.parameters(),
            lr=REBALANCING_RATE,
            momentum=0.9,
            weight_decay=task.plan.weight_decay,
        )
        for _ in range(REBALANCING_EPOCHS):
            samples = normal_samples(statistics["means"], factors, old, generator)
            inputs, labels = torch.cat([features, samples]), torch.cat([positions, old])
            for rows in torch.randperm(len(labels), generator=generator).split(REBALANCING_BATCH):
                logits = self.classifier(inputs[rows].to(self.device))
                loss = functional.cross_entropy(logits, labels[rows].to(self.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def scores(self, features: Tensor) -> Tensor:
        """Return the outputs of the classifier."""
        scores: Tensor = self.classifier.eval()(features)
        return scores


def _factors(covariances: Tensor) -> Tensor:
    identity = torch.eye(covariances.shape[1], device=covariances.device)
    return covariance_factors(covariances + JITTER * identity)
