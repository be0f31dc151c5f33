"""Glyphs: reproducible drawings, every class in every typeface, no two classes alike."""

# ruff: noqa: RUF001  # letters that could be mistaken for others are what this is about

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont, ImageOps

from fecam.data import glyphs
from fecam.errors import DatasetError, MissingPackageError, SettingsError

# Rows of letters that are drawn the same, or the same but for their size, in three alphabets.
TWINS = """
    AΑА BΒВ EΕЕ ZΖ HΗН IΙІl|1І KΚК MΜМ NΝ OΟО0oοоØ∅ʘ PΡРpр TΤТ XΧХx×х YΥУ CСcс SsЅ JЈ
    ГΓ ΠП ΦФ ∆Δ ∑Σ ΩΩ µμu βß ΛЛ∧ aаα yуγ eе λʎ ηŋ nп mт ЭƎ
    VvνW Uu ω𝜔 Yγ Єεϵ€C δð IιІ/
"""
# What these hold beyond twins are pairs that tell well: a bar, a stroke or a flag sets them apart.
APART = {frozenset(pair) for pair in ("OØ", "I1", "ΛЛ", "VW", "Є€", "ЄC", "€C")}


@pytest.fixture(scope="module")
def small():
    return glyphs.load(per_class=32, size=24)


def fonts(pixels=48):
    files, _ = glyphs._font_files()
    return [
        ImageFont.truetype(file, pixels, layout_engine=ImageFont.Layout.BASIC) for file in files
    ]


def shape(character, font, side=32):
    """The character as large as the square allows, at unit length."""
    image = Image.new("L", (200, 200))
    ImageDraw.Draw(image).text((100, 100), character, 255, font, anchor="mm")
    values = np.asarray(ImageOps.pad(image.crop(image.getbbox()), (side, side)), np.float64).ravel()
    return values / np.linalg.norm(values)


def test_classes_and_scripts():
    names = [unicodedata.name(character) for character in glyphs.CHARACTERS]
    assert len(set(glyphs.CHARACTERS)) == len(glyphs.CHARACTERS) == 150
    for script in ("LATIN CAPITAL", "LATIN SMALL", "DIGIT", "GREEK", "CYRILLIC", "SIGN"):
        assert sum(script in name for name in names) >= 8, script


def test_every_class_is_in_every_domain_on_both_sides(small):
    assert len(small.domain_names) == 16
    for rows, each in ((small.train, 1), (small.test, 0)):
        count = np.zeros((150, 16), int)
        np.add.at(count, (small.labels[rows], small.domains[rows]), 1)
        assert count.min() >= each
        assert (count == count[0]).all(), "all classes alike"
    full = glyphs.load()
    count = np.zeros((2, 150, 16), int)
    np.add.at(count, (full.is_test.astype(int), full.labels, full.domains), 1)
    assert (count[0] == 7).all() and (count[1] == 3).all()


