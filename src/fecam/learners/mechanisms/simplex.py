"""A fixed classifier whose rows are the vertices of a simplex, and a neck that features go through.

The vertices have unit length and the same angle between each two: the arrangement that features of
balanced classes converge to (neural collapse).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional


def simplex_vertices(count: int, dimension: int, generator: Generator) -> Tensor:
    r"""Return K unit vectors with cosines of :math:`-1 / (K - 1)`, as rows.

    :math:`\sqrt{K / (K - 1)}\, U (I - 1 1^T / K)` with random orthonormal columns U; the dimension
    is at least K.
    """
    columns, _ = torch.linalg.qr(torch.randn(dimension, count, generator=generator).double())
    centered = torch.eye(count, dtype=torch.float64) - 1 / count
    return (math.sqrt(count / (count - 1)) * columns @ centered).T.float().contiguous()


def dot_regression(features: Tensor, vertices: Tensor) -> Tensor:
    r"""Return the mean of :math:`(u(f_i)^T m_i - 1)^2 / 2`: 0 where all cosines are 1.

    >>> dot_regression(torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0], [1.0, 0]]))
    tensor(0.2500)
    """
    cosines = (functional.normalize(features.float(), dim=1) * vertices).sum(1)
    return (cosines - 1).square().mean() / 2


class NeckedNetwork(nn.Module):
    """A network and a small perceptron with a linear shortcut on its features."""

    def __init__(self, backbone: nn.Module, dimension: int) -> None:
        super().__init__()
        inputs, self.n_features = backbone.n_features, dimension
        self.backbone, self.neck = backbone, _Neck(inputs, dimension)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        features: Tensor = self.neck(self.backbone(images))
        return features


class _Neck(nn.Module):
    """Three layers and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (inputs, 2 * inputs):
            layers += [nn.Linear(width, 2 * inputs), nn.LayerNorm(2 * inputs), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers, nn.Linear(2 * inputs, outputs, bias=False))
        self.shortcut = nn.Linear(inputs, outputs, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layers(features) + self.shortcut(features)
        return out
