"""Losses on distances between embeddings."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fecam.training.images import TrainingImages


def triplet_loss(embeddings: Tensor, labels: Tensor, margin: float = 0.0) -> Tensor:
    r"""Return the mean of :math:`\max(0, d_{ap} - d_{an} + m)` over all triplets of a batch.

    Anchor and positive have the same label, the negative another one; d is the Euclidean distance.
    Without triplets the loss is 0.

    >>> points = torch.tensor([[0.0], [1.0], [3.0]])
    >>> triplet_loss(points, torch.tensor([0, 0, 1]), margin=2.5)  # (0.5 + 0 + 1.5 + ...) / 2
    tensor(1.)
    """
    squares = (embeddings[:, None] - embeddings).square().sum(2)
    distances = squares.clamp(min=1e-12).sqrt()  # the root has no gradient at 0
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors, positives = positive.nonzero(as_tuple=True)
    hinge = functional.relu(distances[anchors, positives, None] - distances[anchors] + margin)
    negative = ~same[anchors]
    total: Tensor = (hinge * negative).sum() / negative.sum().clamp(min=1)
    return total


def metric_importance(
    network: nn.Module,
    images: TrainingImages,
    generator: Generator,
    *,
    samples: int,
    batch: int,
    margin: float,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the mean squared gradient of the triplet loss per weight, over batches of images.

    Embeddings have unit length. The network is in evaluation mode, so its batch statistics stay.
    """
    network.eval().requires_grad_(True)
    rows = images.rows[torch.randperm(len(images), generator=generator)[:samples]]
    parameters = dict(network.named_parameters())
    totals = {name: torch.zeros_like(value) for name, value in parameters.items()}
    count = 0
    for readable, inputs in images.eval_batches(batch, device, rows):
        labels = images.labels[readable].to(device)
        loss = triplet_loss(functional.normalize(network(inputs)), labels, margin)
        if not loss.requires_grad:
            continue
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            totals[name] += gradient.square()
        count += 1
    return {name: total / max(1, count) for name, total in totals.items()}
