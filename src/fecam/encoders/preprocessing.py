"""The preprocessing of images for a network: size, crop and normalization.

It is stored with the weights as a dictionary of plain values, and is part of their fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fecam.data.dataset import fingerprint_of
from fecam.data.images import read_image
from fecam.errors import EncoderError
from fecam.validation import check_choice, check_int, check_number

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""In the order of Pillow's numbers, which settings of image processors use."""
LARGEST = 4096
"""Pixels. Limits the memory that a size in an untrusted file can allocate."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """Converts an image to the ``size`` x ``size`` pixels that a network takes.

    The shorter side is resized to ``resize`` pixels and the center is cropped; with ``squash`` both
    sides are resized to ``resize``. The network receives ``(pixel * scale - mean) / std``.

    >>> steps = ImagePreprocessing(size=2, mean=(0.5,) * 3, std=(0.25,) * 3)
    >>> white = np.full((30, 40, 3), 255, np.uint8)
    >>> steps.pixels(white).shape, steps(white).max().item()
    ((3, 2, 2), 2.0)
    >>> ImagePreprocessing.from_dict(steps.as_dict()) == steps
    True
    """

    size: int
    resize: int = 0
    """0 means ``size``."""
    squash: bool = False
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        size = check_int("size", self.size, 1, LARGEST, error=EncoderError)
        values = {
            "size": size,
            "resize": check_int("resize", self.resize or size, size, LARGEST, error=EncoderError),
            "mean": _per_channel("mean", self.mean, minimum=-np.inf),
            "std": _per_channel("std", self.std, above=0),
        }
        check_number("scale", self.scale, above=0, error=EncoderError)
        check_choice("interpolation", self.interpolation, INTERPOLATIONS, error=EncoderError)
        if type(self.squash) is not bool:
            raise EncoderError(f"squash={self.squash!r} must be true or false.")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def pixels(self, item: Any) -> NDArray[np.uint8]:
        """Return the 8-bit pixels (3, size, size) of anything that `read_image` takes."""
        array = read_image(item)
        height, width = array.shape[:2]
        # Interpolates only the crop, however long and narrow the image is.
        across, left, right = self._crop(width, height)
        down, top, bottom = self._crop(height, width)
        image = Image.fromarray(np.ascontiguousarray(array)).resize(
            (self.size, self.size),
            Image.Resampling[self.interpolation.upper()],
            box=(
                left * width / across,
                top * height / down,
                right * width / across,
                bottom * height / down,
            ),
            # Averages large photographs down to three times the size first: faster, and the result
            # differs by at most two gray levels.
            reducing_gap=3.0,
        )
        return np.asarray(image).transpose(2, 0, 1)

    def __call__(self, item: Any) -> NDArray[np.float32]:
        """Return the network's input for one image: float32 (3, size, size)."""
        return self.normalize(self.pixels(item))

    def normalize(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the network's input for 8-bit pixels (..., 3, h, w)."""
        factor, offset = (np.asarray(v, np.float32)[:, None, None] for v in self.affine)
        normalized: NDArray[np.float32] = pixels.astype(np.float32)
        normalized *= factor
        normalized += offset
        return normalized

    @property
    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Factor and offset per channel that normalize a pixel."""
        factors = tuple(self.scale / std for std in self.std)
        return factors, tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def _crop(self, side: int, other: int) -> tuple[int, int, int]:
        """Return a side's pixels after resizing, and where the crop starts and ends."""
        shorter = self.squash or side <= other
        resized = self.resize if shorter else self.resize * side // other
        start = (resized - self.size) // 2
        return resized, start, start + self.size

    def describe(self) -> str:
        """Return a description of the steps.

        >>> ImagePreprocessing(size=224, resize=256, mean=(127,) * 3, std=(128,) * 3,
        ...                    scale=1).describe()
        'shorter side to 256 (bicubic), center 224 x 224, (pixel - 127) / 128'
        """
        steps = [f"{'both sides' if self.squash else 'shorter side'} to {self.resize}"]
        steps[0] += f" ({self.interpolation})"
        if self.resize > self.size or not self.squash:
            steps.append(f"center {self.size} x {self.size}")
        scale = "" if self.scale == 1 else f" / {1 / self.scale:g}"
        steps.append(f"(pixel{scale} - {_short(self.mean)}) / {_short(self.std)}")
        return ", ".join(steps)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ImagePreprocessing:
        """Return the preprocessing of a dictionary from `as_dict`, or raise `EncoderError`."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or not {"size"} <= set(values) <= names:
            raise EncoderError(
                f"not a preprocessing: {str(values)[:200]}. It must have size, and may have "
                f"{', '.join(sorted(names - {'size'}))}."
            )
        return cls(**values)

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a pixel may."""
        return fingerprint_of([json.dumps(self.as_dict(), sort_keys=True)])


def _per_channel(name: str, values: Any, **bounds: float) -> tuple[float, ...]:
    values = tuple(values) if isinstance(values, (list, tuple)) else (values,) * 3
    if len(values) != 3:
        raise EncoderError(f"{name}={values!r} must be one number, or three: red, green, blue.")
    return tuple(check_number(name, value, error=EncoderError, **bounds) for value in values)  # type: ignore[arg-type]


def _short(values: tuple[float, ...]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"
