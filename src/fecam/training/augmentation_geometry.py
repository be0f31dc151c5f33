"""Affine maps of batches of images and erased squares, with random values per image."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

GRAY = 128.0
"""The value of pixels from outside the image."""


def shear_x(pixels: Tensor, factors: Tensor) -> Tensor:
    """Move each row sideways by ``factor`` times its height."""
    return affine(pixels, _matrices(factors, b=factors))


def shear_y(pixels: Tensor, factors: Tensor) -> Tensor:
    """Move each column up or down by ``factor`` times its place."""
    return affine(pixels, _matrices(factors, d=factors))


def translate_x(pixels: Tensor, shares: Tensor) -> Tensor:
    """Move the image sideways by a share of its width."""
    return affine(pixels, _matrices(shares, c=shares * pixels.shape[3]))


def translate_y(pixels: Tensor, shares: Tensor) -> Tensor:
    """Move the image up or down by a share of its height."""
    return affine(pixels, _matrices(shares, f=shares * pixels.shape[2]))


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counterclockwise around the center."""
    angles = -degrees.double().deg2rad()
    cos, sin = angles.cos(), angles.sin()
    x, y = pixels.shape[3] / 2, pixels.shape[2] / 2
    c, f = x - cos * x - sin * y, y + sin * x - cos * y
    return affine(pixels, torch.stack([cos, sin, c, -sin, cos, f], dim=1))


def affine(pixels: Tensor, matrices: Tensor) -> Tensor:
    """Return ``pixels[a x + b y + c, d x + e y + f]`` at each (x, y): the nearest pixel, or gray.

    As in Pillow, coordinates of pixel centers are in units of 1 / 65536.
    """
    count, channels, height, width = pixels.shape
    a, b, c, d, e, f = matrices.double().to(pixels.device).unbind(1)
    x = torch.arange(width, device=pixels.device)
    y = torch.arange(height, device=pixels.device)[:, None]

    def source(across: Tensor, down: Tensor, offset: Tensor) -> Tensor:
        start = _fixed(offset + (across + down) / 2)
        return (start + _fixed(across) * x + _fixed(down) * y) >> 16

    column, row = source(a, b, c), source(d, e, f)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places = (row * width + column).where(inside, 0).view(count, 1, -1)
    moved = pixels.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(pixels)
    return moved.where(inside[:, None], GRAY)


def random_cutout(images: Tensor, side: int, generator: Generator) -> Tensor:
    """Return images with a black square; at a border only a part of it is in the image."""
    height, width = images.shape[2:]
    y, x = (
        torch.randint(0, length, (len(images), 1), generator=generator).to(images.device)
        for length in (height, width)
    )
    rows = _covered(height, y, side)[:, None, :, None]
    columns = _covered(width, x, side)[:, None, None, :]
    return images.masked_fill(rows & columns, 0)


def _covered(length: int, center: Tensor, side: int) -> Tensor:
    places = torch.arange(length, device=center.device)
    start = center - side // 2
    return (places >= start) & (places < start + side)


def _matrices(values: Tensor, **entries: Tensor) -> Tensor:
    """Return the rows (a, b, c, d, e, f) of identities with other entries."""
    entries = {"a": torch.ones_like(values), "e": torch.ones_like(values), **entries}
    zero = torch.zeros_like(values)
    return torch.stack([entries.get(name, zero) for name in "abcdef"], dim=1)


def _fixed(values: Tensor) -> Tensor:
    return (values * 65536 + 0.5).floor().long()[:, None, None]
