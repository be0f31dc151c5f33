"""Characters drawn with the fonts of matplotlib: many classes without a download.

150 classes (Latin, digits, Greek, Cyrillic, phonetic letters and signs) in 16 domains: four font
families, each upright, bold, slanted, and both. Every class exists in every domain, so the set
serves class-incremental, few-shot and domain-incremental runs. Every drawing has its own random
generator, so it depends neither on the order nor on the number of drawings.
"""

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.errors import DatasetError, SettingsError, needs_extra
from fecam.validation import check_fraction, check_int

CHARACTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "abdefghijmnqrty"
    "123456789"
    "ΓΔΘΛΞΠΣΦΨΩβδζηλμξσωϛϞϟϡ"
    "БДЖИЙЛЦЧШЩЪЫЭЮЯЄЉЊЂѢ"
    "ƕɤɮʞʤʧʨ"
    "!?&@#$%*+=<>()[]{}~¢£¤¥€§¶©®™№±÷¬∂†‡«»“…¿½¼¾æœÆŒØþ"
)
"""The classes: each is in all fonts, and no two look alike in any font."""
# One of every group of look-alikes: no c beside C, no Greek or Cyrillic capital beside its Latin
# twin, no 0 beside O, no l beside I, no ß beside β. Slanted fonts and random rotation add some:
# no / beside I, no α beside a, no γ beside Y, no ε beside Є, no ð beside δ.

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
"""The domains and their files, the families in turn, so that a few drawings have several families.

Computer Modern is left out: its TeX-encoded character map has only Latin letters and digits.
"""

# Part of the fingerprint: raise it when the drawings change.
_RECIPE = 1
_MIN_SIZE = 8
# Drawn larger by this factor and averaged: distorting a character of 20 pixels would fray it.
_OVERSAMPLING = 2
# In units of the image's side, so that a drawing is the same at every size.
_EM, _MARGIN, _MAX_SHIFT, _MAX_BLUR = 0.72, 1 / 32, 0.08, 1 / 64
_MAX_ANGLE, _MAX_SHEAR, _SCALES = math.pi / 12, 0.15, (0.7, 1.1)
_MIN_CONTRAST, _MAX_NOISE = 60, 20  # in gray levels


def load(
    *, per_class: int = 160, test_share: float = 0.3, size: int = 64, seed: int = 0
) -> Dataset:
    """Return ``per_class`` drawings of each class, as images (size, size, 3).

    Training drawings (112 of 160) and test drawings take the fonts in turn: by default every class
    has 7 and 3 per font. A larger ``per_class`` keeps the drawings of a smaller one. 64 pixels
    suffice for encoders that were trained on photographs and scale down well to the 32 of a small
    network; the time per drawing grows with ``size`` squared.
    """
    check_int("per_class", per_class)
    check_int("size", size, _MIN_SIZE)
    check_int("seed", seed, 0)
    check_fraction("test_share", test_share)
    if round(per_class * test_share) == per_class:
        raise SettingsError(
            f"per_class={per_class} and test_share={test_share} leave no drawing to learn from. "
            "Remedy: a larger per_class or a smaller test_share"
        )
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
    # The first drawings detect what no version number shows: another build of Pillow, or a numpy
    # whose generators draw other numbers.
    sample = np.stack(drawings[: len(TYPEFACES)])
    recipe = ("glyphs", _RECIPE, CHARACTERS, int(per_class), tests, int(size), int(seed))
    return Dataset(
        name="glyphs",
        kind="images",
        items=drawings,
        labels=drawings.labels,
        label_names=tuple(CHARACTERS),
        fingerprint=fingerprint_of([*recipe, *hashes, *_versions(), sample]),
        is_test=is_test,
        domains=domains,
        domain_names=tuple(TYPEFACES),
    )


