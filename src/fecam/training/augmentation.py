"""Random crops, flips, colors, AutoAugment and Cutout for batches of training images.

All random numbers come from the generator that the caller passes, so that a run can be repeated and
resumed bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.training.augmentation_color import blend, gray_of, shift_hue
from fecam.training.augmentation_geometry import random_cutout
from fecam.training.autoaugment import POLICIES, autoaugment
from fecam.validation import check_choice, check_int, check_keys, check_number


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, in the order of the parameters; by default none.

    Parameters
    ----------
    padding : int, default=0
        Black pixels around the image, from which a window of the input size is cropped.
    area : tuple of two floats, optional
        Instead of padding: the range of the share of the image that is cropped and resized.
    stretch : float, default=4/3
        The largest aspect ratio of such a crop.
    flip : bool, default=False
        Flip half of the images horizontally. Wrong for letters and digits.
    brightness : float, default=0.0
        Multiply each image by a factor from ``1 - brightness`` to ``1 + brightness``.
    contrast : float, default=0.0
        Multiply the differences from the mean gray value of an image by such a factor.
    saturation : float, default=0.0
        Multiply the differences from the gray image by such a factor.
    hue : float, default=0.0
        Move the hues by up to this share of the color circle, at most 0.5.
    autoaugment : {"cifar10"}, optional
        The policy of AutoAugment: two random operations per image. It rotates and inverts.
    cutout : int, default=0
        The side of a black square in pixels, at a random place of each image.

    Examples
    --------
    >>> Augmentation(padding=4, flip=True).as_dict()["padding"]
    4
    """

    padding: int = 0
    area: tuple[float, float] | None = None
    stretch: float = 4 / 3
    flip: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    autoaugment: str | None = None
    cutout: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.area, list):  # from JSON
            object.__setattr__(self, "area", tuple(self.area))
        check_int("padding", self.padding, 0, error=TrainingError)
        check_number("stretch", self.stretch, 1, error=TrainingError)
        for name in ("brightness", "contrast", "saturation"):
            check_number(name, getattr(self, name), maximum=1, error=TrainingError)
        check_number("hue", self.hue, maximum=0.5, error=TrainingError)
        check_choice("autoaugment", self.autoaugment, (None, *POLICIES), error=TrainingError)
        check_int("cutout", self.cutout, 0, error=TrainingError)
        if self.area is not None:
            low, high = self.area
            if not 0 < low <= high <= 1:
                raise TrainingError(f"area={self.area!r} must be two shares 0 < low <= high <= 1.")
            if self.padding:
                raise TrainingError(f"padding={self.padding!r} must be 0 if area is given.")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns
        -------
        dict
            The arguments of an equal augmentation. Fields that version 0.1 did not have are left
            out if they have their defaults, so that older checkpoints fit.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["area"] = None if self.area is None else list(self.area)
        unset = {field.name for field in fields(self) if values[field.name] == field.default}
        return {name: value for name, value in values.items() if name not in _LATER & unset}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Augmentation:
        """Return the augmentation of a dictionary, such as one that `as_dict` returned.

        Parameters
        ----------
        values : mapping of str to object
            Values by the names of the fields.

        Returns
        -------
        Augmentation
            The augmentation.

        Raises
        ------
        TrainingError
            If a name is unknown or a value out of range.

        Examples
        --------
        >>> Augmentation.from_dict({"cutout": 16}) == Augmentation(cutout=16)
        True
        """
        names = [field.name for field in fields(cls)]
        check_keys("an augmentation", values, names, kind="field", error=TrainingError)
        return cls(**values)

    def __call__(self, images: Tensor, size: int, generator: Generator) -> Tensor:
        """Return 8-bit images (n, 3, h, w) as floats from 0 to 1 of ``size`` x ``size`` pixels."""
        if self.area is None:
            crops = random_crops(images, size, self.padding, generator).float() / 255
        else:
            boxes = random_boxes(len(images), self.area, self.stretch, generator)
            crops = resized_crops(images.float() / 255, boxes.to(images.device), size)
        if self.flip:
            crops = random_flips(crops, generator)
        for change in self._color_changes(generator):
            crops = change(crops, generator=generator)
        if self.autoaugment is not None:
            crops = autoaugment(crops, self.autoaugment, generator)
        if self.cutout:
            crops = random_cutout(crops, self.cutout, generator)
        return crops

    def _color_changes(self, generator: Generator) -> list[Callable[..., Tensor]]:
        """Return the changes of color in an order that is random for each batch."""
        strengths = {
            random_brightness: self.brightness,
            random_contrast: self.contrast,
            random_saturation: self.saturation,
            random_hue: self.hue,
        }
        changes: list[Callable[..., Tensor]] = [
            partial(change, strength=strength) for change, strength in strengths.items() if strength
        ]
        if len(changes) > 1:
            changes = [changes[i] for i in torch.randperm(len(changes), generator=generator)]
        return changes


