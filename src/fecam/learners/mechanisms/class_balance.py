"""Weights of classes by their effective numbers of images."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def class_weights(counts: Tensor, beta: float) -> Tensor:
    r"""Return a weight per class, larger for rarer classes, with the mean 1.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{N_c}}

    of classes with :math:`N_c` images (Cui et al. 2019).

    >>> import torch
    >>> class_weights(torch.tensor([20, 500]), 0.0)
    tensor([1., 1.])
    """
    weights = (1 - beta) / (1 - beta ** counts.double())
    return (weights * len(weights) / weights.sum()).float()


def balanced_distillation(
    logits: Tensor, old_logits: Tensor, weights: Tensor, temperature: float = 2.0
) -> Tensor:
    """Return the cross-entropy towards softened probabilities times the weights, normalized."""
    targets = (old_logits.float() / temperature).softmax(1) * weights.to(old_logits.device)
    targets = targets / targets.sum(1, keepdim=True)
    return functional.cross_entropy(logits.float() / temperature, targets)
