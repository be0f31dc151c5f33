"""Changes of color in batches of images (n, 3, h, w), with one factor per image.

Most functions take any scale. Those of Pillow take floats that hold whole numbers from 0 to 255,
and return what Pillow returns for 8-bit images.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a gray value (ITU-R 601)."""
_LUMA_16_BIT = (19595.0, 38470.0, 7471.0)
"""The same in units of 1 / 65536, as Pillow has them; the sums are exact in single precision."""


def blend(base: Tensor, images: Tensor, factors: Tensor, maximum: float = 1.0) -> Tensor:
    """Return ``base + factor (image - base)``, clipped: 0 is the base, 1 the image.

    >>> blend(torch.tensor(0.5), torch.full((1, 1, 1, 1), 0.75), torch.tensor([2.0])).item()
    1.0
    """
    return (base + _per_image(factors) * (images - base)).clamp(0, maximum)


def gray_of(images: Tensor) -> Tensor:
    """Return the gray values, (n, 1, h, w)."""
    return _weighted(images, LUMA)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Return images from 0 to 1 with hues moved by ``turns`` of the color circle.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    >>> shift_hue(red, torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    value, strongest = images.max(1)
    chroma = value - images.amin(1)
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixths = torch.where(
        strongest == 0,
        (green - blue) / safe,
        torch.where(strongest == 1, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sixths = sixths + 6 * turns.to(images.device)[:, None, None]
    # Each channel is value - chroma * ramp, where ramp is 0 near the channel's own hue.
    offsets = torch.tensor([5.0, 3.0, 1.0], device=images.device)[:, None, None]
    place = (sixths[:, None] + offsets) % 6
    ramp = torch.minimum(place, 4 - place).clamp(0, 1)
    return value[:, None] - chroma[:, None] * ramp


# ------------------------------------------------------------------ as in Pillow, on 8-bit values


def enhance_brightness(pixels: Tensor, factors: Tensor) -> Tensor:
    """Blend with black."""
    return blend(torch.zeros((), device=pixels.device), pixels, factors, 255).floor()


def enhance_color(pixels: Tensor, factors: Tensor) -> Tensor:
    """Blend with the gray image."""
    return blend(_gray_pixels(pixels), pixels, factors, 255).floor()


def enhance_contrast(pixels: Tensor, factors: Tensor) -> Tensor:
    """Blend with the mean gray value, rounded."""
    mean = _gray_pixels(pixels).double().mean((1, 2, 3), keepdim=True)
    return blend((mean + 0.5).floor().float(), pixels, factors, 255).floor()


def enhance_sharpness(pixels: Tensor, factors: Tensor) -> Tensor:
    """Blend with the image smoothed by a 3 x 3 filter; its border is not smoothed."""
    kernel = torch.ones(3, 1, 3, 3, device=pixels.device)
    kernel[:, :, 1, 1] = 5
    smooth = pixels.clone()
    sums = functional.conv2d(pixels, kernel, groups=3)  # whole numbers, so exact
    smooth[:, :, 1:-1, 1:-1] = (sums / 13 + 0.5).floor()
    return blend(smooth, pixels, factors, 255).floor()


def invert(pixels: Tensor, _: Tensor) -> Tensor:
    """Return the negative."""
    return 255 - pixels


def solarize(pixels: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the values that are not below the threshold."""
    return torch.where(pixels < _per_image(thresholds), pixels, 255 - pixels)


def posterize(pixels: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each value."""
    steps = _per_image(2.0 ** (8 - bits))
    return (pixels / steps).floor() * steps


def autocontrast(pixels: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 255; constant channels stay."""
    values = pixels.double()
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    scale = 255 / (high - low).clamp(min=1)
    stretched = (values * scale - low * scale).floor().clamp(0, 255)
    return torch.where(high > low, stretched, values).float()


def equalize(pixels: Tensor, _: Tensor) -> Tensor:
    """Make the histogram of each channel uniform."""
    values = pixels.long().flatten(0, 1).flatten(1)
    ones = torch.ones_like(values)
    counts = torch.zeros(len(values), 256, dtype=torch.long, device=values.device)
    counts.scatter_add_(1, values, ones)
    highest = counts.gather(1, values.amax(1, keepdim=True))
    step = (values.shape[1] - highest) // 255
    below = counts.cumsum(1) - counts
    safe = step.clamp(min=1)
    table = ((safe // 2 + below) // safe).clamp(max=255)
    equalized = table.gather(1, values).view_as(pixels).float()
    return torch.where((step > 0).view(*pixels.shape[:2], 1, 1), equalized, pixels)


def _gray_pixels(pixels: Tensor) -> Tensor:
    return ((_weighted(pixels, _LUMA_16_BIT) + 32768) / 65536).floor()


def _weighted(images: Tensor, shares: tuple[float, float, float]) -> Tensor:
    red, green, blue = images.unbind(1)
    return (red * shares[0] + green * shares[1] + blue * shares[2])[:, None]


def _per_image(factors: Tensor) -> Tensor:
    return factors[:, None, None, None]
