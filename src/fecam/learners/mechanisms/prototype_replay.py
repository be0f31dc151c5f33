"""Replay of past classes from their statistics: pseudo-features for the loss of the classifier.

Row c of ``means`` and ``covariances`` is class c, in the order of the classifier's outputs. Samples
that are translated from new classes are in `fecam.heads.fetril`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

ReplayName = Literal["none", "noise", "covariance"]
"""The mean itself; the mean and isotropic noise; samples of the class's normal distribution."""


def draw_classes(count: int, n_classes: int, generator: Generator) -> Tensor:
    """Return ``count`` class indices drawn uniformly."""
    return torch.randint(n_classes, (count,), generator=generator)


def common_radius(variances: Tensor) -> Tensor:
    r"""Return the radius of PASS, :math:`\sqrt{\frac{1}{C D} \sum_c tr\, S_c}`.

    ``variances`` has the diagonal of the covariance per class, (C, D).

    >>> common_radius(torch.tensor([[1.0, 3.0], [6.0, 6.0]])).item()
    2.0
    """
    return variances.mean().sqrt()


def noisy_means(
    means: Tensor, labels: Tensor, radius: float | Tensor, generator: Generator
) -> Tensor:
    r"""Return :math:`\mu_c + r \epsilon` with :math:`\epsilon \sim N(0, I)`, a row per label."""
    chosen = means[labels]
    return chosen + radius * torch.randn(chosen.shape, generator=generator).to(chosen)


def covariance_factors(covariances: Tensor) -> Tensor:
    r"""Return :math:`A_c` with :math:`A_c A_c^T = S_c`; singular matrices are allowed."""
    values, vectors = torch.linalg.eigh(covariances)
    return vectors * values.clamp(min=0).sqrt()[:, None, :]


def normal_samples(means: Tensor, factors: Tensor, labels: Tensor, generator: Generator) -> Tensor:
    r"""Return samples of :math:`N(\mu_c, S_c)`, a row per label, from `covariance_factors`."""
    chosen = means[labels]
    noise = torch.randn(chosen.shape, generator=generator).to(chosen)
    return chosen + (factors[labels] @ noise[:, :, None])[:, :, 0]


def implicitly_augmented_logits(
    weight: Tensor,
    bias: Tensor | None,
    means: Tensor,
    covariances: Tensor,
    labels: Tensor,
    strength: float,
) -> Tensor:
    r"""Return the logits of infinitely many samples of a class (implicit semantic augmentation).

    .. math:: z_j = w_j^T \mu_c + b_j + \tfrac{s}{2} (w_j - w_c)^T S_c (w_j - w_c)

    for each label c. Their cross-entropy bounds from above the expected cross-entropy of samples of
    :math:`N(\mu_c, s S_c)`. Gradients reach the weights through both terms. With a temperature,
    pass :math:`w / T` and :math:`b / T`.
    """
    classes, rows = labels.unique(return_inverse=True)
    logits = torch.nn.functional.linear(means[classes], weight, bias)
    differences = weight[None] - weight[classes][:, None]
    spread = torch.einsum("cjd,cde,cje->cj", differences, covariances[classes], differences)
    return (logits + strength / 2 * spread)[rows]
