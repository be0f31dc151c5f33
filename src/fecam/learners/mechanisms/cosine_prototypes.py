"""A cosine classifier whose rows become class means, and the margin of its loss."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.mechanisms.class_statistics import Array
from fecam.learners.task import LearningTask
from fecam.training.classifiers import CosineClassifier


def fix_scale(classifier: nn.Module, scale: float) -> None:
    """Set the scale of a cosine classifier, which is then not trained."""
    with torch.no_grad():
        classifier.scale.fill_(scale)
    classifier.scale.requires_grad_(False)


def set_rows(classifier: nn.Module, start: int, rows: Tensor) -> None:
    """Replace rows of a classifier from ``start`` on."""
    with torch.no_grad():
        classifier.weight[start : start + len(rows)] = rows.to(classifier.weight.device)


def check_images(task: LearningTask) -> None:
    """Raise unless each class has a readable image, which a mean needs."""
    present = set(task.images.labels[task.images.rows].tolist())
    for label in task.new:
        if label not in present:
            raise TrainingError(
                f"class {task.data.label_names[label]!r} (label {label}) has no readable image: "
                "its mean needs one. Add images, or leave the class out."
            )


def nearest_to_mean(
    features: Array, labels: NDArray[np.int64], label: int, count: int
) -> NDArray[np.intp]:
    """Return the rows of the ``count`` samples of a class with the largest cosine to its mean."""
    rows = np.flatnonzero(labels == label)
    own = features[rows].astype(np.float64)
    cosines = own @ own.mean(0) / np.maximum(np.linalg.norm(own, axis=1), 1e-12)
    chosen: NDArray[np.intp] = np.sort(rows[np.argsort(-cosines, kind="stable")[:count]])
    return chosen


def cosface_loss(logits: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    r"""Return the cross-entropy of :math:`s (\cos_c - m [c = y])`; ``logits`` are s cos.

    >>> logits = torch.tensor([[3.0, 1.0]])
    >>> cosface_loss(logits, torch.tensor([0]), scale=4.0, margin=0.5)  # of 3 - 2 and 1
    tensor(0.6931)
    """
    penalty = scale * margin * functional.one_hot(labels, logits.shape[1])
    return functional.cross_entropy(logits.float() - penalty, labels)


class ProjectedClassifier(nn.Module):
    """A cosine classifier on a projection of the features, both dropped after training."""

    def __init__(self, n_features: int, hidden: int, classes: int, *, scale: float) -> None:
        super().__init__()
        self.projector = nn.Sequential(
            nn.Linear(n_features, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden, affine=False),
        )
        self.cosine = CosineClassifier(hidden, classes, scale=scale)
        fix_scale(self.cosine, scale)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, one row per row of features."""
        logits: Tensor = self.cosine(self.projector(features))
        return logits
