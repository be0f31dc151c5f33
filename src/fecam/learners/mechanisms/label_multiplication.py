"""Fixed transforms of images that multiply the classes: class c becomes m c to m c + m - 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

Transform = Callable[[Tensor], Tensor]


def _transformed(images: Tensor, quarters: int, shift: int) -> Tensor:
    """Return images turned by quarters, with their channels shifted in a circle."""
    return images.rot90(quarters, (2, 3)).roll(shift, 1)


TRANSFORMS: Mapping[str, Sequence[Transform]] = {
    "identity": (partial(_transformed, quarters=0, shift=0),),
    "rotation2": tuple(partial(_transformed, quarters=k, shift=0) for k in (0, 2)),
    "rotation4": tuple(partial(_transformed, quarters=k, shift=0) for k in range(4)),
    "rotation-color12": tuple(
        partial(_transformed, quarters=k, shift=shift) for k in range(4) for shift in range(3)
    ),
}
"""By name; the first of each is the identity."""


def multiply(
    images: Tensor, labels: Tensor, transforms: Sequence[Transform]
) -> tuple[Tensor, Tensor]:
    """Return all transforms of each image, one after the other, with labels ``m c + k``.

    >>> pair = TRANSFORMS["rotation2"]
    >>> multiply(torch.zeros(2, 3, 8, 8), torch.tensor([0, 5]), pair)[1].tolist()
    [0, 1, 10, 11]
    """
    m = len(transforms)
    multiplied = torch.stack([transform(images) for transform in transforms], dim=1)
    offsets = torch.arange(m, device=labels.device)
    return multiplied.flatten(0, 1), (m * labels[:, None] + offsets).flatten()


class TransformedFeatures(nn.Module):
    """The features of all transforms of an image, side by side."""

    def __init__(self, network: nn.Module, transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.network, self.transforms = network, transforms

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, m d)."""
        return torch.cat([self.network(transform(images)) for transform in self.transforms], 1)
