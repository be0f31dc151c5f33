"""The .fecam file: round trips are exact, and saving is atomic."""

from __future__ import annotations

import ast
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import fecam as package
from fecam import FeCAMClassifier, load, model_rows
from fecam.core.scatter import Scatter, to_dense
from fecam.errors import ModelFileError, SettingsError
from fecam.model_file.integrity import file_info
from fecam.presets import PRESETS
from helpers.features import relu_features, signed_features
from helpers.same_models import X, Y, assert_same

NEW_X, NEW_Y = relu_features(4, 8, 6, 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.fecam"


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("covariance", ["class", "common", "pooled", "diagonal", "identity"])
def test_round_trips_are_bit_identical(path, covariance, dtype):
    clf = FeCAMClassifier(covariance=covariance, dtype=dtype)
    clf.partial_fit(X[Y != 2], Y[Y != 2]).partial_fit(X[Y == 2], Y[Y == 2])
    clf.save(path)
    assert_same(load(path), clf)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips(path, name):
    queries, labels = (X, Y) if PRESETS[name]["tukey"] else signed_features(3, 12, 6, 0)
    clf = FeCAMClassifier.from_preset(name).fit(queries, labels)
    clf.save(str(path))
    assert_same(load(str(path)), clf, queries)


def test_averaged_domains_round_trip(path):
    clf = FeCAMClassifier(domains="average").partial_fit(X, Y).partial_fit(NEW_X, NEW_Y)
    clf.save(path)
    loaded = load(path)
    assert loaded.state_.classes[0].domain_mean_covariance is not None
    assert loaded.state_.classes[3].domain_mean_covariance is None
    assert_same(loaded, clf)


@pytest.mark.parametrize(
    "labels",
    [
        ["", " ", "a", "a ", "'", '"', "\\", "\n", "1", "null", "NULL", "é", "e\u0301", "漢", "🙂"],
        ["'; DROP TABLE classes; --", "x' OR 'x'='x", "%s", "?", ":label", "\ud800", "a\0b"],
        [-(2**63), -5, 0, 7, 2**63 - 1],
        [2**63, 2**64 - 1],
        [False, True],
    ],
)
def test_labels_of_all_kinds(path, labels):
    features, codes = relu_features(len(labels), 4, 6, 0)
    clf = FeCAMClassifier().fit(features, np.asarray(labels)[codes])
    assert sorted(clf.classes_.tolist()) == sorted(labels)
    clf.save(path)
    loaded = load(path)
    assert loaded.classes_.dtype == clf.classes_.dtype
    assert_same(loaded, clf, features)


def test_tensors_are_loaded_as_numpy_arrays(path):
    torch = pytest.importorskip("torch")
    clf = FeCAMClassifier().fit(torch.asarray(X), torch.asarray(Y))
    clf.save(path)
    loaded = load(path)
    assert isinstance(loaded.state_.classes[0].scatter.data, np.ndarray)
    scatter = to_dense(loaded.state_.classes[0].scatter)
    assert np.array_equal(scatter, scatter.T)
    np.testing.assert_allclose(
        loaded.decision_function(X), clf.decision_function(X), rtol=1e-3, atol=1e-4
    )
    assert clf.merge(loaded).class_count_.tolist() == [24, 24, 24]
    assert loaded.decision_function(torch.asarray(X)).dtype == torch.float32


def test_feature_names_round_trip(path):
    pandas = pytest.importorskip("pandas")
    names = ["beak", "wing", "it's", "Größe", "", "x"]
    frame = pandas.DataFrame(X, columns=names)
    clf = FeCAMClassifier().fit(frame, Y)
    clf.save(path)
    loaded = load(path)
    assert loaded.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(loaded.decision_function(frame), clf.decision_function(frame))
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame.rename(columns={"x": "y"}))
    FeCAMClassifier().fit(X, Y).save(path)
    assert not hasattr(load(path), "feature_names_in_")


@pytest.mark.parametrize(
    "params",
    [
        {"shrinkage": (2, 1)},
        {"shrinkage": (np.float32(0.7), np.int64(0))},
        {"tukey": np.float32(0.3), "pooling": np.float64(2.5)},
        {"tukey": None, "pooling": 0, "mean_uncertainty": 1e-300},
        {"normalization": None, "l2": None, "tukey": 1},
    ],
)
def test_parameters_round_trip(path, params):
    clf = FeCAMClassifier(**params).fit(X, Y)
    clf.save(path)
    assert isinstance(load(path).shrinkage, tuple)
    assert_same(load(path), clf)


