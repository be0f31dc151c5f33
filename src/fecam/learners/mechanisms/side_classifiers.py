"""Side classifiers on the features of a task, which disagree about other images (MUC)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

MILESTONES = (0.5, 0.75, 0.875)
"""Shares of the epochs after which the learning rate drops to a tenth: 40, 60, 70 of 80."""


def discrepancy(logits: Tensor) -> Tensor:
    r"""Return :math:`\sum_{i < j} mean |softmax(z_i) - softmax(z_j)|` of logits (k, n, classes).

    >>> discrepancy(torch.tensor([[[0.0, 99.0]], [[99.0, 0.0]], [[99.0, 0.0]]]))
    tensor(2.)
    """
    probabilities = logits.float().softmax(2)
    differences = [
        (probabilities[i] - probabilities[j]).abs().mean()
        for i, j in combinations(range(len(logits)), 2)
    ]
    return torch.stack(differences).sum()


def train_side_classifiers(
    features: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    *,
    count: int,
    epochs: int,
    seed: int,
    batch_size: int = 128,
    learning_rate: float = 0.1,
) -> list[nn.Linear]:
    r"""Return linear classifiers that agree with the labels and disagree about other images.

    .. math:: \sum_k \mathrm{CE}(z_k, y) - \sum_{i < j} mean |softmax(z_i(u)) - softmax(z_j(u))|

    SGD with momentum 0.9 and weight decay 5e-4, as in the authors' code.
    """
    generator = Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        n_classes = int(labels.max()) + 1
        heads = nn.ModuleList(nn.Linear(features.shape[1], n_classes) for _ in range(count))
    heads.to(features.device)
    optimizer = torch.optim.SGD(
        heads.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4
    )
    milestones = [int(np.ceil(share * epochs)) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    for _ in range(epochs):
        for rows in torch.randperm(len(features), generator=generator).split(batch_size):
            others = torch.randint(len(unlabelled), (len(rows),), generator=generator)
            own, other = (
                torch.stack([head(x) for head in heads])
                for x in (
                    features[rows.to(features.device)],
                    unlabelled[others.to(features.device)],
                )
            )
            targets = labels[rows].to(features.device)
            agreement = sum(functional.cross_entropy(z.float(), targets) for z in own)
            optimizer.zero_grad()
            (agreement - discrepancy(other)).backward()
            optimizer.step()
        schedule.step()
    return [head for head in heads.requires_grad_(False) if isinstance(head, nn.Linear)]
