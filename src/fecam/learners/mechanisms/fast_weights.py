"""A copy of a network that adapts to sessions, and what it teaches the original (MAML)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class FastWeights:
    """A copy of a network and of rows of its linear classifier, which sessions change.

    Batch normalization uses its running statistics.

    Parameters
    ----------
    network : torch.nn.Module
        The network to copy.
    rows : tensor of shape (n_classes, n_features)
        The rows of the classes so far.
    offsets : tensor of shape (n_classes,)
        Their biases.
    """

    def __init__(self, network: nn.Module, rows: Tensor, offsets: Tensor) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(True)
        self.rows = rows.detach().clone().requires_grad_(True)
        self.offsets = offsets.detach().clone().requires_grad_(True)

    def add_classes(self, images: Tensor, labels: Tensor, steps: int, rate: float) -> None:
        """Add rows of 0 for the labels without one, and train these alone by the cross-entropy."""
        count = int(labels.max()) + 1 - len(self.rows)
        with torch.no_grad():
            features = self.network(images)
        rows = features.new_zeros(count, features.shape[1]).requires_grad_(True)
        offsets = features.new_zeros(count).requires_grad_(True)
        for _ in range(steps):
            weight = torch.cat([self.rows.detach(), rows])
            bias = torch.cat([self.offsets.detach(), offsets])
            loss = functional.cross_entropy(functional.linear(features, weight, bias), labels)
            descend((rows, offsets), torch.autograd.grad(loss, (rows, offsets)), rate)
        self.rows = torch.cat([self.rows, rows]).detach().requires_grad_(True)
        self.offsets = torch.cat([self.offsets, offsets]).detach().requires_grad_(True)

    def adapt(self, images: Tensor, labels: Tensor, steps: int, rate: float) -> None:
        """Train all weights by the cross-entropy."""
        for _ in range(steps):
            loss = self.loss(images, labels)
            descend(self.weights, torch.autograd.grad(loss, self.weights), rate)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy."""
        logits = functional.linear(self.network(images), self.rows, self.offsets)
        return functional.cross_entropy(logits, labels)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """All weights: those of the network first."""
        return (*self.network.parameters(), self.rows, self.offsets)

    def teach(self, network: nn.Module, images: Tensor, labels: Tensor) -> float:
        """Add the gradient of the loss at these weights to those of the original; return the loss.

        It is the first-order approximation of the gradient through the steps of `adapt`.
        """
        own = (*self.network.parameters(),)
        loss = self.loss(images, labels)
        gradients = torch.autograd.grad(loss, own)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return float(loss.detach())


def descend(weights: Sequence[Tensor], gradients: Sequence[Tensor], rate: float) -> None:
    """Take a step of gradient descent in place."""
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= rate * gradient
