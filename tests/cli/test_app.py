"""The program as a person runs it: real processes, real files, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fecam.data import load


@pytest.fixture
def fecam(tmp_path):
    """Runs the program with a cache and a data folder of its own."""
    environment = {
        **os.environ,
        "FECAM_CACHE": str(tmp_path / "cache"),
        "FECAM_DATA": str(tmp_path / "data"),
        "COLUMNS": "80",  # as where there is no terminal: no path is broken over two lines
    }

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "fecam", *map(str, arguments)],
            capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures by class: plain colours, one file of which is broken."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for name, colour in (("blue", (30, 40, 200)), ("red", (200, 40, 30))):
        (folder / name).mkdir(parents=True)
        for at in range(6):
            noise = rng.integers(0, 30, size=(40, 50, 3))
            image = Image.fromarray((np.asarray(colour) + noise).astype(np.uint8))
            image.save(folder / name / f"{at}.png")
    whole = (folder / "red" / "5.png").read_bytes()
    (folder / "red" / "5.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty").mkdir()
    return folder


def test_help_lists_every_command(fecam):
    text = fecam("--help").stdout
    assert "Example" in text
    for command in ("features", "encoders", "datasets", "cache", "export-encoder", "train"):
        assert command in text
        assert "Example" in fecam(command, "--help").stdout
    assert fecam("--version").stdout.startswith("fecam ")


def test_encoders_and_datasets_are_listed(fecam):
    names = {one["name"] for one in json.loads(fecam("encoders", "--json").stdout)}
    assert {"efficientnet-lite0", "efficientnet-lite2", "minilm"} <= names
    names = {one["name"] for one in json.loads(fecam("datasets", "--json").stdout)}
    assert {"cifar100", "glyphs", "quickdraw", "digits", "core50"} <= names
    assert "efficientnet-lite0" in fecam("encoders").stdout
    assert "glyphs" in fecam("datasets").stdout


def test_images_are_encoded_once_and_cached(fecam, photos, tmp_path):
    options = ("--encoder-option", "resolution=64", "--json")
    first = fecam("features", photos, *options, "--output", tmp_path / "photos.npz")
    answer = json.loads(first.stdout)
    assert (answer["items"], answer["features"], answer["width"]) == (12, 11, 1280)
    assert answer["encoded_now"] == 12 and answer["classes"] == 2
    (bad,) = answer["unreadable"]
    assert "5.png" in bad
    assert "empty" in first.stderr
    again = json.loads(fecam("features", photos, *options).stdout)
    assert again["encoded_now"] == 0 and again["key"] == answer["key"]
    saved = load(tmp_path / "photos.npz")
    assert saved.label_names == ("blue", "red") and len(saved) == 11
    listed = json.loads(fecam("cache", "--json").stdout)
    assert [one["key"] for one in listed["entries"]] == [answer["key"]]
    assert answer["key"] in fecam("cache").stdout
    removed = json.loads(fecam("cache", "remove", answer["key"], "--json").stdout)
    assert removed == {"removed": [answer["key"]]}
    fecam("features", photos, *options)
    fecam("cache", "limit", "1KB")
    assert json.loads(fecam("cache", "--json").stdout)["entries"] == []
    strict = fecam("features", photos, *options, "--strict", code=1)
    assert "5.png" in strict.stderr and "5.png" in json.loads(strict.stdout)["error"]


def test_file_names_are_printed_literally(fecam, photos, tmp_path):
    folder = photos.rename(tmp_path / "[b]my :smile: photos")
    (folder / "red" / "\x1b[2J[x].png").write_bytes(b"no image")
    (folder / "red" / os.fsdecode(b"\xff.png")).write_bytes(b"no image")
    Image.new("1", (12_000, 9_000)).save(folder / "red" / "huge.png")  # Pillow would warn
    options = ("-o", "resolution=32")
    told = fecam("features", folder, *options, "--output", tmp_path / "[b] :smile:.npz")
    assert f"written to {tmp_path}/[b] :smile:.npz\n" in told.stdout
    assert "[b]my :smile: photos: efficientnet-lite0" in told.stderr
    assert "\\x1b[2J[x].png: not an image" in told.stderr and "\x1b" not in told.stderr
    assert "huge.png: 12000 x 9000 is more" in told.stderr and "Warning" not in told.stderr
    again = fecam("features", folder, *options, "--json")
    assert os.fsdecode(b"\xff.png") in " ".join(json.loads(again.stdout)["unreadable"])
    assert "/?" not in again.stderr, "a bar, though everything was in the cache"
    (row,) = (line for line in fecam("cache").stdout.splitlines() if ":smile:" in line)
    assert "[b]my :smile: photos" in row and "efficientnet-lite0?resolution=32" in row


def test_features_prints_a_summary(fecam, photos):
    done = fecam("features", photos, "-o", "resolution=64")
    assert "11 x 1,280 features of 2 classes" in done.stdout
    assert "unreadable" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["features", "nowhere"], "nowhere"),
        (["features", "glyfs"], "glyphs"),
        (["features", "digits", "--encoder", "efficientnet-lite9"], "efficientnet-lite0"),
        (["features", "digits", "-o", "resolution"], "name=value"),
        (["features", "digits", "-o", "colour=3"], "resolution"),
        (["features", "digits", "--option", "colour=3"], "colour"),
        (["features", "digits", "--encoder", "minilm"], "for texts"),
        (["features", "digits", "--output", "x.doc"], ".npz"),
        (["features", "cifar100"], "--download"),
        (["features", "digits", "--encoder", "onnx:no.onnx"], "no.onnx"),
        (["cache", "limit", "much"], "20GB"),
        (["cache", "remove", "nothing"], "nothing"),
    ],
)
def test_user_errors_are_messages(fecam, arguments, says):
    done = fecam(*arguments, code=1)
    assert says in " ".join(done.stderr.split()), done.stderr
    assert done.stderr.count("error:") == 1


def test_exported_encoder_gives_the_same_features(fecam, photos, tmp_path):
    option = ("-o", "resolution=64")
    fecam("export-encoder", "efficientnet-lite0", tmp_path / "lite0.onnx", *option)
    fecam("features", photos, *option, "--output", tmp_path / "torch.npz")
    fecam("features", photos, "-e", f"onnx:{tmp_path / 'lite0.onnx'}", "-O", tmp_path / "onnx.npz")
    one, other = (np.stack([*load(tmp_path / f"{name}.npz").items]) for name in ("torch", "onnx"))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(one).max())


def test_a_scikit_learn_that_needs_scipy_stats_gets_it(tmp_path):
    """The program starts without scipy.stats if scikit-learn only names it."""
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()
    lines = "import scipy.stats.qmc\nfrom scipy.stats import norm\nMEDIAN = norm.ppf(0.5)\n"
    (tmp_path / "sklearn" / "base.py").write_text(lines)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fecam.cli.model import _import_scikit_learn\n"
        "_import_scikit_learn(); import sklearn.base; print(sklearn.base.MEDIAN)\n"
        "import scipy.stats; print(scipy.stats.norm.ppf(0.5), scipy.stats.qmc.Sobol.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["0.0", "0.0", "Sobol"], done.stderr
