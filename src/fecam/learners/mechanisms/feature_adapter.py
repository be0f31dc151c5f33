"""A network from old features to new ones, and statistics that are sampled anew through it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fecam.heads.head import Floats
from fecam.learners.mechanisms.feature_distillation import Projector, mean_square
from fecam.learners.mechanisms.prototype_replay import covariance_factors, normal_samples

HIDDEN = 2048
"""Units of the adapter and of the projector, in the authors' code."""
RATE, MOMENTUM, DECAY, BATCH, CLIP = 0.01, 0.9, 5e-4, 256, 1.0
"""Of the adapter's SGD, in the authors' code; they clip the gradients of the network alike."""
MILESTONES = (0.3, 0.6, 0.9)
"""Shares of the epochs from which the rate is a tenth."""
JITTER = 1e-6
"""Of the covariance of a batch, a share of its mean variance, so that it has a Cholesky factor."""


def anti_collapse(features: Tensor) -> Tensor:
    r"""Return :math:`-\frac1d \sum_j \min(L_{jj}, 1)`, where :math:`L L^T` is the covariance.

    It is -1 if no direction of the batch has a small variance, which covariances of classes need.

    >>> rows = 2 * torch.cat([torch.eye(3), -torch.eye(3)])
    >>> round(anti_collapse(rows).item(), 4)
    -1.0
    """
    covariance = torch.cov(features.double().T)
    covariance = torch.atleast_2d(covariance)
    scale = covariance.diagonal().mean().detach() * JITTER + torch.finfo(torch.float32).tiny
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor = torch.linalg.cholesky(covariance + scale * identity)
    return -factor.diagonal().clamp(max=1).mean().to(features.dtype)


def trained_adapter(
    old: Floats, new: Floats, *, epochs: int, seed: int, collapse: float = 1.0
) -> nn.Module:
    """Return a network that maps old features to new ones.

    It minimizes the mean squared difference, and ``collapse`` times `anti_collapse`.
    """
    generator = Generator().manual_seed(seed)
    before, after = (torch.from_numpy(np.asarray(x, np.float32)) for x in (old, new))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        adapter = Projector(old.shape[1], HIDDEN)
    optimizer = torch.optim.SGD(
        adapter.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY
    )
    milestones = [max(1, round(share * epochs)) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, 0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(before), generator=generator).split(BATCH):
            mapped = adapter(before[rows])
            loss = mean_square(mapped, after[rows])
            if collapse and len(rows) > old.shape[1]:  # else its covariance is singular
                loss = loss + collapse * anti_collapse(mapped)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(adapter.parameters(), CLIP)
            optimizer.step()
        schedule.step()
    return adapter.eval()


def sampled_statistics(
    adapter: nn.Module, means: Tensor, covariances: Tensor, samples: int, seed: int
) -> tuple[Tensor, Tensor]:
    r"""Return mean and covariance per class of :math:`h(x)` for :math:`x \sim N(\mu_c, S_c)`.

    >>> identity = nn.Identity()
    >>> mean, _ = sampled_statistics(identity, torch.ones(1, 2), torch.zeros(1, 2, 2), 10, 0)
    >>> mean
    tensor([[1., 1.]])
    """
    generator = Generator().manual_seed(seed)
    factors = covariance_factors(covariances)
    moved_means, moved = [], []
    with torch.inference_mode():
        for index in range(len(means)):
            labels = torch.full((samples,), index)
            rows = adapter(normal_samples(means, factors, labels, generator)).double()
            moved_means.append(rows.mean(0))
            moved.append(torch.atleast_2d(torch.cov(rows.T)))
    return torch.stack(moved_means).float(), torch.stack(moved).float()
