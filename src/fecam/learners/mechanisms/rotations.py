"""Four rotations per image, each with a label of its own (PASS): class c becomes 4c to 4c + 3."""

from __future__ import annotations

from torch import Tensor

from fecam.learners.mechanisms.label_multiplication import TRANSFORMS, multiply

N_ROTATIONS = 4


def rotate_four(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return all images rotated by 0, 90, 180 and 270 degrees, with labels ``4c + k``.

    The four rotations of an image follow each other, so every fourth image is an original.

    >>> import torch
    >>> rotate_four(torch.zeros(2, 3, 8, 8), torch.tensor([0, 5]))[1].tolist()
    [0, 1, 2, 3, 20, 21, 22, 23]
    """
    return multiply(images, labels, TRANSFORMS["rotation4"])


def rotation_labels(labels: Tensor) -> Tensor:
    """Return the labels of unrotated images, ``4c``."""
    return N_ROTATIONS * labels


def unrotated_logits(logits: Tensor) -> Tensor:
    """Return the columns of the unrotated classes, one per class.

    >>> import torch
    >>> unrotated_logits(torch.arange(8)[None]).tolist()
    [[0, 4]]
    """
    return logits[:, ::N_ROTATIONS]