def test_images_are_8_bit_rgb(small):
    image = small.items[5]
    assert image.shape == (24, 24, 3) and image.dtype == np.uint8 and image.flags.c_contiguous
    assert (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all()
    assert len(small) == 150 * 32 and len(small.test) == 150 * 10


def test_drawings_are_the_same_in_any_order_thread_and_process(small):
    rows = np.random.default_rng(0).permutation(len(small))[:200]
    first = {row: small.items[row] for row in sorted(rows)}
    with ThreadPoolExecutor(8) as pool:
        for row, image in zip(rows, pool.map(small.items.__getitem__, rows), strict=True):
            np.testing.assert_array_equal(image, first[row])
    code = (
        "import pickle, sys, hashlib; items = pickle.load(sys.stdin.buffer)\n"
        f"print(hashlib.sha256(b''.join(items[r].tobytes() for r in {rows.tolist()})).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(small.items), capture_output=True
    )
    here = hashlib.sha256(b"".join(first[row].tobytes() for row in rows)).hexdigest()
    assert done.stdout.decode().strip() == here, done.stderr.decode()


def test_indexing_is_that_of_a_sequence(small):
    np.testing.assert_array_equal(small.items[-1], small.items[len(small) - 1])
    assert len(small.items[3:9:2]) == 3
    np.testing.assert_array_equal(small.items[3:9:2][1], small.items[5])
    with pytest.raises(IndexError):
        small.items[len(small)]
    np.testing.assert_array_equal(small.subset(np.array([7])).items[0], small.items[7])


def test_a_larger_per_class_keeps_the_drawings(small):
    def drawn(data, label):
        rows = np.flatnonzero(data.labels == label)
        keys = [(bool(data.is_test[row]), int(data.domains[row])) for row in rows]
        return {
            key: data.items[row].tobytes() for key, row in reversed([*zip(keys, rows, strict=True)])
        }

    few, many = drawn(glyphs.load(per_class=10, size=24), 3), drawn(small, 3)
    assert len(few) == 10 and few.items() <= many.items()


def test_all_drawings_differ_between_train_test_typefaces_and_seeds(small):
    rows = np.flatnonzero(small.labels == 0)
    pixels = {small.items[row].tobytes() for row in rows}
    other = glyphs.load(per_class=32, size=24, seed=1)
    assert len(pixels | {other.items[row].tobytes() for row in rows}) == 2 * len(rows)


def test_the_fingerprint_changes_with_the_drawings(small, monkeypatch):
    prints = [
        glyphs.load(**options).fingerprint
        for options in (
            {"per_class": 32, "size": 24},
            {"per_class": 32, "size": 25},
            {"per_class": 33, "size": 24},
            {"per_class": 32, "size": 24, "seed": 1},
            {"per_class": 32, "size": 24, "test_share": 0.5},
        )
    ]
    assert prints[0] == small.fingerprint and len(set(prints)) == len(prints)
    monkeypatch.setattr(glyphs, "_versions", lambda: ("99", "99"))
    assert glyphs.load(per_class=32, size=24).fingerprint != small.fingerprint
    monkeypatch.undo()
    monkeypatch.setattr(glyphs, "_MAX_NOISE", 1)  # as if another library drew otherwise
    assert glyphs.load(per_class=32, size=24).fingerprint != small.fingerprint


def test_no_two_classes_look_alike():
    for row in TWINS.split():
        held = sorted(set(row) & set(glyphs.CHARACTERS))
        pairs = {frozenset((a, b)) for a in held for b in held if a < b}
        assert not pairs - APART, row
    folded = [unicodedata.normalize("NFKC", character) for character in glyphs.CHARACTERS]
    assert len(set(folded)) == len(folded)


def test_no_two_classes_have_the_same_shape_in_any_typeface():
    worst = 0.0
    for font in fonts():
        shapes = np.stack([shape(character, font) for character in glyphs.CHARACTERS])
        likeness = shapes @ shapes.T
        np.fill_diagonal(likeness, 0)
        worst = max(worst, likeness.max())
    assert worst < 0.975
    # The measure sees a twin where there is one.
    assert shape("Α", fonts()[0]) @ shape("A", fonts()[0]) > 0.99


def test_no_drawing_is_cut_off(monkeypatch):
    monkeypatch.setattr(glyphs, "_MAX_NOISE", 0)
    data = glyphs.load(per_class=16, size=32, test_share=0, seed=3)
    for image in data.items:
        edge = np.concatenate([image[0, :, 0], image[-1, :, 0], image[:, 0, 0], image[:, -1, 0]])
        # Without noise the paper is one grey, and blur leaves but a breath of ink at the edge.
        contrast = int(image.max()) - int(image.min())
        assert int(image.max()) - int(edge.min()) <= 0.25 * contrast
        assert contrast > 10, "there is something on the paper"


def test_a_drawing_is_the_same_at_every_size(monkeypatch):
    monkeypatch.setattr(glyphs, "_MAX_NOISE", 0)
    small, large = (glyphs.load(per_class=1, test_share=0, size=size) for size in (32, 96))
    for row in range(0, 150, 10):
        shrunk = large.items[row][..., 0].reshape(32, 3, 32, 3).mean((1, 3))
        likeness = np.corrcoef(shrunk.ravel(), small.items[row][..., 0].ravel())[0, 1]
        others = np.corrcoef(shrunk.ravel(), small.items[row - 1][..., 0].ravel())[0, 1]
        assert likeness > 0.9 > 0.8 > others


def test_classes_are_separable_by_their_pixels():
    """A crude classifier is right far more often than one time in 150."""
    data = glyphs.load(per_class=24, size=16, test_share=0.25)
    pixels = np.stack([image[..., 0] for image in data.items]).reshape(len(data), -1).astype(float)
    pixels -= pixels.mean(1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    nearest = data.train[(pixels[data.test] @ pixels[data.train].T).argmax(1)]
    assert (data.labels[nearest] == data.labels[data.test]).mean() > 0.3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"per_class": 0}, "per_class=0 must be an integer >= 1"),
        ({"per_class": 2.5}, "per_class=2.5"),
        ({"per_class": True}, "per_class=True"),
        ({"size": 4}, "size=4 must be an integer >= 8"),
        ({"seed": -1}, "seed=-1 must be an integer >= 0"),
        ({"test_share": 1.0}, "test_share=1.0 must be a finite number >= 0 and < 1"),
        ({"test_share": "half"}, "test_share='half'"),
        ({"test_share": float("nan")}, "test_share=nan"),
        ({"per_class": 1, "test_share": 0.9}, "leave no drawing to learn from"),
    ],
)
def test_bad_settings_are_named(options, said):
    with pytest.raises(SettingsError, match=said):
        glyphs.load(**options)


@pytest.fixture
def unread():
    """Reset the cached typefaces, also for the next test."""
    glyphs._font_files.cache_clear()
    yield
    glyphs._font_files.cache_clear()


@pytest.mark.parametrize(("module", "package"), [("matplotlib", "matplotlib"), ("PIL", "pillow")])
def test_a_missing_package_names_the_extra(module, package, monkeypatch, unread):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[glyphs\]") as caught:
        glyphs.load()
    assert caught.value.package == package


def test_a_missing_typeface_is_named(tmp_path, monkeypatch, unread):
    import matplotlib

    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(DatasetError, match=r"DejaVu Sans .*DejaVuSans\.ttf.*PyPI"):
        glyphs.load()


def test_a_typeface_without_the_characters_is_rejected(monkeypatch, unread):
    monkeypatch.setattr(glyphs, "TYPEFACES", {"Computer Modern": "cmr10"})
    with pytest.raises(DatasetError, match=r"cmr10\.ttf lacks ΓΔ"):
        glyphs.load()
