"""Images as a network sees them in training: another crop, mirrored or not, a little brighter.

Everything works on a batch at once and draws from a generator that is handed in, so that a run can
be repeated, and resumed, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from fecam.errors import TrainingError


@dataclass(frozen=True)
class Augmentation:
    """What may happen to an image between two epochs; the default is nothing.

    >>> Augmentation(padding=4, flip=True).as_dict()["padding"]
    4
    """

    padding: int = 0
    """A window of the image's size is cut from the image with so many black pixels around it."""
    area: tuple[float, float] | None = None
    """Instead, a box of this share of the image is cut and scaled to the network's input size."""
    stretch: float = 4 / 3
    """The most by which such a box is wider than high, or higher than wide."""
    flip: bool = False
    """Mirrored, left to right, half of the time: wrong for letters and digits."""
    brightness: float = 0.0
    """Multiplied by 1 ± this, at most."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            _refuse("padding", self.padding, "0 or more pixels")
        if self.area is not None:
            low, high = self.area
            if not 0 < low <= high <= 1:
                _refuse("area", self.area, "two shares with 0 < low <= high <= 1")
            if self.padding:
                _refuse("padding", self.padding, "0 where 'area' is given: there is one crop")
        if not self.stretch >= 1:
            _refuse("stretch", self.stretch, "1 or more")
        if not 0 <= self.brightness <= 1:
            _refuse("brightness", self.brightness, "a share from 0 to 1")

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "area": None if self.area is None else list(self.area)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Augmentation:
        """The inverse of `as_dict`."""
        area = values.get("area")
        return Augmentation(**{**values, "area": None if area is None else tuple(area)})

    def __call__(self, images: Tensor, size: int, generator: Generator) -> Tensor:
        """8-bit images (n, 3, height, width) as floats from 0 to 1 of ``size`` by ``size``."""
        if self.area is None:
            cut = random_windows(images, size, self.padding, generator).float() / 255
        else:
            boxes = random_boxes(len(images), self.area, self.stretch, generator)
            cut = resized_boxes(images.float() / 255, boxes.to(images.device), size)
        if self.flip:
            cut = random_flips(cut, generator)
        if self.brightness:
            cut = random_brightness(cut, self.brightness, generator)
        return cut


def _refuse(name: str, value: object, wanted: str) -> None:
    raise TrainingError(f"an augmentation cannot have {name} = {value!r}: it must be {wanted}.")


def random_windows(images: Tensor, size: int, padding: int, generator: Generator) -> Tensor:
    """From each image, black pixels added around it, a window of ``size`` by ``size``.

    >>> images = torch.ones(2, 3, 8, 8, dtype=torch.uint8)
    >>> random_windows(images, 8, 2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    padded = functional.pad(images, (padding,) * 4)
    spare = [side - size for side in padded.shape[2:]]
    if min(spare) < 0:
        raise TrainingError(
            f"images of {tuple(images.shape[2:])} pixels with {padding} around them hold no window "
            f"of {size} by {size}. Enlarge them first, or lower the input size."
        )
    top, left = (
        torch.randint(0, room + 1, (len(images),), generator=generator).to(images.device)
        for room in spare
    )
    # Every window there is, as a view; indexing it copies the chosen ones.
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def random_boxes(
    count: int, area: tuple[float, float], stretch: float, generator: Generator
) -> Tensor:
    """Boxes inside the unit square, a row each: left, top, right, bottom.

    A box that would stick out is narrowed to the square's side, so it may be a little smaller than
    asked for: nothing is drawn twice.
    """
    share, form, x, y = torch.rand(4, count, generator=generator)
    share = area[0] + (area[1] - area[0]) * share
    ratio = torch.tensor(stretch).pow(2 * form - 1)
    width = (share * ratio).sqrt().clamp(max=1)
    height = (share / ratio).sqrt().clamp(max=1)
    left, top = x * (1 - width), y * (1 - height)
    return torch.stack([left, top, left + width, top + height], dim=1)


def resized_boxes(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """One box of each image, scaled to ``size`` by ``size`` by bilinear interpolation."""
    left, top, right, bottom = boxes.unbind(1)
    zero = torch.zeros_like(left)
    # From the output's coordinates, -1 to 1, to the image's, also -1 to 1.
    across = torch.stack([right - left, zero, left + right - 1], dim=1)
    down = torch.stack([zero, bottom - top, top + bottom - 1], dim=1)
    grid = functional.affine_grid(
        torch.stack([across, down], dim=1),
        [len(images), images.shape[1], size, size],
        align_corners=False,
    )
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def random_flips(images: Tensor, generator: Generator) -> Tensor:
    """Each image as it is or mirrored, left to right."""
    chosen = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def random_brightness(images: Tensor, most: float, generator: Generator) -> Tensor:
    """Each image, from 0 to 1, multiplied by a number of its own from 1 - most to 1 + most."""
    factors = 1 + most * (2 * torch.rand(len(images), generator=generator) - 1)
    return (images * factors.to(images.device)[:, None, None, None]).clamp(0, 1)


_SMALL = Augmentation(padding=4, flip=True, brightness=63 / 255)
_LARGE = Augmentation(area=(0.08, 1.0), flip=True, brightness=63 / 255)
_SIGNS = Augmentation(padding=2)  # a mirrored b is a d

AUGMENTATIONS: Mapping[str, Augmentation] = MappingProxyType(
    {
        "cifar100": _SMALL,
        "tiny-imagenet": Augmentation(padding=8, flip=True, brightness=63 / 255),
        "mini-imagenet": _LARGE,
        "imagenet-subset": _LARGE,
        "imagenet-r": _LARGE,
        "cub200": _LARGE,
        "core50": _LARGE,
        "glyphs": _SIGNS,
        "digits": Augmentation(padding=1),
        "quickdraw": Augmentation(padding=2, flip=True),
        "none": Augmentation(),
    }
)
"""By data set; tiny-imagenet has CIFAR's margin in proportion, as its images are twice as large."""


def augmentation_for(name: str, size: int) -> Augmentation:
    """That of a data set, or of photographs of ``size`` pixels if we do not know it by name.

    >>> augmentation_for("glyphs", 32).flip, augmentation_for("my holidays", 224).flip
    (False, True)
    """
    return AUGMENTATIONS.get(name, _SMALL if size < 84 else _LARGE)
