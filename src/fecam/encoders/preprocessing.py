"""What happens to an image before a network sees it: a size, a crop, a normalisation.

It travels with the weights, as a dictionary of plain values, and is part of their fingerprint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fecam.data.dataset import fingerprint_of
from fecam.data.images import read_image
from fecam.errors import EncoderError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""In the order of Pillow's numbers, which other people's settings use."""
LARGEST = 4096
"""No side is longer: settings come out of files, and nothing is allocated on their word alone."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """From any image to the ``size`` x ``size`` pixels that a network wants.

    The shorter side is brought to ``resize`` pixels and the centre is cut out; with ``squash``,
    both sides are brought to ``resize``, so that nothing is cut off an image that is small anyway.
    The network is shown ``(pixel * scale - mean) / std``.

    >>> steps = ImagePreprocessing(size=2, mean=(0.5,) * 3, std=(0.25,) * 3)
    >>> white = np.full((30, 40, 3), 255, np.uint8)
    >>> steps.pixels(white).shape, steps(white).max().item()
    ((3, 2, 2), 2.0)
    >>> ImagePreprocessing.from_dict(steps.as_dict()) == steps
    True
    """

    size: int
    resize: int = 0
    """0 is as ``size``."""
    squash: bool = False
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        object.__setattr__(self, "resize", self.resize or self.size)
        object.__setattr__(self, "mean", _three("mean", self.mean))
        object.__setattr__(self, "std", _three("std", self.std))
        for name, value in (("size", self.size), ("resize", self.resize)):
            if type(value) is not int or not 1 <= value <= LARGEST:
                raise EncoderError(
                    f"preprocessing with {name}={value!r}: give whole pixels from 1 to {LARGEST}"
                )
        if self.resize < self.size:
            raise EncoderError(
                f"preprocessing cannot cut {self.size} pixels out of resize={self.resize}: "
                "give a resize of at least size"
            )
        if self.interpolation not in INTERPOLATIONS:
            raise EncoderError(
                f"preprocessing with interpolation={self.interpolation!r}: choose one of "
                f"{', '.join(INTERPOLATIONS)}"
            )
        if type(self.squash) is not bool:
            raise EncoderError(f"preprocessing with squash={self.squash!r}: give true or false")
        if min(self.std) <= 0 or not _is_number(self.scale) or self.scale <= 0:
            raise EncoderError(
                f"preprocessing with std={self.std}, scale={self.scale!r}: give positive numbers"
            )

    def pixels(self, item: Any) -> NDArray[np.uint8]:
        """The pixels the network looks at, still 8-bit: (3, size, size).

        ``item`` is whatever `fecam.data.images.read_image` takes: an array, a path, bytes, a
        Pillow image.
        """
        array = read_image(item)
        height, width = array.shape[:2]
        # Only what the crop keeps is interpolated, however long and thin the image is.
        across, left, right = self._kept(width, height)
        down, top, bottom = self._kept(height, width)
        image = Image.fromarray(np.ascontiguousarray(array)).resize(
            (self.size, self.size),
            Image.Resampling[self.interpolation.upper()],
            box=(
                left * width / across,
                top * height / down,
                right * width / across,
                bottom * height / down,
            ),
            # Large photographs are first averaged down to thrice the size: the same picture to a
            # grey level or two, in a fraction of the time.
            reducing_gap=3.0,
        )
        return np.asarray(image).transpose(2, 0, 1)

    def __call__(self, item: Any) -> NDArray[np.float32]:
        """One image as the network wants it: float32 (3, size, size)."""
        return self.normalised(self.pixels(item))

    def normalised(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """8-bit pixels (..., 3, h, w) as the network wants them."""
        factor, offset = (np.asarray(v, np.float32)[:, None, None] for v in self.affine)
        normalised: NDArray[np.float32] = pixels.astype(np.float32)
        normalised *= factor
        normalised += offset
        return normalised

    @property
    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Factor and offset for each channel that turn a pixel into what the network is shown."""
        factors = tuple(self.scale / std for std in self.std)
        return factors, tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def _kept(self, side: int, other: int) -> tuple[int, int, int]:
        """A side's pixels after resizing, and from where to where the crop keeps them."""
        shorter = self.squash or side <= other
        resized = self.resize if shorter else self.resize * side // other
        start = (resized - self.size) // 2
        return resized, start, start + self.size

    def describe(self) -> str:
        """The steps, for a person to read.

        >>> ImagePreprocessing(size=224, resize=256, mean=(127,) * 3, std=(128,) * 3,
        ...                    scale=1).describe()
        'shorter side to 256 (bicubic), centre 224 x 224, (pixel - 127) / 128'
        """
        steps = [f"{'both sides' if self.squash else 'shorter side'} to {self.resize}"]
        steps[0] += f" ({self.interpolation})"
        if self.resize > self.size or not self.squash:
            steps.append(f"centre {self.size} x {self.size}")
        scale = "" if self.scale == 1 else f" / {1 / self.scale:g}"
        steps.append(f"(pixel{scale} - {_words(self.mean)}) / {_words(self.std)}")
        return ", ".join(steps)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ImagePreprocessing:
        """What `as_dict` gave; anything else is an `EncoderError`."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"size"} <= set(values) <= known:
            raise EncoderError(
                f"not a preprocessing: {str(values)[:200]}; it has size, and may have "
                f"{', '.join(sorted(known - {'size'}))}"
            )
        return cls(**values)

    @property
    def fingerprint(self) -> str:
        """Changes whenever a pixel might."""
        return fingerprint_of([json.dumps(self.as_dict(), sort_keys=True)])


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _three(name: str, values: Any) -> tuple[float, ...]:
    values = tuple(values) if isinstance(values, (list, tuple)) else (values,) * 3
    if len(values) != 3 or not all(map(_is_number, values)):
        raise EncoderError(
            f"preprocessing with {name}={str(values)[:100]}: give a number, or one for each of "
            "red, green, blue"
        )
    return tuple(map(float, values))


def _words(values: tuple[float, ...]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"
