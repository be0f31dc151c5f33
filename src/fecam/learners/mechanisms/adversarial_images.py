"""Images of the current task, changed so that the old network takes them for an old class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

PUBLISHED_IMAGES = 100
"""Images over which the authors of ADC take the norm of the gradient."""


def moved_towards(
    network: nn.Module,
    images: Tensor,
    target: Tensor,
    *,
    step: float,
    steps: int,
    bounds: tuple[float, float],
) -> Tensor:
    r"""Return images whose features are nearer to a target, such as the mean of an old class.

    .. math:: x \leftarrow \mathrm{clip}\left(x - \alpha \sqrt{n / n_0}\, \frac{G}{\|G\|}\right),
        \quad G = \nabla \frac{1}{n d} \sum_i \|f(x_i) - \mu\|^2

    (Goswami et al. 2024), where the norm is that of the gradient of all n images together, so that
    :math:`\alpha` is that of batches of :math:`n_0` = 100 images.

    >>> network = nn.Flatten()
    >>> images, target = torch.zeros(2, 1, 2, 2), torch.ones(4)
    >>> moved = moved_towards(network, images, target, step=8.0, steps=3, bounds=(0.0, 0.9))
    >>> bool(moved.min() > 0), round(moved.max().item(), 2)
    (True, 0.9)
    """
    length = step * (len(images) / PUBLISHED_IMAGES) ** 0.5
    moved = images.detach()
    for _ in range(steps):
        moved = moved.detach().requires_grad_(True)
        loss = functional.mse_loss(network(moved), target.expand(len(moved), -1))
        (gradient,) = torch.autograd.grad(loss, moved)
        norm = torch.linalg.vector_norm(gradient).clamp(min=torch.finfo(gradient.dtype).tiny)
        moved = (moved - length * gradient / norm).clamp(*bounds)
    return moved.detach()


def taken_for(class_index: int, features: Tensor, scores: Callable[[Tensor], Tensor]) -> Tensor:
    """Return which rows have the largest score for a class; all, if none has.

    >>> taken_for(1, torch.eye(2), lambda features: features)
    tensor([False,  True])
    """
    taken = scores(features).argmax(1) == class_index
    return taken if bool(taken.any()) else torch.ones_like(taken)
