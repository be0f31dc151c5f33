"""The loss and the initial proxies of a classifier with several proxies per class."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fecam.learners.mechanisms.herding import unit_rows

Margin = Literal["paper", "public"]
_ITERATIONS = 20
"""Of k-means; more do not change the clusters of a class visibly."""


def nca_loss(
    logits: Tensor, labels: Tensor, scale: Tensor, margin: float, form: Margin = "paper"
) -> Tensor:
    r"""Return the NCA loss with a margin (Douillard et al. 2020), the mean over images.

    .. math:: \Big[ -\log \frac{\exp(\eta (y_t - \delta))}{\sum_{c \ne t} \exp(\eta y_c)} \Big]_+

    of logits :math:`\eta y`. In the public form, of the code of the authors and PyCIL, the margin
    cancels, the excluded class counts as 1 in the sum, and nothing is cut off at 0. The scale is a
    constant in the margin: else a margin that is not reached drives it below 0.
    """
    z = logits.float()
    target = functional.one_hot(labels, z.shape[1]).bool()
    others = z.masked_fill(target, 0.0 if form == "public" else -torch.inf)
    losses = others.logsumexp(1) - z[target]
    if form == "public":
        return losses.mean()
    return (losses + scale.detach() * margin).clamp(min=0).mean()


def imprinted(features: NDArray[np.floating], count: int, seed: int) -> Tensor:
    """Return the centers of ``count`` clusters of a class, by k-means at unit length.

    A class of fewer samples has repeated centers.
    """
    unit, rng = unit_rows(features), np.random.default_rng(seed)
    centers = unit[np.resize(rng.permutation(len(unit)), count)]
    for _ in range(_ITERATIONS):
        nearest = (unit @ centers.T - np.square(centers).sum(1) / 2).argmax(1)
        for k in range(count):
            if (nearest == k).any():
                centers[k] = unit[nearest == k].mean(0)
    return torch.from_numpy(centers).float()
