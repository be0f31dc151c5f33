"""Messages of the command line name its options, not arguments of Python."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fecam import FeCAMClassifier
from helpers.features import relu_features

PYTHON = re.compile(r"\b(as_label|allow_duplicates|download=|root \(|\w+=True|on the command line)")


@pytest.fixture(autouse=True)
def files(place):
    X, y = relu_features(2, 8, 4, 0)
    FeCAMClassifier().fit(X, y).save("m.fecam")
    np.savez("other.npz", features=X, labels=y)
    np.savez("unlabeled.npz", X=X)
    np.save("x.npy", X)
    (place / "words.csv").write_text("review,category\ngood,a\nbad,b\n")
    (place / "split.csv").write_text("text,label,split\ngood,a,foo\nbad,b,foo\n")
    (place / "loose").mkdir()
    (place / "loose" / "a.png").write_bytes(b"")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["learn", "other.npz", "-m", "n.fecam"], "--option features=ARRAY"),
        (["learn", "unlabeled.npz", "-m", "n.fecam"], "--option label=ARRAY"),
        (["learn", "words.csv", "-m", "n.fecam"], "--option label=COLUMN"),
        (["learn", "split.csv", "-m", "n.fecam"], "--option split=COLUMN"),
        (["predict", "words.csv", "-m", "m.fecam"], """--option 'features=["COLUMN", "COLUMN"]'"""),
        (["learn", "x.npy", "-m", "n.fecam"], "--as LABEL"),
        (["learn", "loose", "-m", "n.fecam"], "--as LABEL"),
        (["learn", "cifar100", "-m", "n.fecam"], "--download"),
        (["learn", "quickdraw", "-m", "n.fecam"], "--download"),
        (["features", "digits", "--device", "gpu"], "--device gpu cannot be used"),
        (["serve", "-m", "m.fecam", "--host", "0.0.0.0"], "--host 0.0.0.0 is reachable"),
        (["serve", "-m", "m.fecam", "--search", "fast"], "--search fast"),
    ],
)
def test_messages_name_options(fecam, arguments, says):
    said = fecam(*arguments, code=1).err
    assert says in said and not PYTHON.search(said), said


@pytest.mark.parametrize(
    "option", ["--workers", "--max-mb", "--max-items", "--max-pixels", "--seconds", "--queue"]
)
def test_limits_of_the_service_are_checked_as_options(fecam, option):
    assert option in fecam("serve", "-m", "m.fecam", option, "0", code=2).err


def test_a_merge_of_duplicates_names_the_option(fecam, place):
    fecam("learn", "x.npy", "--as", "1", "-m", "a.fecam")
    fecam("learn", "x.npy", "--as", "1", "-m", "b.fecam")
    said = fecam("merge", "b.fecam", "-m", "a.fecam", code=1).err
    assert "pass --allow-duplicates" in said and "=True" not in said
