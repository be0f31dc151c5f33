"""Four rotations per image, each with a label of its own (PASS): class c becomes 4c to 4c + 3."""

from __future__ import annotations

import torch
from torch import Tensor

N_ROTATIONS = 4


def rotate_four(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return all images rotated by 0, 90, 180 and 270 degrees, with labels ``4c + k``.

    The four rotations of an image follow each other, so every fourth image is an original.

    >>> rotate_four(torch.zeros(2, 3, 8, 8), torch.tensor([0, 5]))[1].tolist()
    [0, 1, 2, 3, 20, 21, 22, 23]
    """
    rotated = torch.stack([images.rot90(k, (2, 3)) for k in range(N_ROTATIONS)], dim=1)
    quarters = torch.arange(N_ROTATIONS, device=labels.device)
    return rotated.flatten(0, 1), (N_ROTATIONS * labels[:, None] + quarters).flatten()


def rotation_labels(labels: Tensor) -> Tensor:
    """Return the labels of unrotated images, ``4c``."""
    return N_ROTATIONS * labels


def unrotated_logits(logits: Tensor) -> Tensor:
    """Return the columns of the unrotated classes, one per class.

    >>> unrotated_logits(torch.arange(8)[None]).tolist()
    [[0, 4]]
    """
    return logits[:, ::N_ROTATIONS]
