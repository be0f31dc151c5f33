"""Statistics of the classes of a task, as tensors whose row c is class c.

Rows are in the order of the classifier's outputs, and those of a new task are appended: a label is
an index into them in every task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fecam.data.dataset import fingerprint_of
from fecam.encoders.torch_runtime import as_features, fingerprint_of_tensors
from fecam.errors import TrainingError
from fecam.learners.mechanisms.branches import Branches
from fecam.learners.task import LearningTask
from fecam.training.images import TrainingImages

Array = NDArray[np.floating]


_REMEMBERED: ContextVar[dict[str, Array] | None] = ContextVar("remembered", default=None)


@contextmanager
def remembered_features() -> Iterator[None]:
    """Within it, the features of the same images by networks with equal weights are computed once.

    For comparisons of learners that are trained alike; all features stay in memory until its end.
    """
    token = _REMEMBERED.set({})
    try:
        yield
    finally:
        _REMEMBERED.reset(token)


def features_of(network: nn.Module, images: TrainingImages, device: torch.device) -> Array:
    """Return the features of images without augmentation, in evaluation mode."""
    if isinstance(network, Branches) and isinstance(network.shared, nn.Identity):
        return np.concatenate([features_of(x, images, device) for x in network.branches], 1)
    if (remembered := _REMEMBERED.get()) is None:
        return _features(network, images, device)
    weights = fingerprint_of_tensors(network.state_dict())
    key = fingerprint_of([weights, images.fingerprint, images.rows.numpy()])
    if key not in remembered:
        remembered[key] = _features(network, images, device)
    return remembered[key]


def _features(network: nn.Module, images: TrainingImages, device: torch.device) -> Array:
    network = network.to(device, memory_format=torch.channels_last).eval()
    with torch.inference_mode():
        batches = [as_features(network(x)) for _, x in images.eval_batches(256, device)]
    return np.concatenate(batches)


def labels_of(task: LearningTask) -> NDArray[np.int64]:
    """Return the labels of the task's readable images."""
    labels: NDArray[np.int64] = np.asarray(task.data.labels)[task.images.rows.numpy()]
    return labels


def class_means(features: Array, labels: NDArray[np.int64], classes: Sequence[int]) -> Tensor:
    """Return the mean per class.

    >>> class_means(np.array([[0.0], [2.0], [5.0]]), np.array([7, 7, 3]), (3, 7))
    tensor([[5.],
            [1.]])
    """
    means = [features[labels == label].mean(0, dtype=np.float64) for label in classes]
    return torch.from_numpy(np.stack(means)).float()


def class_covariances(features: Array, labels: NDArray[np.int64], classes: Sequence[int]) -> Tensor:
    """Return the covariance matrix per class, with the divisor n - 1."""
    check_samples(labels, classes)
    matrices = [np.cov(features[labels == label].T.astype(np.float64)) for label in classes]
    return torch.from_numpy(np.stack([np.atleast_2d(matrix) for matrix in matrices])).float()


def class_variances(features: Array, labels: NDArray[np.int64], classes: Sequence[int]) -> Tensor:
    """Return the variance of each feature per class, with the divisor n - 1."""
    check_samples(labels, classes)
    variances = [features[labels == label].var(0, ddof=1, dtype=np.float64) for label in classes]
    return torch.from_numpy(np.stack(variances)).float()


def check_samples(labels: NDArray[np.int64], classes: Sequence[int]) -> None:
    """Raise unless each class has two samples, which a variance needs."""
    for label in classes:
        if (count := int((labels == label).sum())) < 2:
            raise TrainingError(
                f"class {label} has {count} readable image: its variance needs at least two. Add "
                "images, or choose a learner that keeps means only (ssre, sdc)."
            )


def append_rows(kept: dict[str, Tensor], name: str, rows: Tensor) -> None:
    """Append the statistics of new classes to those of the old ones."""
    kept[name] = torch.cat([kept[name], rows]) if name in kept else rows
