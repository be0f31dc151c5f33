"""Steps that cannot be undone ask on a terminal, and stop without one unless `--yes`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from fecam import FeCAMClassifier
from helpers.features import relu_features


@pytest.fixture
def model(place):
    """A model of three classes, and a table that it can predict and evaluate."""
    X, y = relu_features(3, 10, 6, 0)
    labels = np.array(["ant", "bee", "cow"])[y]
    FeCAMClassifier().fit(X, labels).save("m.fecam")
    np.savez("rows.npz", X=X, y=labels)
    return place / "m.fecam"


IRREVERSIBLE = [
    ["forget", "ant", "--purge", "-m", "m.fecam"],
    ["doctor", "m.fecam", "--compact"],
]


@pytest.mark.parametrize("arguments", IRREVERSIBLE, ids=" ".join)
@pytest.mark.parametrize("stdin", [b"", b"n\n", b"y\n"])
def test_without_a_terminal_nothing_is_removed(fecam, model, arguments, stdin):
    before = model.read_bytes()
    said = fecam(*arguments, stdin=stdin, code=1).err
    assert "no terminal" in said and "Remedy: add --yes" in said
    assert model.read_bytes() == before
    fecam(*arguments, "-y", stdin=stdin)
    assert model.read_bytes() != before


@pytest.mark.parametrize("arguments", IRREVERSIBLE, ids=" ".join)
@pytest.mark.parametrize(("typed", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_terminal_is_asked(model, place, arguments, typed, code):
    before = model.read_bytes()
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    done = subprocess.run(
        [sys.executable, "-m", "fecam", *arguments], stdin=theirs, capture_output=True, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert b"[y/N]" in done.stderr
    assert (model.read_bytes() == before) == (code == 1)


def test_what_can_be_undone_needs_no_terminal(fecam, model):
    fecam("forget", "ant", "-m", "m.fecam", stdin=b"")
    fecam("undo", "-m", "m.fecam", stdin=b"")


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["predict", "rows.npz", "-m", "m.fecam", "-O"], "out.csv"),
        (["evaluate", "rows.npz", "-m", "m.fecam", "-O"], "out.html"),
        (["features", "rows.npz", "-O"], "out.npz"),
        (["export", "-m", "m.fecam"], "out.safetensors"),
        (["export-encoder", "efficientnet-lite0"], "out.onnx"),
        (["report", "runs", "-O"], "out.html"),
    ],
)
def test_an_existing_file_is_not_replaced(fecam, model, place, arguments, file):
    (place / file).write_text("precious")
    said = fecam(*arguments, file, stdin=b"y\n", code=1).err
    assert f"{file} exists already" in said and "--yes" in said
    assert (place / file).read_text() == "precious"


def test_yes_replaces_a_file_and_an_empty_one_is_replaced_always(fecam, model, place):
    (place / "out.csv").write_text("")
    fecam("predict", "rows.npz", "-m", "m.fecam", "-O", "out.csv")
    first = (place / "out.csv").read_text()
    assert first.startswith("item,")
    fecam("predict", "rows.npz", "-m", "m.fecam", "-O", "out.csv", "--top", "2", "--yes")
    assert (place / "out.csv").read_text() != first
