"""Characters drawn in the typefaces that come with matplotlib: many classes, nothing to download.

150 classes (Latin, digits, Greek, Cyrillic, phonetic letters and signs) in 16 domains: four
families, each upright, bold, slanted, and both. Every class exists in every domain, so the set
serves class-incremental, few-shot and domain-incremental runs alike. Every drawing has its own
random generator, which makes it the same on every run, in whatever order and at whatever number
of drawings it is asked for.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.errors import DatasetError, MissingPackageError, SettingsError

CHARACTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "abdefghijmnqrty"
    "123456789"
    "ΓΔΘΛΞΠΣΦΨΩβδζηλμξσωϛϞϟϡ"
    "БДЖИЙЛЦЧШЩЪЫЭЮЯЄЉЊЂѢ"
    "ƕɤɮʞʤʧʨ"
    "!?&@#$%*+=<>()[]{}~¢£¤¥€§¶©®™№±÷¬∂†‡«»“…¿½¼¾æœÆŒØþ"
)
"""The classes: each is in all the typefaces, and no two look alike in any of them."""
# Of every group of look-alikes there is one: no c beside C, no Greek or Cyrillic capital beside its
# Latin twin, no 0 beside O, no l beside I, no ß beside β. Slanted typefaces and random rotation add
# some: no / beside I, no α beside a, no γ beside Y, no ε beside Є, no ð beside δ.

TYPEFACES = {
    "DejaVu Sans": "DejaVuSans",
    "DejaVu Serif": "DejaVuSerif",
    "DejaVu Sans Mono": "DejaVuSansMono",
    "STIX": "STIXGeneral",
    "DejaVu Sans Bold": "DejaVuSans-Bold",
    "DejaVu Serif Bold": "DejaVuSerif-Bold",
    "DejaVu Sans Mono Bold": "DejaVuSansMono-Bold",
    "STIX Bold": "STIXGeneralBol",
    "DejaVu Sans Oblique": "DejaVuSans-Oblique",
    "DejaVu Serif Italic": "DejaVuSerif-Italic",
    "DejaVu Sans Mono Oblique": "DejaVuSansMono-Oblique",
    "STIX Italic": "STIXGeneralItalic",
    "DejaVu Sans Bold Oblique": "DejaVuSans-BoldOblique",
    "DejaVu Serif Bold Italic": "DejaVuSerif-BoldItalic",
    "DejaVu Sans Mono Bold Oblique": "DejaVuSansMono-BoldOblique",
    "STIX Bold Italic": "STIXGeneralBolIta",
}
"""The domains and their files, the families in turn: a few drawings are of several families.