def test_array_parameters_are_loaded_as_tuples(path):
    FeCAMClassifier(shrinkage=np.asarray([1.0, 0.5])).fit(X, Y).save(path)
    assert load(path).shrinkage == (1.0, 0.5)


def test_a_loaded_model_continues_learning(path):
    clf = FeCAMClassifier().partial_fit(X, Y)
    clf.save(path)

    def both(change):
        loaded = load(path)
        clf_again = load(path).merge(FeCAMClassifier(**clf.get_params()))
        change(loaded), change(clf_again)
        assert_same(loaded, clf_again)
        return loaded

    loaded = both(lambda m: m.partial_fit(NEW_X, NEW_Y))
    assert loaded.state_.tasks == {0: 0, 1: 0, 2: 0, 3: 1}
    assert both(lambda m: m.forget(1)).classes_.tolist() == [0, 2]
    assert both(lambda m: m.unlearn(X[:6], Y[:6])).class_count_.tolist() == [6, 12, 12]
    assert both(lambda m: m.merge(clf)).class_count_.tolist() == [24, 24, 24]
    assert both(lambda m: m.set_params(covariance="pooled")).score(X, Y) > 0.8
    np.testing.assert_array_equal(
        load(path).partial_fit(NEW_X, NEW_Y).decision_function(X),
        clf.partial_fit(NEW_X, NEW_Y).decision_function(X),
    )


def test_merging_with_the_original_is_learning_twice(path):
    clf = FeCAMClassifier().fit(X, Y)
    clf.save(path)
    twice = FeCAMClassifier().fit(X, Y).partial_fit(X, Y).refresh()
    np.testing.assert_allclose(
        load(path).merge(clf).decision_function(X), twice.decision_function(X), rtol=1e-4
    )


def test_saving_updates_a_lagging_prior(path):
    clf = FeCAMClassifier().fit(X, Y)
    clf.predict(X)
    clf.partial_fit(NEW_X[:2], NEW_Y[:2])
    clf.save(path)
    assert_same(load(path), clf)


def test_a_model_without_classes_round_trips(path):
    clf = FeCAMClassifier(tukey="auto").fit(X, Y)
    for label in range(3):
        clf.forget(label)
    clf.save(path)
    loaded = load(path)
    assert (loaded.classes_.size, loaded.tukey_, loaded.n_features_in_) == (0, 0.5, 6)
    assert loaded.partial_fit(X, Y).score(X, Y) > 0.8


def test_the_same_model_gives_the_same_file(tmp_path, monkeypatch):
    monkeypatch.setattr("fecam.model_file.writing.now", lambda: "2026-01-01T00:00:00+00:00")
    clf = FeCAMClassifier().fit(X, Y)
    clf.save(tmp_path / "a")
    load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("name", ["a b?mode=rw#x%20.fecam", "ü.fecam", "'; --", "x" * 240])
def test_awkward_file_names(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clf = FeCAMClassifier().fit(X, Y)
    clf.save(name)
    assert_same(load(name), clf)
    assert os.listdir(tmp_path) == [name]


def test_a_matrix_takes_little_more_than_half(tmp_path):
    width, n_classes = 128, 20
    features, labels = relu_features(n_classes, 4, width, 0)
    FeCAMClassifier().fit(features, labels).save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 0.55 * n_classes * width * width * 4


FOLDER = Path(model_rows.__file__).parent


@pytest.mark.parametrize(
    "file", [FOLDER / "model_rows.py", *(FOLDER / "model_file").glob("*.py")], ids=lambda p: p.name
)
def test_nothing_that_runs_code_is_imported(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"pickle", "cPickle", "marshal", "shelve", "joblib", "dill", "eval", "exec"}


# ---------------------------------------------------------------------- saving is atomic


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("what", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("no room"), PermissionError(13, "denied")])
def test_a_first_save_that_fails_leaves_nothing(path, monkeypatch, what, error):
    monkeypatch.setattr(os, what, failing(error))
    with pytest.raises(ModelFileError, match=r"birds.fecam was not written.*as it was.*Check"):
        FeCAMClassifier().fit(X, Y).save(path)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("what", ["insert", "write_settings", "_next_step"])
