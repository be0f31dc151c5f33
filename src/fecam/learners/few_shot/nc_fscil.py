"""NC-FSCIL: features are pulled towards the fixed vertices of a simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fecam.errors import TrainingError
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import (
    append_rows,
    class_means,
    features_of,
    labels_of,
)
from fecam.learners.mechanisms.cosine_prototypes import check_images, fix_scale, set_rows
from fecam.learners.mechanisms.freezing import freeze_network
from fecam.learners.mechanisms.simplex import NeckedNetwork, dot_regression, simplex_vertices
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class NCFSCIL(Learner):
    r"""Neural collapse inspired alignment (Yang et al., ICLR 2023).

    .. math:: L = \frac{\lambda}{2} \operatorname{mean}_i (u(g(f_i))^T m_{y_i} - 1)^2

    where m are the vertices of a simplex, fixed for all classes that will ever come, f the features
    of the network and g a perceptron, the neck; :math:`u(x) = x / \lVert x \rVert`. Later tasks
    train the neck alone, on their images and on the mean feature of each earlier class. The
    prediction is the vertex with the largest cosine.

    Parameters
    ----------
    classes_to_come : int
        The number of all classes that may come.
    dimension : int
        Outputs of the neck, 512 in the authors' code; at least ``classes_to_come``.
    weight : float
        :math:`\lambda`, 10 in the authors' code.
    """

    classes_to_come: int = 200
    dimension: int = 512
    weight: float = 10.0

    classifier_name: ClassVar[ClassifierName | None] = "cosine"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_int("classes_to_come", self.classes_to_come, 2, error=TrainingError)
        check_int("dimension", self.dimension, error=TrainingError)
        check_number("weight", self.weight, above=0, error=TrainingError)
        if self.dimension < self.classes_to_come:
            raise TrainingError(
                f"dimension={self.dimension} must be at least "
                f"classes_to_come={self.classes_to_come}: a simplex has no more vertices."
            )

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class without a readable image, or more classes than vertices."""
        check_images(task)
        if task.n_classes > self.classes_to_come:
            raise TrainingError(
                f"the task brings the number of classes to {task.n_classes}, more than "
                f"classes_to_come={self.classes_to_come}. Start with a larger number."
            )

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return the network with its neck."""
        return NeckedNetwork(self.recipe.network(), self.dimension)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        names = ("classes_to_come", "dimension", "weight")
        return {"loss": "NCFSCIL", **{name: getattr(self, name) for name in names}}

    def before_task(self, task: LearningTask) -> None:
        """Set the rows of the classifier to vertices, which are not trained."""
        generator = torch.Generator().manual_seed(self.recipe.first.seed)
        vertices = simplex_vertices(self.classes_to_come, self.dimension, generator)
        set_rows(self.classifier, 0, vertices[: task.n_classes])
        fix_scale(self.classifier, 1.0)
        self.classifier.requires_grad_(False)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the loss; in later tasks also freeze the network below the neck."""

        def loss(step: Step) -> Tensor:
            features, labels = step.features, step.labels
            if not task.first:
                means = self.kept["statistics"]["means"].to(features.device)
                features = torch.cat([features, step.network.neck(means)])
                old = torch.arange(len(means), device=labels.device)
                labels = torch.cat([labels, old])
            return self.weight * dot_regression(features, step.classifier.weight[labels])

        start = [] if task.first else [freeze_network(self.network.backbone)]
        return Hooks(loss=loss, epoch_start=start)

    def after_task(self, task: LearningTask) -> None:
        """Keep the mean feature of each new class, below the neck."""
        features = features_of(self.network.backbone, task.images, self.device)
        means = class_means(features, labels_of(task), task.new)
        append_rows(self.kept.setdefault("statistics", {}), "means", means)

    def feature_network(self) -> nn.Module:
        """Return the network with its neck; a head gets features below it, which do not move."""
        backbone: nn.Module = self.network.backbone
        return self.network if self.head is None else backbone
