"""Contrastive learning with a slow copy of the network and a queue of its outputs (MoCo).

All of it is a module, so that checkpoints of the training contain it.
"""

from __future__ import annotations

import copy

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

EMPTY = -1
"""The label of a place in the queue that is not filled yet."""


class MomentumQueue(nn.Module):
    """A projector, slow copies of it and of a network, and a queue of labeled keys.

    Parameters
    ----------
    network : torch.nn.Module
        The network of the queries, with the attribute ``n_features``.
    dimension : int
        Outputs of the projector.
    length : int
        Keys in the queue.
    momentum : float
        Share of the slow copy that stays in each update.
    """

    queue: Tensor
    labels: Tensor
    next_place: Tensor

    def __init__(self, network: nn.Module, dimension: int, length: int, momentum: float) -> None:
        super().__init__()
        n_features: int = network.n_features
        self.momentum = momentum
        self.projector = nn.Sequential(
            nn.Linear(n_features, n_features), nn.ReLU(), nn.Linear(n_features, dimension)
        )
        self.slow_projector = copy.deepcopy(self.projector).requires_grad_(False)
        self.slow_network = copy.deepcopy(network).requires_grad_(False)
        keys = functional.normalize(torch.randn(length, dimension), dim=1)
        self.register_buffer("queue", keys)
        self.register_buffer("labels", torch.full((length,), EMPTY))
        self.register_buffer("next_place", torch.zeros((), dtype=torch.int64))

    def queries(self, features: Tensor) -> Tensor:
        """Return projected features at unit length."""
        return functional.normalize(self.projector(features).float(), dim=1)

    def keys(self, images: Tensor) -> Tensor:
        """Return what the slow copies make of images."""
        with torch.no_grad():
            keys = self.slow_projector(self.slow_network(images))
            return functional.normalize(keys.float(), dim=1)

    def follow(self, network: nn.Module) -> None:
        """Move the slow copies towards the network and the projector."""
        with torch.no_grad():
            for slow, now in ((self.slow_network, network), (self.slow_projector, self.projector)):
                for mean, value in zip(slow.parameters(), now.parameters(), strict=True):
                    mean.lerp_(value, 1 - self.momentum)

    def enqueue(self, keys: Tensor, labels: Tensor) -> None:
        """Replace the oldest keys."""
        keys, labels = keys[: len(self.queue)], labels[: len(self.queue)]
        start = torch.arange(len(keys), device=keys.device)
        places = (start + self.next_place) % len(self.queue)
        self.queue[places], self.labels[places] = keys, labels
        self.next_place.copy_((self.next_place + len(keys)) % len(self.queue))


def labeled_contrast(
    queries: Tensor, labels: Tensor, keys: Tensor, queue: MomentumQueue, temperature: float
) -> Tensor:
    r"""Return the contrastive loss of queries against their own keys and the queue.

    The mean over queries, and over their positives p, of
    :math:`\log(1 + \sum_n e^{(q \cdot n - q \cdot p) / T})` over the negatives n. Positive are the
    own key and the keys of the same label in the queue, negative those of other labels; empty
    places are neither. Several groups of queries may share the keys, which are in equal order.
    """
    own = keys.repeat(len(queries) // len(keys), 1)
    labels = labels.repeat(len(queries) // len(keys))
    to_own = (queries * own).sum(1, keepdim=True) / temperature
    to_queue = queries @ queue.queue.T / temperature
    same = labels[:, None] == queue.labels
    other = ~same & (queue.labels != EMPTY)
    negatives = to_queue.masked_fill(~other, -torch.inf).logsumexp(1, keepdim=True)
    scores = torch.cat([to_own, to_queue], 1)
    positive = functional.pad(same, (1, 0), value=True)
    losses = functional.softplus(negatives - scores)
    return ((losses * positive).sum(1) / positive.sum(1)).mean()


def small_crops(
    images: Tensor, size: int, shares: tuple[float, float], generator: Generator
) -> Tensor:
    """Return a random square of each image, whose share of the area is in the range, resized."""
    count = len(images)
    area = torch.empty(count).uniform_(*shares, generator=generator)
    half = area.sqrt().to(images.device)
    shift = torch.rand(count, 2, generator=generator).to(images.device) * 2 - 1
    theta = torch.zeros(count, 2, 3, device=images.device)
    theta[:, 0, 0] = theta[:, 1, 1] = half
    theta[:, :, 2] = shift * (1 - half)[:, None]
    grid = functional.affine_grid(theta, [count, images.shape[1], size, size], align_corners=False)
    crops = functional.grid_sample(images, grid.to(images.dtype), align_corners=False)
    return crops.contiguous(memory_format=torch.channels_last)