@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk full"), OSError("no room")])
def test_a_save_that_fails_leaves_the_old_file(path, monkeypatch, what, error):
    clf = FeCAMClassifier().fit(X, Y)
    clf.save(path)
    monkeypatch.setattr(f"fecam.model_file.writing.{what}", failing(error))
    with pytest.raises(ModelFileError, match=r"birds.fecam was not written.*(full|no room)"):
        FeCAMClassifier().fit(NEW_X, NEW_Y).save(path)
    assert_same(load(path), clf)
    assert os.listdir(path.parent) == [path.name]


def test_an_interrupted_save_leaves_the_old_file(path, monkeypatch):
    clf = FeCAMClassifier().fit(X, Y)
    clf.save(path)
    monkeypatch.setattr("fecam.model_file.writing.pack_settings", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        FeCAMClassifier().fit(NEW_X, NEW_Y).save(path)
    assert_same(load(path), clf)
    assert os.listdir(path.parent) == [path.name]


def test_a_process_killed_while_saving_leaves_a_whole_file(path):
    program = (
        "import sys, numpy as np; from fecam import FeCAMClassifier\n"
        "X = np.random.default_rng(0).random((60, 200), dtype=np.float32)\n"
        "clf = FeCAMClassifier().fit(X, np.arange(60) % 20)\n"
        "while True: clf.save(sys.argv[1])\n"
    )
    saving = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(10):  # readers never see a partial file
            assert len(load(path).classes_) == 20
    finally:
        saving.kill()
        saving.wait()
    assert len(load(path).classes_) == 20


def overflown(**changes):
    clf = FeCAMClassifier().fit(X, Y)
    state = clf.state_
    classes = {**state.classes, 1: replace(state.classes[1], **changes)}
    return clf.set_state(replace(state, classes=classes))


def test_what_cannot_be_loaded_is_not_saved(path):
    with pytest.raises(NotFittedError, match="has no classes yet"):
        FeCAMClassifier().save(path)
    clf = FeCAMClassifier().fit(X, Y)
    clf.shrinkage = "much"
    with pytest.raises(SettingsError, match="shrinkage"):
        clf.save(path)
    with pytest.raises(ModelFileError, match=r"was not written: class 1 .*finite.*Forget it"):
        overflown(scatter=Scatter(np.full(21, np.inf, np.float32), "packed", 6)).save(path)
    with pytest.raises(ModelFileError, match=r"class 1: its sampled distances are \(nan, 0.0\)"):
        overflown(distance_moments=(1, np.nan, 0.0)).save(path)
    with pytest.raises(ModelFileError, match=r"was not written.*less than 4096"):
        FeCAMClassifier().fit(X, np.where(Y == 1, "x" * 5000, "y")).save(path)
    assert os.listdir(path.parent) == []


def test_paths_that_cannot_be_written(tmp_path):
    clf = FeCAMClassifier().fit(X, Y)
    with pytest.raises(ModelFileError, match=r"missing/m.fecam was not written.*folder exists"):
        clf.save(tmp_path / "missing" / "m.fecam")
    with pytest.raises(ModelFileError, match="it is a folder"):
        clf.save(tmp_path)
    with pytest.raises(ModelFileError, match="null"):
        clf.save("a\0b")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="modes and links as POSIX has them")
def test_modes_and_links_are_respected(tmp_path, path):
    clf = FeCAMClassifier().fit(X, Y)
    old = os.umask(0o027)
    try:
        clf.save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    link = tmp_path / "link"
    link.symlink_to(path)
    clf.partial_fit(NEW_X, NEW_Y).save(link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o604
    assert_same(load(path), clf)


def test_a_prior_that_can_be_derived_again_is_not_in_the_file(path):
    width = 400
    X, y = relu_features(3, 10, width, 0)
    clf = FeCAMClassifier().fit(X, y)
    clf.save(path)
    assert path.stat().st_size < 8 * width * width / 4, "less than half of a pooled matrix"
    assert_same(load(path), clf, X)
    with package.open(path) as model:
        model.learn(X[:1] + 1, [7])
        kept = model.classifier.copy()
    assert_same(load(path), kept, X)
    for label in (0, 1, 2, 7):
        with package.open(path) as model:
            model.forget(label, purge=True)
    info = file_info(path)
    assert info.prior_bytes == info.free_bytes == 0 and info.bytes < 100_000
