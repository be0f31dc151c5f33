"""Rotated images as classes of their own, in outputs that exist during one task only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from fecam.learners.mechanisms.label_multiplication import TRANSFORMS
from fecam.learners.mechanisms.pair_mixup import with_pairs

EXTRA = len(TRANSFORMS["rotation4"]) - 1
"""Extra outputs per class."""


def with_rotations(classifier: nn.Module, seed: int) -> nn.Module:
    """Return a classifier with three more outputs per class, with initial weights of the seed."""
    return with_pairs(classifier, EXTRA * len(classifier.weight), seed)


def first_outputs(classifier: nn.Module, n_classes: int) -> nn.Module:
    """Return a classifier with the first outputs only.

    >>> layer = nn.Linear(4, 8)
    >>> torch.equal(first_outputs(layer, 2).weight, layer.weight[:2])
    True
    """
    smaller = type(classifier)(classifier.weight.shape[-1], n_classes)
    smaller = smaller.to(classifier.weight.device)
    with torch.no_grad():
        for name, values in smaller.state_dict().items():
            larger = classifier.state_dict()[name]
            values.copy_(larger[:n_classes] if values.ndim else larger)
    return smaller


def rotate_apart(
    n_classes: int,
) -> Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]]:
    """Return a hook that appends rotated images; class c turned k times is n + 3 c + k - 1.

    >>> images, labels = torch.zeros(2, 3, 8, 8), torch.tensor([0, 1])
    >>> rotate_apart(2)(images, labels, torch.Generator())[1].tolist()
    [0, 1, 2, 5, 3, 6, 4, 7]
    """

    def rotate(images: Tensor, labels: Tensor, _: Generator) -> tuple[Tensor, Tensor]:
        turned = [transform(images) for transform in TRANSFORMS["rotation4"]]
        targets = [labels, *(n_classes + EXTRA * labels + k for k in range(EXTRA))]
        return torch.cat(turned), torch.cat(targets)

    return rotate
