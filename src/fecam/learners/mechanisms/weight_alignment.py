"""Weight alignment: the rows of new classes get the mean norm of those of old classes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

Norm = Literal["l2", "l1"]


def norm_ratio(classifier: nn.Module, n_old: int, norm: Norm = "l2") -> float:
    """Return the mean norm of the rows of old classes, divided by that of new ones."""
    norms = classifier.weight.detach().norm(p=1 if norm == "l1" else 2, dim=1)
    return float(norms[:n_old].mean() / norms[n_old:].mean().clamp(min=1e-12))


def align_weights(
    classifier: nn.Module, n_old: int, norm: Norm = "l2", limit: float | None = 1.0
) -> float:
    r"""Scale the rows of new classes in place, and return the factor (Zhao et al. 2020).

    .. math:: \gamma = \frac{\mathrm{mean}_{c \le K} \|w_c\|}{\mathrm{mean}_{c > K} \|w_c\|}, \quad
        w_c \leftarrow \gamma w_c \text{ for } c > K

    Biases stay as they are. Aligned weights have the factor 1. A limit of 1 shrinks new weights and
    never enlarges them: after few epochs they are smaller than the old ones.

    >>> classifier = nn.Linear(2, 3)
    >>> classifier.weight.data = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 10.0]])
    >>> align_weights(classifier, 2)
    0.5
    """
    gamma = norm_ratio(classifier, n_old, norm)
    gamma = gamma if limit is None else min(gamma, limit)
    with torch.no_grad():
        classifier.weight[n_old:] *= gamma
    return gamma
