"""Encoders that need no weights, by name, for tests of commands."""

from __future__ import annotations

import numpy as np

from fecam.data.images import read_image
from fecam.encoders import load as load_any
from fecam.encoders.encoder import Encoder
from fecam.errors import ItemError


class Colours(Encoder):
    """Mean and standard deviation of each color in four quarters of an image."""

    name, kind, n_features = "colours", "images", 24
    fingerprint, preprocessing = "colours-1", "none"

    def prepare(self, item):
        image = read_image(item).astype(np.float32) / 255
        half = image.shape[0] // 2
        corners = [
            part for side in (image[:half], image[half:]) for part in np.array_split(side, 2, 1)
        ]
        return np.concatenate([[part.mean((0, 1)), part.std((0, 1))] for part in corners]).ravel()

    def embed(self, prepared):
        return np.asarray(prepared, np.float32)


class Shades(Colours):
    """Like `Colours`, with a third as many features: another encoder for the same images."""

    name, n_features, fingerprint = "shades", 8, "shades-1"

    def prepare(self, item):
        features = super().prepare(item).reshape(4, 2, 3)
        return np.sqrt(features @ np.asarray([0.6, 0.3, 0.1], np.float32)).ravel()


class Blind(Colours):
    """Like `Colours`, but dark images cannot be read, and features may be negative."""

    name, fingerprint = "blind", "blind-1"

    def prepare(self, item):
        features = super().prepare(item)
        if features.mean() < 0.05:
            raise ItemError(item, "it is too dark")
        return features[::-1] - 0.3


class Letters(Encoder):
    """How often each letter occurs in a text."""

    name, kind, n_features, fingerprint, preprocessing = "letters", "texts", 26, "letters-1", "none"

    def prepare(self, item):
        return [item.count(chr(97 + i)) for i in range(26)]

    def embed(self, prepared):
        return np.asarray(prepared, np.float32)


def load(name, **options):
    """As `fecam.encoders.load`, which knows fewer."""
    own = {encoder.name: encoder for encoder in (Colours, Shades, Blind, Letters)}
    return own[name]() if name in own else load_any(name, **options)
