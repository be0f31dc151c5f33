"""The nearest mean of exemplars: the rule by which iCaRL predicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fecam.learners.mechanisms.herding import unit_rows


def unit_means(
    features: NDArray[np.floating], labels: NDArray[np.int64], classes: Sequence[int]
) -> Tensor:
    """Return the mean of unit features per class, at unit length.

    >>> unit_means(np.array([[2.0, 0.0], [0.0, 5.0]]), np.array([7, 7]), [7])
    tensor([[0.7071, 0.7071]])
    """
    unit = unit_rows(features)
    means = np.stack([unit[labels == label].mean(0) for label in classes])
    return torch.from_numpy(unit_rows(means)).float()


def nearest_mean_scores(features: Tensor, means: Tensor) -> Tensor:
    """Return the cosine of features and means; the largest is that of the nearest mean."""
    return functional.normalize(features.float(), dim=1) @ means.to(features.device).T
