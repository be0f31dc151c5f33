"""`fecam migrate`: a copy for another encoder, the expected accuracy, and errors that help."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import fecam as package
from helpers import small_encoders

COLOURS = {"blue": (20, 30, 210), "green": (20, 190, 40), "red": (210, 30, 20)}


def picture(path, colour, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([seed, *colour]).integers(0, 40, size=(12, 12, 3))
    Image.fromarray((np.asarray(colour) + noise).astype(np.uint8)).save(path)


@pytest.fixture
def place(place, monkeypatch, fecam):
    """A taught model, unlabeled pictures and labeled ones."""
    monkeypatch.setattr("fecam.model.readable.load_encoder", small_encoders.load)
    for name, colour in COLOURS.items():
        for i in range(4):
            picture(place / "taught" / name / f"{i}.png", colour, i)
            picture(place / "labeled" / name / f"{i}.png", colour, 10 + i)
        for i in range(12):
            picture(place / "photos" / f"{name}-{i}.png", colour, 100 + i)
    fecam("learn", "taught", "-m", "m.fecam", "-e", "colours")
    return place


def test_the_default_writes_a_new_file(place, fecam):
    content = (place / "m.fecam").read_bytes()
    result = fecam("migrate", "m.fecam", "--encoder", "shades", "--on", "photos")
    assert "m-migrated.fecam: expected accuracy" in result.err
    assert "of 7 left-out items keep their label" in result.err
    assert (place / "m.fecam").read_bytes() == content
    with package.open("m-migrated.fecam", readonly=True) as migrated:
        assert migrated.encoder_record.name == "shades"
        assert migrated.predict(["labeled/red/0.png", "labeled/blue/1.png"]) == ["red", "blue"]
    again = fecam("migrate", "m.fecam", "-e", "shades", "--on", "photos", code=1)
    assert "exists already" in again.err and "--force" in again.err
    fecam("migrate", "m.fecam", "-e", "shades", "--on", "photos", "--force")


def test_json_has_the_estimate_and_dry_run_writes_nothing(place, fecam):
    done = json.loads(
        fecam(
            *("migrate", "m.fecam", "-e", "shades", "--on", "photos", "--labeled", "labeled"),
            *("--dry-run", "--json"),
        ).out
    )
    assert done["output"] is None and done["encoder"] == "shades"
    assert done["n_items"] == 48 and done["n_labeled"] > 0
    assert 0 < done["lowest_accuracy"] <= done["accuracy"] <= done["accuracy_before"] <= 1
    assert not (place / "m-migrated.fecam").exists()


def test_texts_migrate_too(place, fecam, monkeypatch):
    words = ["aaa bee", "aab baa", "ab aab", "zzz yx", "zyz zz", "zz xyz"] * 5
    (place / "words.txt").write_text(
        "\n".join(f"{word} {i % 7 * 'c'}" for i, word in enumerate(words))
    )
    (place / "taught.csv").write_text("text,label\naab,early\nbaab,early\nzzy,late\nzxyz,late\n")
    fecam("learn", "taught.csv", "-m", "t.fecam", "-e", "letters")
    monkeypatch.setattr(
        "fecam.model.readable.load_encoder",
        lambda name, **options: (
            _Pairs() if name == "pairs" else small_encoders.load(name, **options)
        ),
    )
    fecam("migrate", "t.fecam", "-e", "pairs", "--on", "words.txt", "-o", "new.fecam")
    with package.open("new.fecam", readonly=True) as migrated:
        assert migrated.predict(["abba", "zyx"]) == ["early", "late"]
    refused = fecam("migrate", "t.fecam", "-e", "pairs", "--on", "photos", "--dry-run", code=1)
    assert "holds images" in refused.err


class _Pairs(small_encoders.Letters):
    """Letters, those at the same place of the two halves of the alphabet added."""

    name, fingerprint, n_features = "pairs", "pairs-1", 13

    def prepare(self, item):
        counts = super().prepare(item)
        return [counts[i] + 2 * counts[25 - i] for i in range(13)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("m.fecam", "-e", "colours", "--on", "photos"), "nothing to migrate"),
        (("m.fecam", "-e", "letters", "--on", "photos"), "is for texts"),
        (("m.fecam", "-e", "shade", "--on", "photos"), "shade"),
        (("m.fecam", "-e", "shades", "--on", "few"), "give at least 20"),
        (("m.fecam", "-e", "shades", "--on", "empty"), "empty"),
        (("m.fecam", "-e", "shades", "--on", "missing"), "missing"),
        (("no.fecam", "-e", "shades", "--on", "photos"), "does not exist"),
        (("bare.fecam", "-e", "shades", "--on", "photos"), "has no classes"),
        (("m-compressed.fecam", "-e", "shades", "--on", "photos"), "compressed model"),
    ],
)
def test_errors_name_the_remedy_and_write_nothing(place, fecam, arguments, says):
    picture(place / "few" / "0.png", COLOURS["red"], 0)
    (place / "empty").mkdir()
    if "bare.fecam" in arguments:
        fecam("learn", "taught", "-m", "bare.fecam", "-e", "colours")
        for name in COLOURS:
            fecam("forget", name, "-m", "bare.fecam", "--yes")
    if "m-compressed.fecam" in arguments:
        fecam("compress", "m.fecam", "--components", "4")
    files = {path.name for path in place.glob("*.fecam")}
    assert says in fecam("migrate", *arguments, code=1).err
    assert {path.name for path in place.glob("*.fecam")} == files


def test_unreadable_pictures_are_listed(place, fecam):
    (place / "photos" / "broken.png").write_bytes(b"no image")
    result = fecam("migrate", "m.fecam", "-e", "shades", "--on", "photos", code=3)
    assert "unreadable" in result.err and "broken.png" in result.err
    assert (place / "m-migrated.fecam").exists()
