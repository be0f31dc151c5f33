"""Pictures that tests make: of each class a shape in a colour, on a plain ground."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

KINDS = {
    "robin": ("ellipse", (200, 80, 40)),
    "tit": ("triangle", (60, 120, 200)),
    "wren": ("rectangle", (120, 90, 50)),
    "crow": ("star", (20, 20, 25)),
    "dove": ("ring", (190, 190, 200)),
}


def picture(name, rng, size=96):
    """One picture of a class."""
    kind, colour = KINDS[name]
    image = Image.new("RGB", (size, size), tuple(rng.integers(90, 255, 3).tolist()))
    draw = ImageDraw.Draw(image)
    x, y = rng.uniform(0.4, 0.6, 2) * size
    r = rng.uniform(0.2, 0.34) * size
    fill = tuple(int(np.clip(value + rng.normal(0, 15), 0, 255)) for value in colour)
    if kind == "ellipse":
        draw.ellipse([x - r, y - 0.6 * r, x + r, y + 0.6 * r], fill=fill)
    elif kind == "ring":
        draw.ellipse([x - r, y - r, x + r, y + r], outline=fill, width=size // 12)
    elif kind == "rectangle":
        draw.rectangle([x - 0.5 * r, y - r, x + 0.5 * r, y + r], fill=fill)
    else:
        corners = 3 if kind == "triangle" else 10
        angles = np.linspace(0, 2 * np.pi, corners, endpoint=False) + rng.uniform(0, 6)
        radii = np.where((np.arange(corners) % 2) & (corners > 3), 0.45 * r, r)
        points = np.stack([x + radii * np.cos(angles), y + radii * np.sin(angles)], axis=1)
        draw.polygon([tuple(point) for point in points], fill=fill)
    return image


def draw_pictures(folder, name, count, seed=0):
    """Some pictures of a class as files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, sorted(KINDS).index(name)])
    for number in range(count):
        picture(name, rng).save(folder / f"{number:02}.jpg", quality=92)
