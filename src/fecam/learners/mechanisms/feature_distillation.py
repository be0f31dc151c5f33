"""Feature distillation: distances between new and old features of the same images.

Features are matrices (n, d). The caller computes the old ones without gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PUBLISHED_SHAPE = (256, 512)
"""Rows and columns of the features for which PASS and IL2A publish their weight of 10: four
rotations of 64 images, and ResNet-18 at full width."""


def sample_norms(features: Tensor, old: Tensor) -> Tensor:
    r"""Return :math:`\|f_i - f_i^{old}\|` per sample; where it is 0, so is its gradient.

    >>> sample_norms(torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.zeros(2, 2)).round(decimals=2)
    tensor([5.0000, 1.4100])
    """
    return torch.linalg.vector_norm(features - old, dim=1)


def frobenius_norm(features: Tensor, old: Tensor) -> Tensor:
    r"""Return :math:`\|F - F^{old}\|_F`, one norm for the whole batch.

    It grows with the square root of the batch and of the width: see `frobenius_weight`.
    """
    return torch.linalg.vector_norm(features - old)


def frobenius_weight(
    weight: float, features: Tensor, published: tuple[int, int] = PUBLISHED_SHAPE
) -> float:
    r"""Return the weight of `frobenius_norm` that acts as ``weight`` did at the published shape.

    :math:`w \sqrt{n_0 d_0 / (n d)}`: the product of weight and norm then depends on the mean square
    of the differences only.

    >>> round(frobenius_weight(10, torch.zeros(128, 128)), 1)
    28.3
    """
    return weight * math.sqrt(math.prod(published) / features.numel())


def mean_square(features: Tensor, old: Tensor) -> Tensor:
    """Return the mean squared difference over samples and features."""
    return (features - old).square().mean()


class Projector(nn.Sequential):
    """Maps new features to old ones, so that they may differ by more than noise: d - hidden - d.

    >>> Projector(8)(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """

    def __init__(self, n_features: int, hidden: int | None = None) -> None:
        hidden = hidden or 4 * n_features
        super().__init__(nn.Linear(n_features, hidden), nn.GELU(), nn.Linear(hidden, n_features))


def projected_mean_square(projector: nn.Module, features: Tensor, old: Tensor) -> Tensor:
    """Return `mean_square` between projected new features and old ones."""
    return mean_square(projector(features), old)
