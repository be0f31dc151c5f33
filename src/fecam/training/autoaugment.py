"""AutoAugment: the policy that Cubuk et al. (2019) found for CIFAR-10, on batches of images.

Each image gets one of 25 pairs of operations, and each operation of the pair with a probability of
its own. Ranges of the operations are those of the public ports for Pillow, which the recipes of
FeCAM and its peers use; images are read at the nearest pixel and filled with gray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from fecam.training import augmentation_color as color
from fecam.training import augmentation_geometry as geometry

Operation = Callable[[Tensor, Tensor], Tensor]
"""Pixels and one magnitude per image to pixels; values are whole numbers from 0 to 255."""

_LARGEST_LEVEL = 9
Magnitude = Callable[[Tensor, Tensor], Tensor]
"""A share of the range from 0 to 1 and a sign, per image, to magnitudes."""


def _signed(largest: float) -> Magnitude:
    return lambda share, sign: sign * largest * share


def _factor(share: Tensor, sign: Tensor) -> Tensor:
    return 1 + sign * 0.9 * share


_ENHANCE = (
    ("brightness", color.enhance_brightness),
    ("color", color.enhance_color),
    ("contrast", color.enhance_contrast),
    ("sharpness", color.enhance_sharpness),
)

OPERATIONS: Mapping[str, tuple[Operation, Magnitude]] = MappingProxyType(
    {
        "shear-x": (geometry.shear_x, _signed(0.3)),
        "shear-y": (geometry.shear_y, _signed(0.3)),
        "translate-x": (geometry.translate_x, _signed(150 / 331)),
        "translate-y": (geometry.translate_y, _signed(150 / 331)),
        "rotate": (geometry.rotate, _signed(30)),
        "posterize": (color.posterize, lambda share, _: (8 - 4 * share).round()),
        "solarize": (color.solarize, lambda share, _: 256 * (1 - share)),
        "invert": (color.invert, _factor),
        "autocontrast": (color.autocontrast, _factor),
        "equalize": (color.equalize, _factor),
        **{name: (operation, _factor) for name, operation in _ENHANCE},
    }
)
"""The operations by name, with the rule of their magnitudes; some have none and ignore it."""

Step = tuple[str, float, int]
"""Operation, probability, level from 0 to 9."""

CIFAR10: tuple[tuple[Step, Step], ...] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate-x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear-y", 0.5, 8), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear-y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate-x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate-y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),  # some ports have 0.8
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate-y", 0.9, 9), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate-y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
"""The pairs of the paper's table."""

POLICIES = MappingProxyType({"cifar10": CIFAR10})


def autoaugment(images: Tensor, policy: str, generator: Generator) -> Tensor:
    """Return images from 0 to 1 changed by a random pair of operations each.

    Values are rounded to 8 bits, as the operations are defined on those.
    """
    pairs = POLICIES[policy]
    pixels = (images * 255).round()
    chosen = torch.randint(len(pairs), (len(pixels),), generator=generator)
    luck = torch.rand(2, len(pixels), generator=generator)
    signs = 2.0 * torch.randint(2, (2, len(pixels)), generator=generator) - 1
    for position in (0, 1):
        steps = [pair[position] for pair in pairs]
        names = [name for name, _, _ in steps]
        probabilities, levels = torch.tensor([step[1:] for step in steps])[chosen].unbind(1)
        # Integers for all images that get an operation; others get -1.
        codes = torch.tensor([names.index(name) for name in names])[chosen]
        codes[luck[position] >= probabilities] = -1
        for code in set(codes.tolist()) - {-1}:
            rows = (codes == code).nonzero()[:, 0]
            operation, magnitude = OPERATIONS[names[code]]
            share = levels[rows] / _LARGEST_LEVEL
            magnitudes = magnitude(share, signs[position][rows]).to(pixels.device)
            rows = rows.to(pixels.device)
            pixels[rows] = operation(pixels[rows], magnitudes)
    return pixels / 255