@dataclass(frozen=True, eq=False)
class _Drawings(Sequence[Any]):
    """Drawings that are made when they are indexed."""

    labels: NDArray[np.int64]
    domains: NDArray[np.int64]
    is_test: NDArray[np.bool_]
    numbers: NDArray[np.int64]
    """Index of the drawing within its class, font and split."""
    files: tuple[str, ...]
    size: int
    seed: int

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        character, domain = CHARACTERS[self.labels[index]], int(self.domains[index])
        rng = np.random.default_rng(
            [self.seed, ord(character), domain, int(self.is_test[index]), int(self.numbers[index])]
        )
        font = _font(self.files[domain], round(_EM * _OVERSAMPLING * self.size))
        gray = draw(character, font, self.size, rng)
        return np.repeat(gray[:, :, None], 3, axis=2)


def draw(character: str, font: Any, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a distorted drawing of a character; ``font`` is `_OVERSAMPLING` times larger."""
    from PIL import Image, ImageDraw, ImageFilter

    side = _OVERSAMPLING * size
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (side, side))
    place = ((side - left - right) / 2, (side - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(place, character, fill=255, font=font)

    angle = rng.uniform(-_MAX_ANGLE, _MAX_ANGLE)
    shear = rng.uniform(-_MAX_SHEAR, _MAX_SHEAR)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    forward = rotation @ np.array([[1.0, shear], [0.0, 1.0]])
    # Half the size of the distorted bounding box, and its limit.
    reach = np.abs(forward) @ [(right - left) / 2, (bottom - top) / 2]
    limit = (0.5 - _MARGIN) * side
    scale = min(rng.uniform(*_SCALES), limit / reach.max())
    forward *= scale
    shift = rng.uniform(-1, 1, size=2) * np.minimum(limit - scale * reach, _MAX_SHIFT * side)
    # Pillow maps output pixels to input pixels: the inverse of the distortion.
    inverse = np.linalg.inv(forward)
    center = np.full(2, side / 2)
    coefficients = np.column_stack([inverse, center - inverse @ (center + shift)])
    canvas = canvas.transform(
        (side, side),
        Image.Transform.AFFINE,
        coefficients.ravel().tolist(),
        Image.Resampling.BICUBIC,
    )
    canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0, _MAX_BLUR) * side))
    ink = np.asarray(canvas.reduce(_OVERSAMPLING), dtype=np.float64) / 255

    paper = rng.uniform(128, 255)
    darkest = rng.uniform(0, paper - _MIN_CONTRAST)
    gray = paper + (darkest - paper) * ink
    gray += rng.normal(scale=rng.uniform(0, _MAX_NOISE), size=gray.shape)
    return np.clip(np.rint(gray), 0, 255).astype(np.uint8)


_THREAD_FONTS = threading.local()


def _font(file: str, pixels: int) -> Any:
    """Return a font for this thread only: FreeType faces are not thread-safe."""
    from PIL import ImageFont

    fonts = _THREAD_FONTS.__dict__
    key = f"{pixels} {file}"
    if key not in fonts:
        # The basic layout is the one every build of Pillow has.
        fonts[key] = ImageFont.truetype(file, pixels, layout_engine=ImageFont.Layout.BASIC)
    return fonts[key]


@lru_cache(maxsize=1)
def _font_files() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of the fonts, and their SHA-256."""
    with needs_extra("the data set 'glyphs'", "glyphs"):
        import matplotlib
        import PIL  # noqa: F401  # needed for drawing, so reported now
        from fontTools.ttLib import TTFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files, hashes = [], []
    for name, stem in TYPEFACES.items():
        file = folder / f"{stem}.ttf"
        try:
            hashes.append(hashlib.sha256(file.read_bytes()).hexdigest())
            with TTFont(file) as font:
                characters = font.getBestCmap()
        except OSError as error:
            raise DatasetError(
                f"the font {name} of matplotlib cannot be read: {error}. Remedy: install "
                "matplotlib from PyPI, which includes its fonts"
            ) from error
        if missing := [character for character in CHARACTERS if ord(character) not in characters]:
            raise DatasetError(
                f"the font {file} lacks {''.join(missing)}. Remedy: install matplotlib from PyPI, "
                "whose fonts have them"
            )
        files.append(str(file))
    return tuple(files), tuple(hashes)


def _versions() -> tuple[str, str]:
    """Return the versions of Pillow and of its FreeType."""
    import PIL
    from PIL import features

    return PIL.__version__, str(features.version("freetype2"))
