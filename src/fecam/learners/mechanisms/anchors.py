"""Images that stand for the classes so far, and losses that hold their features (TOPIC)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional

from fecam.learners.mechanisms.class_statistics import Array
from fecam.training.images import TrainingImages

ITERATIONS = 30
"""Of k-means; the anchors need not be exact."""


def choose_anchors(features: Array, count: int, seed: int) -> NDArray[np.intp]:
    """Return the rows nearest to the centroids of k-means on features of unit length, sorted.

    >>> choose_anchors(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), 3, 0).tolist()
    [0, 1, 2]
    """
    unit = _unit(features)
    distinct = len(np.unique(unit, axis=0))
    means = KMeans(min(count, distinct), n_init=1, max_iter=ITERATIONS, random_state=seed)
    means.fit(unit)
    nearest = np.argmax(means.cluster_centers_ @ unit.T - 0.5 * np.sum(unit**2, axis=1), axis=1)
    rows: NDArray[np.intp] = np.unique(nearest)
    return rows


def central_rows(features: Array, labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return per class the row whose feature is nearest to the mean, at unit length."""
    unit, rows = _unit(features), []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        rows.append(own[np.argmin(np.linalg.norm(unit[own] - unit[own].mean(0), axis=1))])
    return np.array(rows, dtype=np.intp)


def pixels_of(images: TrainingImages, rows: Tensor) -> Tensor:
    """Return the center of images as pixels (n, 3, size, size)."""
    _, pixels = next(iter(images.batches([rows])))
    size = images.preprocessing.size
    top, left = ((side - size) // 2 for side in pixels.shape[2:])
    return pixels[:, :, top : top + size, left : left + size].contiguous()


def drift_loss(features: Tensor, before: Tensor) -> Tensor:
    """Return the mean square of the change of anchors at unit length, over all their features.

    >>> import torch
    >>> float(drift_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])))
    1.0
    """
    return (functional.normalize(features, dim=1) - before).square().mean()


def pull_loss(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared distance of features from the mean of their class in the batch."""
    unit = functional.normalize(features.float(), dim=1)
    same = (labels[:, None] == labels).float()
    means = (same / same.sum(1, keepdim=True)) @ unit.detach()
    return (unit - means).square().sum(1).mean()


def push_loss(features: Tensor, others: Tensor, margin: float) -> Tensor:
    """Return the mean square by which features are nearer than a margin to other classes' anchors.

    >>> import torch
    >>> float(push_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 0.5))
    0.0
    """
    unit = functional.normalize(features.float(), dim=1)
    # Not torch.cdist, whose gradient at 0 is not finite.
    distances = (2 - 2 * unit @ others.T).clamp(min=1e-12).sqrt()
    return (margin - distances).clamp(min=0).square().mean()


def _unit(features: Array) -> Array:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit: Array = np.asarray(features, np.float64) / np.maximum(lengths, 1e-12)
    return unit
