"""`fecam discover`, `fecam explain` and `fecam suggest`."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import fecam as package
from helpers.features import signed_features

X, Y = signed_features(8, 40, 12, 5)
X = X + 2 * np.random.default_rng(1).normal(size=(8, 12))[Y].astype(np.float32)
LEARNED = (np.arange(len(Y)) % 40 < 25) & (Y < 6)
COMMANDS = ("discover", "explain", "suggest")
NAMES = np.array([f"class {label}" for label in range(8)])


@pytest.fixture
def files(place):
    with package.open("m.fecam") as model:
        model.learn(X[LEARNED], NAMES[Y[LEARNED]].tolist())
    np.save("new.npy", X[~LEARNED])
    np.save("few.npy", X[:2])
    np.savez("labeled.npz", X=X[LEARNED], y=NAMES[Y[LEARNED]])
    return place


def digest(path):
    return path.read_bytes()


def test_groups_are_saved_and_taught_by_number(fecam, answer, files):
    before = digest(files / "m.fecam")
    printed = fecam("discover", "new.npy", "-m", "m.fecam", "-O", "groups.json")
    assert "fit a class" in printed.out and "--teach 1=NAME" in printed.err
    assert digest(files / "m.fecam") == before
    saved = json.loads((files / "groups.json").read_text())
    assert saved["groups"][0]["items"][0].startswith("new row ")
    taught = answer("discover", "groups.json", "-m", "m.fecam", "--teach", "1=owl")
    size = taught["groups"][0]["size"]
    assert taught["taught"] == {"owl": size} and len(taught["steps"]) == 1
    with package.open("m.fecam", readonly=True) as model:
        assert {r.label: r.count for r in model.classes}["owl"] == size
        assert model.steps[0].note == "group 1 of fecam discover"
    fecam("undo", "-m", "m.fecam")
    direct = answer("discover", "new.npy", "-m", "m.fecam", "--teach", "2=owl", "--teach", "1=crow")
    assert {*direct["taught"]} == {"owl", "crow"} and "rows" not in direct["groups"][0]


def test_an_html_page_of_texts_or_rows_lists_names(fecam, files):
    fecam("discover", "new.npy", "-m", "m.fecam", "-O", "groups.html")
    page = (files / "groups.html").read_text()
    assert "Group 1" in page and "new row" in page and "<script" not in page


def test_wrong_use_is_explained_and_changes_nothing(fecam, files):
    before = digest(files / "m.fecam")
    (files / "empty").mkdir()
    np.save("wide.npy", np.zeros((3, 7), np.float32))
    for arguments, said in [
        (["discover", "new.npy", "--teach", "99=owl"], "there are the groups 1 to"),
        (["discover", "few.npy", "--teach", "1=owl"], "there are no groups"),
        (["discover", "new.npy", "--teach", "owl"], "must have the form NUMBER=LABEL"),
        (["discover", "new.npy", "--teach", "1=a", "--teach", "1=b"], "names group 1 twice"),
        (["discover", "new.npy", "-O", "groups.txt"], "must end in .json or .html"),
        (["discover", "none.json"], "none.json does not exist"),
        (["discover", "new.npy", "--reject", "2"], "reject"),
        (["explain", "new.npy", "-O", "why.gif"], "must end in .html, .png or .svg"),
        (["explain", "new.npy", "-O", "why.png"], "shows one item"),
        (["explain", "few.npy", "--class", "owl"], "no class 'owl'"),
        (["suggest", "new.npy", "--mislabeled"], "--as LABEL"),
        (["suggest", "new.npy", "--mislabeled", "--as", "owl"], "no class 'owl'"),
        (["suggest", "new.npy", "--as", "class 1"], "needs --mislabeled"),
        (["suggest", "wide.npy"], "as you did for learning"),
        *[([command, "empty"], "a folder with images in it") for command in COMMANDS],
        (["suggest", "none.npy"], "none.npy"),
    ]:
        printed = fecam(*arguments, "-m", "m.fecam", code=1)
        assert said in printed.err, (arguments, printed.err)
        assert digest(files / "m.fecam") == before
    (files / "bad.json").write_text('{"groups": 1}')
    assert "has no groups" in fecam("discover", "bad.json", "-m", "m.fecam", code=1).err
    for command in COMMANDS:
        assert "does not exist" in fecam(command, "new.npy", "-m", "none.fecam", code=1).err
    assert not (files / "none.fecam").exists()


def test_a_model_without_classes_says_so(fecam, files):
    labels = [f"class {i}" for i in range(6)]
    fecam("forget", *labels, "-m", "m.fecam", "--yes")
    for command in COMMANDS:
        assert "has no classes" in fecam(command, "new.npy", "-m", "m.fecam", code=1).err
    assert (
        "0 samples; `fecam learn FOLDER -m m.fecam` adds some"
        in fecam("classes", "-m", "m.fecam").err
    )


def test_one_item_or_nothing_unknown_is_no_error(fecam, files):
    before = digest(files / "m.fecam")
    np.save("one.npy", np.load("few.npy")[:1])
    for name in ("one.npy", "few.npy"):
        assert "no group; a smaller --min-size" in fecam("discover", name, "-m", "m.fecam").err
    assert "1 item of 1 to label next" in fecam("suggest", "one.npy", "-m", "m.fecam").out
    assert (
        "0 labels of 1 item look wrong"
        in fecam("suggest", "one.npy", "--mislabeled", "--as", "class 0", "-m", "m.fecam").out
    )
    assert digest(files / "m.fecam") == before


def test_ten_thousand_classes(fecam, files):
    rng = np.random.default_rng(0)
    means = 10 * rng.random((10_000, 8))
    X = np.abs(np.repeat(means, 3, axis=0) + rng.normal(0, 0.05, (30_000, 8)))
    with package.open("many.fecam") as model:
        model.learn(X, np.repeat([f"class {i}" for i in range(10_000)], 3))
    np.save("some.npy", X[:40].astype(np.float32))
    before = digest(files / "many.fecam")
    assert "10,000 classes, 30,000 samples" in fecam("classes", "-m", "many.fecam").err
    assert len(fecam("predict", "some.npy", "-m", "many.fecam").out.splitlines()) == 41
    assert "40 items:" in fecam("discover", "some.npy", "-m", "many.fecam").out
    assert "20 items of 40" in fecam("suggest", "some.npy", "-m", "many.fecam").out
    assert digest(files / "many.fecam") == before


def test_a_missing_encoder_is_named(fecam, files):
    from helpers.small_encoders import Colours

    image = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), np.uint8)
    with package.open("i.fecam", encoder=Colours()) as model:
        model.learn(list(image), ["a", "b"] * 3)
    from PIL import Image

    Image.fromarray(image[0]).save("a.png")
    said = fecam("explain", "a.png", "-m", "i.fecam", code=1).err
    assert "colours" in said


def test_explanations_are_printed_and_drawn(fecam, answer, files):
    pytest.importorskip("matplotlib")
    text = fecam("explain", "few.npy", "-m", "m.fecam", "--top", "2").out
    assert "is a typical" in text or "of a typical sample" in text
    assert "direction" in text and "feature" in text and "expected" in text
    document = answer("explain", "few.npy", "-m", "m.fecam", "--class", "class 3", "--parts", "2")
    first = document["items"][0]
    assert first["explained"] == "class 3" and len(first["directions"]) == 2
    total = sum(part["contribution"] for part in first["directions"]) + first["other_directions"]
    by_label = {near["label"]: near["distance"] for near in first["nearest"]}
    assert total == pytest.approx(by_label["class 3"], rel=1e-4)
    fecam("explain", "few.npy", "-m", "m.fecam", "-O", "why.html")
    assert (files / "why.html").read_text().count("<svg") == 2
    np.save("one.npy", X[:1])
    fecam("explain", "one.npy", "-m", "m.fecam", "-O", "why.png")
    assert (files / "why.png").read_bytes().startswith(b"\x89PNG")


def test_suggestions_and_wrong_labels(fecam, answer, files):
    document = answer("suggest", "new.npy", "-m", "m.fecam", "-n", "5")
    assert len(document["suggestions"]) == 5 and document["items"] == np.sum(~LEARNED)
    assert "reason" in fecam("suggest", "new.npy", "-m", "m.fecam").out
    clean = answer("suggest", "labeled.npz", "-m", "m.fecam", "--mislabeled")
    labels = NAMES[Y[LEARNED]].copy()
    labels[:2] = "class 5"
    np.savez("noisy.npz", X=X[LEARNED], y=labels)
    noisy = answer("suggest", "noisy.npz", "-m", "m.fecam", "--mislabeled")
    new = {one["item"] for one in noisy["mislabeled"]}
    assert {"noisy row 1", "noisy row 2"} <= new
    assert len(noisy["mislabeled"]) <= len(clean["mislabeled"]) + 2
    assert "look wrong" in fecam("suggest", "noisy.npz", "-m", "m.fecam", "--mislabeled").out


def test_a_folder_of_images(fecam, answer, place, monkeypatch):
    from PIL import Image, ImageDraw

    from fecam.model import readable
    from helpers.small_encoders import load

    monkeypatch.setattr(readable, "load_encoder", load)
    rng = random.Random(0)
    for name, color in {
        "red": (220, 30, 30),
        "green": (30, 200, 40),
        "blue": (30, 40, 220),
    }.items():
        for i in range(9):
            image = Image.new("RGB", (64, 64), (rng.randrange(120, 220),) * 3)
            x, y = rng.randrange(4, 24), rng.randrange(4, 24)
            ImageDraw.Draw(image).ellipse((x, y, x + 34, y + 34), fill=color)
            folder = place / ("new" if name == "blue" or i > 6 else f"known/{name}")
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{name}-{i}.png")
    (place / "new" / "broken.png").write_bytes(b"not an image")
    fecam("learn", "known", "-m", "m.fecam", "-e", "colours")
    found = answer("discover", "new", "-m", "m.fecam", "--min-size", "3", code=3)
    assert [len(found["unreadable"]), found["items"]] == [1, 13]
    names = {item.rsplit("/", 1)[1] for item in found["groups"][0]["items"]}
    assert sum(name.startswith("blue") for name in names) >= 6
    fecam("discover", "new", "-m", "m.fecam", "--min-size", "3", "-O", "g.html", code=3)
    assert "data:image/png;base64," in (place / "g.html").read_text()