_LATER = {"contrast", "saturation", "hue", "autoaugment", "cutout"}


def random_crops(images: Tensor, size: int, padding: int, generator: Generator) -> Tensor:
    """Return a random window of ``size`` x ``size`` pixels from each zero-padded image."""
    padded = functional.pad(images, (padding,) * 4)
    margins = [side - size for side in padded.shape[2:]]
    if min(margins) < 0:
        raise TrainingError(
            f"images of {tuple(images.shape[2:])} pixels with padding={padding} are smaller than "
            f"{size} x {size}. Enlarge them first, or lower the input size."
        )
    top, left = (
        torch.randint(0, margin + 1, (len(images),), generator=generator).to(images.device)
        for margin in margins
    )
    windows = padded.unfold(2, size, 1).unfold(3, size, 1)  # a view; indexing copies
    return windows[torch.arange(len(images), device=images.device), :, top, left]


def random_boxes(
    count: int, area: tuple[float, float], stretch: float, generator: Generator
) -> Tensor:
    """Return random boxes in the unit square as rows (left, top, right, bottom).

    A side longer than 1 is clipped, not drawn again; such a box is smaller than its area.
    """
    share, exponent, x, y = torch.rand(4, count, generator=generator)
    share = area[0] + (area[1] - area[0]) * share
    ratio = torch.tensor(stretch).pow(2 * exponent - 1)
    width = (share * ratio).sqrt().clamp(max=1)
    height = (share / ratio).sqrt().clamp(max=1)
    left, top = x * (1 - width), y * (1 - height)
    return torch.stack([left, top, left + width, top + height], dim=1)


def resized_crops(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Return one box per image, resized bilinearly to ``size`` x ``size`` pixels."""
    left, top, right, bottom = boxes.unbind(1)
    zero = torch.zeros_like(left)
    # Maps output coordinates to image coordinates, both from -1 to 1.
    across = torch.stack([right - left, zero, left + right - 1], dim=1)
    down = torch.stack([zero, bottom - top, top + bottom - 1], dim=1)
    shape = [len(images), images.shape[1], size, size]
    grid = functional.affine_grid(torch.stack([across, down], 1), shape, align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def random_flips(images: Tensor, generator: Generator) -> Tensor:
    """Flip each image horizontally with probability 1/2."""
    chosen = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def random_brightness(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Multiply each image by a factor from ``1 - strength`` to ``1 + strength``, and clip it."""
    factors = _factors(images, strength, generator)
    return (images * factors[:, None, None, None]).clamp(0, 1)


def random_contrast(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Multiply the differences from the mean gray value by such a factor."""
    mean = gray_of(images).mean((1, 2, 3), keepdim=True)
    return blend(mean, images, _factors(images, strength, generator))


def random_saturation(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Multiply the differences from the gray image by such a factor."""
    return blend(gray_of(images), images, _factors(images, strength, generator))


def random_hue(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Move the hues of each image by up to ``strength`` of the color circle."""
    return shift_hue(images, _factors(images, strength, generator) - 1)


def _factors(images: Tensor, strength: float, generator: Generator) -> Tensor:
    draws = torch.rand(len(images), generator=generator)
    return (1 + strength * (2 * draws - 1)).to(images.device)


_SMALL = Augmentation(padding=4, flip=True, brightness=63 / 255)
_LARGE = Augmentation(area=(0.08, 1.0), flip=True, brightness=63 / 255)

AUGMENTATIONS: Mapping[str, Augmentation] = MappingProxyType(
    {
        "cifar100": _SMALL,
        "tiny-imagenet": Augmentation(padding=8, flip=True, brightness=63 / 255),
        "mini-imagenet": _LARGE,
        "imagenet-subset": _LARGE,
        "imagenet-r": _LARGE,
        "cub200": _LARGE,
        "core50": _LARGE,
        "glyphs": Augmentation(padding=2),  # a flipped b is a d
        "digits": Augmentation(padding=1),
        "quickdraw": Augmentation(padding=2, flip=True),
        "none": Augmentation(),
    }
)
"""By data set. The padding of tiny-imagenet is that of CIFAR, scaled to images twice as large."""


def augmentation_for(name: str, size: int) -> Augmentation:
    """Return the augmentation of a data set; for others one for photographs of ``size`` pixels.

    >>> augmentation_for("glyphs", 32).flip, augmentation_for("my photos", 224).flip
    (False, True)
    """
    return AUGMENTATIONS.get(name, _SMALL if size < 84 else _LARGE)