Computer Modern is left out: behind its TeX-encoded character map there are only Latin letters and
digits.
"""

# Part of the fingerprint: raise it whenever the drawings change.
_RECIPE = 1
_SMALLEST = 8
# Drawn so many times larger and averaged: distorting a character of 20 pixels would fray it.
_OVERSAMPLING = 2
# All in parts of the image's side, so that a drawing is the same one at every size.
_EM, _MARGIN, _MOST_SHIFT, _MOST_BLUR = 0.72, 1 / 32, 0.08, 1 / 64
_MOST_ANGLE, _MOST_SHEAR, _SCALES = math.pi / 12, 0.15, (0.7, 1.1)
_LEAST_CONTRAST, _MOST_NOISE = 60, 20  # in grey levels


def load(
    *, per_class: int = 160, test_share: float = 0.3, size: int = 64, seed: int = 0
) -> Dataset:
    """Return ``per_class`` drawings of each class, as images (size, size, 3).

    They are dealt to the typefaces in turn, those for training (112 of 160) and those for testing
    each by themselves: with the default numbers, every class has 7 and 3 in each of the 16. Asking
    for more leaves the drawings there were as they are; another seed gives other drawings.
    64 pixels are enough for encoders that were trained on photographs, and scale down well to the
    32 of a small network; the time to draw one grows with ``size`` squared.

    >>> data = load(per_class=10, size=32)
    >>> data.items[0].shape, len(data), len(data.test), len(data.label_names)
    ((32, 32, 3), 1500, 450, 150)
    >>> data.domain_names[data.domains[1]]
    'DejaVu Serif'
    """
    _check(per_class, test_share, size, seed)
    files, hashes = _font_files()
    tests = round(per_class * test_share)
    turns = np.concatenate([np.arange(per_class - tests), np.arange(tests)])
    domains = np.tile(turns % len(TYPEFACES), len(CHARACTERS))
    is_test = np.tile(np.arange(per_class) >= per_class - tests, len(CHARACTERS))
    drawings = _Drawings(
        labels=np.repeat(np.arange(len(CHARACTERS)), per_class),
        domains=domains,
        is_test=is_test,
        numbers=np.tile(turns // len(TYPEFACES), len(CHARACTERS)),
        files=files,
        size=int(size),
        seed=int(seed),
    )
    # The first drawings tell what no version number does: another build of Pillow, say, or a
    # numpy whose generators draw other numbers.
    sample = np.stack(drawings[: len(TYPEFACES)])
    return Dataset(
        name="glyphs",
        kind="images",
        items=drawings,
        labels=drawings.labels,
        label_names=tuple(CHARACTERS),
        fingerprint=fingerprint_of(
            [
                *("glyphs", _RECIPE, CHARACTERS, int(per_class), tests, int(size), int(seed)),
                *(*hashes, *_versions(), sample),
            ]
        ),
        is_test=is_test,
        domains=domains,
        domain_names=tuple(TYPEFACES),
    )


def _check(per_class: int, test_share: float, size: int, seed: int) -> None:
    for name, value, least in (
        ("per_class", per_class, 1),
        ("size", size, _SMALLEST),
        ("seed", seed, 0),
    ):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise SettingsError(
                f"glyphs: {name} must be a whole number of at least {least}, got {value!r}"
            )
    if not isinstance(test_share, Real) or not 0 <= test_share < 1:
        raise SettingsError(
            f"glyphs: test_share must be a number from 0 to below 1, got {test_share!r}"
        )
    if round(per_class * test_share) == per_class:
        raise SettingsError(
            f"glyphs: per_class={per_class} and test_share={test_share} leave no drawing to learn "
            "from. Remedy: a larger per_class or a smaller test_share"
        )


@dataclass(frozen=True, eq=False)
class _Drawings(Sequence[Any]):
    """Drawings that are made when they are asked for; for each, what it is of."""

    labels: NDArray[np.int64]
    domains: NDArray[np.int64]
    is_test: NDArray[np.bool_]
    numbers: NDArray[np.int64]
    """Which drawing of its class, typeface and side of the split it is."""
    files: tuple[str, ...]
    size: int
    seed: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        character, domain = CHARACTERS[self.labels[at]], int(self.domains[at])
        rng = np.random.default_rng(
            [self.seed, ord(character), domain, int(self.is_test[at]), int(self.numbers[at])]
        )
        font = _font(self.files[domain], round(_EM * _OVERSAMPLING * self.size))
        grey = draw(character, font, self.size, rng)
        return np.repeat(grey[:, :, None], 3, axis=2)


def draw(character: str, font: Any, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one dark character on light paper, distorted at random but never cut off.

    ``font`` is a Pillow font of the size that the character is to have on a canvas twice as large.
    """
    from PIL import Image, ImageDraw, ImageFilter

    side = _OVERSAMPLING * size
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (side, side))
    place = ((side - left - right) / 2, (side - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(place, character, fill=255, font=font)

    angle = rng.uniform(-_MOST_ANGLE, _MOST_ANGLE)
    shear = rng.uniform(-_MOST_SHEAR, _MOST_SHEAR)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    forward = rotation @ np.array([[1.0, shear], [0.0, 1.0]])
    # How far the distorted box of the ink reaches from its centre, and how far it may.
    reach, most = np.abs(forward) @ [(right - left) / 2, (bottom - top) / 2], (0.5 - _MARGIN) * side
    scale = min(rng.uniform(*_SCALES), most / reach.max())
    forward *= scale
    shift = rng.uniform(-1, 1, size=2) * np.minimum(most - scale * reach, _MOST_SHIFT * side)
    # Pillow asks where each pixel of the result comes from: the inverse of the distortion.
    inverse = np.linalg.inv(forward)
    centre = np.full(2, side / 2)
    coefficients = np.column_stack([inverse, centre - inverse @ (centre + shift)])
    canvas = canvas.transform(
        (side, side),
        Image.Transform.AFFINE,
        coefficients.ravel().tolist(),
        Image.Resampling.BICUBIC,
    )
    canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0, _MOST_BLUR) * side))
    ink = np.asarray(canvas.reduce(_OVERSAMPLING), dtype=np.float64) / 255

    paper = rng.uniform(128, 255)
    darkest = rng.uniform(0, paper - _LEAST_CONTRAST)
    grey = paper + (darkest - paper) * ink
    grey += rng.normal(scale=rng.uniform(0, _MOST_NOISE), size=grey.shape)
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


_OF_THIS_THREAD = threading.local()


def _font(file: str, pixels: int) -> Any:
    """A typeface that only this thread draws with.

    FreeType's faces must not be used by two threads at once. Python's global lock sees to that
    where there is one (measured: no difference in 1,200 masks by eight threads), but without it
    Pillow crashed before its version 12.2.
    """
    from PIL import ImageFont

    fonts = _OF_THIS_THREAD.__dict__
    key = f"{pixels} {file}"
    if key not in fonts:
        # The basic layout is the one every build of Pillow has.
        fonts[key] = ImageFont.truetype(file, pixels, layout_engine=ImageFont.Layout.BASIC)
    return fonts[key]


@lru_cache(maxsize=1)
def _font_files() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The typefaces' files, and the hash of what is in each."""
    try:
        import matplotlib
        import PIL  # noqa: F401  # drawing needs it: now is the time to say so
        from fontTools.ttLib import TTFont
    except ImportError as error:
        package = "pillow" if error.name == "PIL" else error.name or "matplotlib"
        raise MissingPackageError("the data set 'glyphs'", package, "glyphs") from error

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files, hashes = [], []
    for name, stem in TYPEFACES.items():
        file = folder / f"{stem}.ttf"
        try:
            hashes.append(hashlib.sha256(file.read_bytes()).hexdigest())
            with TTFont(file) as font:
                held = font.getBestCmap()
        except OSError as error:
            raise DatasetError(
                f"the typeface {name} of matplotlib cannot be read: {error}. Remedy: install "
                "matplotlib from PyPI, which brings its typefaces along"
            ) from error
        if missing := [character for character in CHARACTERS if ord(character) not in held]:
            raise DatasetError(
                f"the typeface {file} lacks {''.join(missing)}. Remedy: install matplotlib from "
                "PyPI, whose own typefaces have them"
            )
        files.append(str(file))
    return tuple(files), tuple(hashes)


def _versions() -> tuple[str, str]:
    """Of what draws: Pillow and the FreeType in it."""
    import PIL
    from PIL import features

    return PIL.__version__, str(features.version("freetype2"))
