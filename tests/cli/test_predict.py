"""`fecam predict`: tables, CSV, JSON lines, pipes, and what cannot be read."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from itertools import count, islice

import numpy as np
import pytest
from PIL import Image

import fecam as package
from fecam.cli import items
from fecam.cli import predict as command
from helpers import small_encoders
from helpers.features import relu_features

WIDTH = 12
LABELS = np.asarray(["ant", "bee", "cow"])


@pytest.fixture
def place(place, monkeypatch):
    """A folder to work in, and small encoders."""
    monkeypatch.setattr("fecam.model.readable.load_encoder", small_encoders.load)
    return place


@pytest.fixture
def predict(fecam):
    """`fecam predict`, with something on the standard input."""
    return lambda *arguments, model="m.fecam", **rest: fecam(
        "predict", *arguments, "-m", model, **rest
    )


@pytest.fixture
def rows(place):
    """A model of embeddings, m.fecam, and rows that it has not seen."""
    X, y = relu_features(3, 40, WIDTH, 0)
    taught = np.arange(len(X)) % 2 == 0
    with package.open("m.fecam") as model:
        model.learn(X[taught], LABELS[y[taught]].tolist())
    np.savez("q.npz", X=X[~taught])
    return X[~taught]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A model of pictures and its folder."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, colour in (("blue", (20, 30, 210)), ("red", (210, 30, 20))):
        (folder / name).mkdir()
        for at in range(5):
            pixels = np.asarray(colour) + rng.integers(0, 40, size=(12, 12, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{at}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FECAM_CACHE", str(folder / "cache"))
        patch.setattr("fecam.model.readable.load_encoder", small_encoders.load)
        with package.open(folder / "p.fecam", encoder="colours") as model:
            paths = [folder / name / f"{at}.png" for name in ("blue", "red") for at in range(4)]
            model.learn(paths, ["blue"] * 4 + ["red"] * 4)
    return folder


def in_csv(printed):
    return list(csv.DictReader(io.StringIO(printed.out, newline="")))


def in_jsonl(printed):
    return [json.loads(line) for line in printed.out.splitlines()]


def lines_of(X):
    return "".join(",".join(map(repr, map(float, row))) + "\n" for row in X).encode()


# -- what is said ----------------------------------------------------------------------------------


def test_all_formats_agree_with_the_model(predict, rows):
    with package.open("m.fecam", readonly=True) as model:
        predictions = model.predict_detailed(rows, k=2)
        top = model.classifier.predict_top_k(rows, 2)
    documents = in_jsonl(predict("q.npz", "--top", "2", "--json"))
    assert [one["label"] for one in documents] == top[:, 0].tolist()
    assert [[near["label"] for near in one["nearest"]] for one in documents] == top.tolist()
    assert documents == in_jsonl(predict("q.npz", "-k", "2", "--format", "jsonl"))
    cells = in_csv(predict("q.npz", "--top", "2", "--format", "csv"))
    for one, document, row in zip(predictions, documents, cells, strict=True):
        near, next_ = one.nearest
        assert document["novelty"] == pytest.approx(one.novelty, rel=1e-5, abs=1e-6)
        assert document["nearest"][0]["distance"] == pytest.approx(near.distance, rel=1e-5)
        assert document["item"] == row["item"] and row["error"] == ""
        assert (
            (row["label"], row["nearest_2"])
            == (near.label, next_.label)
            == (row["nearest"], next_.label)
        )
        assert float(row["probability"]) == pytest.approx(near.probability, rel=1e-5)
        assert float(row["distance_2"]) == pytest.approx(next_.distance, rel=1e-5)
    assert documents[4]["item"] == "q.npz row 5"
    table = predict("q.npz").out.splitlines()
    assert table[0].split() == ["class", "probability", "distance", "novelty", "item"]
    assert [line.split()[0] for line in table[1:]] == top[:, 0].tolist()
    assert table[5].endswith("  q.npz row 5")
    indented = predict("q.npz", "--top", "99").out.splitlines()
    assert len(indented) == 1 + 3 * len(rows) and indented[2].startswith("  ")


def test_reject_answers_none_of_these(predict, rows):
    np.savez(
        "q.npz",
        X=np.concatenate([rows[:1], np.random.default_rng(0).permuted(rows[:1] * 9, axis=1)]),
    )
    with package.open("m.fecam", readonly=True) as model:
        assert [
            one.label is None for one in model.predict_detailed(np.load("q.npz")["X"], reject=0.01)
        ] == [False, True]
    known, strange = in_jsonl(predict("q.npz", "--reject", "0.01", "--json"))
    assert known["label"] is not None and strange["label"] is None
    assert strange["nearest"][0]["label"] in LABELS and strange["novelty"] > known["novelty"]
    _, row = in_csv(predict("q.npz", "--reject", "0.01", "--format", "csv"))
    assert row["label"] == "" and row["nearest"] in LABELS and row["error"] == ""
    table = predict("q.npz", "--reject", "0.01").out.splitlines()
    assert len(table) == 3 and table[2].startswith("none of these") and table[2].endswith("row 2")
    assert len(predict("q.npz", "--reject", "0.01", "--top", "2").out.splitlines()) == 1 + 2 + 3


def test_novelty_that_cannot_be_told(predict, place):
    """One sample per class does not determine how far others may lie."""
    with package.open("m.fecam") as model:
        model.learn(np.eye(3), ["cat", "dog", "owl"])
    np.savez("q.npz", X=np.eye(3)[:1] * 50)
    (document,) = in_jsonl(predict("q.npz", "--reject", "0.05", "--json"))
    assert document["novelty"] is None and document["label"] == "cat"
    (row,) = in_csv(predict("q.npz", "--format", "csv"))
    assert row["novelty"] == ""
    assert " n/a " in predict("q.npz").out.splitlines()[1]


def test_predictions_in_a_file(predict, rows, place):
    printed = predict("q.npz", "--output", "answers.csv")
    assert (
        printed.out == ""
        and (place / "answers.csv").read_text() == predict("q.npz", "--format", "csv").out
    )
    predict("q.npz", "-O", "answers.jsonl")
    assert (place / "answers.jsonl").read_text() == predict("q.npz", "--json").out
    before = (place / "m.fecam").read_bytes()
    assert "is the model file" in predict("q.npz", "--output", "m.fecam", code=1).err
    assert (place / "m.fecam").read_bytes() == before


# -- the standard input ----------------------------------------------------------------------------


def test_rows_of_numbers_from_a_pipe(predict, rows):
    good = lines_of(rows[:3]).splitlines(keepends=True)
    text = (
        good[0]
        + b"\n1,2\r\n"
        + good[1]
        + b"1,x\n"
        + b",".join([b"nan"] * WIDTH)
        + b"\n"
        + good[2].strip()
    )
    found = in_jsonl(predict("-", "--json", stdin=text, code=3))
    whole = in_jsonl(predict("q.npz", "--json"))
    assert [one["item"] for one in found] == [f"line {at}" for at in (1, 3, 4, 5, 6, 7)]
    assert [one["label"] for one in found if "label" in one] == [one["label"] for one in whole[:3]]
    assert "2 numbers, but the model has 12 features" in found[1]["error"]
    assert "'x'" in found[3]["error"] and "NaN" in found[4]["error"]
    said = predict("-", "--format", "csv", stdin=text, code=3)
    assert [bool(row["error"]) for row in in_csv(said)] == [False, True, False, True, True, False]
    assert "3 of 6 items could not be read" in said.err
    assert predict("-", "--json", stdin=b"").out == ""


def test_predictions_are_streamed_through_a_pipe(rows, place):
    running = subprocess.Popen(
        [sys.executable, "-m", "fecam", "predict", "-", "-m", "m.fecam", "--json"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    too_long = threading.Timer(120, running.kill)  # then a line is empty, and no JSON
    too_long.start()
    try:
        for at, line in enumerate(lines_of(rows[:2]).splitlines(keepends=True), 1):
            running.stdin.write(line)
            running.stdin.flush()
            # Nothing more comes before this answer: a program that waited would wait for ever.
            assert json.loads(running.stdout.readline())["item"] == f"line {at}"
        rest, said = running.communicate(timeout=60)
        assert (running.returncode, rest, said) == (0, b"", b"")
    finally:
        too_long.cancel()
        running.kill()
        running.communicate()


def test_only_one_batch_is_in_memory():
    endless = ((f"{at}", at) for at in count())
    batches = command._batches(iter([endless]))
    assert [len(one) for one in islice(batches, 3)] == [command.BATCH_SIZE] * 3
    assert next(endless)[1] == 3 * command.BATCH_SIZE


def test_line_numbers_do_not_depend_on_reads(monkeypatch):
    class Slow(io.BytesIO):
        def read1(self, size=-1):
            return super().read1(5)

    text = b"\n\none\r\ntwo\n\n  \nthree, which is longer\nfour"
    bursts = list(items._read_available(Slow(text)))
    expected = [(3, b"one"), (4, b"two"), (7, b"three, which is longer"), (8, b"four")]
    assert [line for burst in bursts for line in burst] == expected and len(bursts) > 1
    assert list(items._read_available(io.BytesIO(text))) == [expected[:3], expected[3:]]
    monkeypatch.setattr(items, "MAX_LINE", 10)
    with pytest.raises(ValueError, match="line 7 of standard input has more than 10 bytes"):
        list(items._read_available(Slow(text)))


# -- pictures --------------------------------------------------------------------------------------


def test_images_from_all_kinds_of_paths(predict, photos, place):
    model = str(photos / "p.fecam")
    (place / "in" / "deep").mkdir(parents=True)
    (place / "in" / "a.png").write_bytes((photos / "red" / "4.png").read_bytes())
    (place / "in" / "deep" / "b.png").write_bytes((photos / "blue" / "4.png").read_bytes())
    (place / "in" / "\x1b[2J.png").write_bytes(b"no image")
    odd = os.fsdecode(b"in/\xff.png")
    (place / odd).write_bytes((photos / "blue" / "4.png").read_bytes())
    (place / "list.csv").write_text("path\nin/a.png\nin/none.png\n")
    asked = ("in", "gone.png", "in/a.png", "list.csv")
    found = in_jsonl(predict(*asked, "--json", code=3, model=model))
    labels = {one["item"]: one.get("label", "bad") for one in found}
    assert labels == {
        "in/a.png": "red", "in/deep/b.png": "blue", odd: "blue", "in/\x1b[2J.png": "bad",
        "gone.png": "bad", "in/none.png": "bad",
    }  # fmt: skip
    errors = {one["item"]: one["error"] for one in found if "error" in one}
    assert (
        errors["gone.png"] == "gone.png: no such file"
        and "not an image" in errors["in/\x1b[2J.png"]
    )
    assert [one["item"] for one in found[-4:]] == [
        "gone.png",
        "in/a.png",
        "in/a.png",
        "in/none.png",
    ]
    table = predict(*asked, code=3, model=model)
    assert "\x1b" not in table.out + table.err and "in/\\udcff.png" in table.out
    assert "unreadable: in/\\x1b[2J.png: not an image" in table.err
    assert "3 of 8 items could not be read" in table.err
    named = os.fsencode(f"in/a.png\n{odd}\nnowhere.csv\ngone.png\n")
    predict("-", "--output", "out.csv", stdin=named, code=3, model=model)
    with open("out.csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
        raw = list(csv.DictReader(file))
    assert [row["label"] for row in raw] == ["red", "blue", "", ""]
    assert "nowhere.csv does not exist" in raw[2]["error"] and "no such file" in raw[3]["error"]
    assert raw[1]["item"] == odd


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["q.npz"], "q.npz has features, but this model was learned from images"),
        (["--text", "hello"], "this model was learned from images, not texts"),
        (["empty"], "empty has no images"),
        (["none.csv"], "none.csv does not exist"),
    ],
)
def test_user_errors_with_images(predict, photos, place, arguments, says):
    np.savez("q.npz", X=np.ones((2, 3)))
    (place / "empty").mkdir()
    said = predict(*arguments, code=1, model=str(photos / "p.fecam"))
    assert says in said.err and said.err.count("error:") == 1


# -- texts -----------------------------------------------------------------------------------------


def test_texts(predict, place):
    with package.open("m.fecam", encoder="letters") as model:
        model.learn(
            ["aa a", "a aaa", "aba", "bb b", "b bbb", "bab"], ["first"] * 3 + ["second"] * 3
        )
    asked = b"a aa\nbb bbb\n"
    lines = in_jsonl(predict("-", "--text", "--json", stdin=asked + b"\xff\n", code=3))
    assert [one.get("label") for one in lines] == ["first", "second", None]
    assert lines[0]["item"] == "a aa" and "not UTF-8" in lines[2]["error"]
    assert in_jsonl(predict("--text", "a aa", "--json")) == lines[:1]
    (place / "t.txt").write_bytes(asked)
    (place / "t.csv").write_text("review\na aa\n")
    found = in_jsonl(predict("t.txt", "t.csv", "--option", "text=review", "--json"))
    assert [(one["item"], one["label"]) for one in found] == [
        ("t.txt line 1", "first"), ("t.txt line 2", "second"), ("t.csv line 2", "first"),
    ]  # fmt: skip
    assert "or --text" in predict("photo.jpg", code=1).err


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["wide.npz"], str(WIDTH)),
        (["nowhere.npz"], "nowhere.npz does not exist"),
        (["photo.jpg"], "this model was learned from features"),
        (["."], "is a folder"),
        (["words.csv"], "words.csv has texts, but this model was learned from features"),
        (["q.npz", "--reject", "5"], "--reject 5.0 must be between 0 and 1"),
        (["bare.csv"], "starts with a line of numbers"),
        (["q.npz", "--option", "colour"], "name=value"),
        (["q.npz", "--option", "colour=3"], "q.npz has no option 'colour'"),
    ],
)
def test_user_errors_are_messages(predict, rows, place, arguments, says):
    np.savez("wide.npz", X=np.ones((2, WIDTH + 1)))
    (place / "words.csv").write_text("text\nhello\n")
    (place / "bare.csv").write_text(lines_of(rows[:2]).decode())
    said = predict(*arguments, code=1)
    assert says in said.err and said.err.count("error:") == 1


def test_user_errors_do_not_touch_the_output(predict, rows, place):
    (place / "out.csv").write_text("precious")
    (place / "words.csv").write_text("text\nhello\n")
    assert predict("words.csv", code=1).out == ""
    predict("words.csv", "--output", "out.csv", code=1)
    assert (place / "out.csv").read_text() == "precious"
    with package.open("m.fecam") as model:
        model.undo()
    assert "m.fecam has no classes; `fecam learn" in predict("q.npz", code=1).err


def test_missing_model_and_wrong_usage(predict, rows):
    said = predict("q.npz", model="bird.fecam", code=1).err
    assert "bird.fecam does not exist; `fecam learn FOLDER -m bird.fecam` creates it" in said
    predict("q.npz", "--format", "xml", code=2)
    predict("q.npz", "--top", "0", code=2)
    assert "Example: fecam predict" in predict("--help").out


def test_predict_escapes_control_characters_in_labels(predict, rows):
    with package.open("m.fecam") as model:
        model.learn(rows, ["\x1b[2J\nx"] * len(rows))
    out = predict("q.npz", "--top", "2").out
    assert "\x1b" not in out and "\\x1b[2J\\nx" in out
    assert "\x1b[2J\nx" in {row["nearest"] for row in in_csv(predict("q.npz", "--format", "csv"))}
    assert "\x1b[2J\nx" in {one["label"] for one in in_jsonl(predict("q.npz", "--json"))}
