"""Optimal transport between classes: rows of a classifier go from classes to similar ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

REGULARIZATION = 0.464
"""Of the entropy, in the settings of Coil."""
POWER = 3.0
"""Of the distance of class means, in the settings of Coil."""
_ITERATIONS = 200


def transport_plan(
    sources: Tensor, targets: Tensor, regularization: float = REGULARIZATION
) -> Tensor:
    r"""Return the plan with uniform marginals between class means, by Sinkhorn's iterations.

    .. math:: \min_T \langle T, C \rangle - \epsilon H(T), \quad T 1 = 1 / n, \quad T^T 1 = 1 / m,
        \quad C_{ij} = \|\hat\mu_i - \hat\mu_j\|_3

    >>> transport_plan(torch.eye(2), torch.eye(2), 0.01)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    a, b = (functional.normalize(means.double(), dim=1) for means in (sources, targets))
    kernel = -torch.cdist(a, b, p=POWER) / regularization
    u, v = torch.zeros(len(a)).to(kernel), torch.zeros(len(b)).to(kernel)
    rows, columns = -torch.tensor([len(a), len(b)], dtype=torch.float64).log()
    for _ in range(_ITERATIONS):  # in logarithms, so that small regularizations do not underflow
        u = rows - (kernel + v).logsumexp(1)
        v = columns - (kernel + u[:, None]).logsumexp(0)
    return (kernel + u[:, None] + v).exp().float()


def transported(weights: Tensor, plan: Tensor, norm: Tensor) -> Tensor:
    """Return a row per target class: the mean of unit rows by the plan, with a given mean norm."""
    rows = plan.to(weights.device).T @ functional.normalize(weights, dim=1)
    return rows * (norm / rows.norm(dim=1).mean().clamp(min=1e-12))
