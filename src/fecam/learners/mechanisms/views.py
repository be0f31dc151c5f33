"""Several augmentations of the same images: their order in a batch, and losses between them.

A batch of V views of n images has all images of the first view, then all of the second, and so on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def stack_views(images: Tensor, views: int) -> Tensor:
    """Return images (V n, c, h, w) as (n, V c, h, w): one row per image.

    >>> stack_views(torch.zeros(6, 3, 8, 8), 2).shape
    torch.Size([3, 6, 8, 8])
    """
    return images.unflatten(0, (views, -1)).transpose(0, 1).flatten(1, 2)


def unstack_views(images: Tensor, views: int) -> Tensor:
    """Return the inverse of `stack_views`."""
    return images.unflatten(1, (views, -1)).transpose(0, 1).flatten(0, 1)


def info_nce(features: Tensor, views: int, scale: float) -> Tensor:
    r"""Return the contrastive loss between the views of an image.

    The mean over pairs of views i, j of one image of
    :math:`-\log (e^{s_{ij}} / (e^{s_{ij}} + \sum_k e^{s_{ik}}))` over the views k of other images,
    with :math:`s_{ij} = s \cos(f_i, f_j)`.
    """
    images = torch.arange(len(features) // views, device=features.device).repeat(views)
    unit = functional.normalize(features.float(), dim=1)
    similarities = scale * unit @ unit.T
    same = images[:, None] == images
    others = similarities.masked_fill(same, -torch.inf).logsumexp(1, keepdim=True)
    positive = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
    losses = torch.logaddexp(similarities, others) - similarities
    return losses[positive].mean()


def cosine_between_classes(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cosine over pairs of different classes; 0 without such pairs."""
    unit = functional.normalize(features.float(), dim=1)
    different = labels[:, None] != labels
    return (unit @ unit.T * different).sum() / different.sum().clamp(min=1)
