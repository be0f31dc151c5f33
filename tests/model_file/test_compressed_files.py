"""Compressed models in ``.fecam`` and safetensors files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fecam
from fecam import FeCAMClassifier, load
from fecam.errors import ModelFileError
from fecam.model.compression import compress_file
from fecam.model_file.integrity import check, file_info
from fecam.transfer import export_model, import_model

FILES = Path(__file__).parents[1] / "helpers" / "files"


@pytest.fixture
def clf():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 20)
    X = rng.random((100, 16)) + 2 * np.eye(5, 16)[y]
    return FeCAMClassifier().fit(X, y)


X = np.random.default_rng(1).random((40, 16))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_files_keep_the_projection(clf, tmp_path, dtype):
    rng = np.random.default_rng(2)
    clf = FeCAMClassifier(dtype=dtype).fit(rng.random((60, 16)), np.repeat(np.arange(3), 20))
    clf.compress(6).save(tmp_path / "m.fecam")
    export_model(clf, tmp_path / "m.safetensors")
    loaded, imported = load(tmp_path / "m.fecam"), import_model(tmp_path / "m.safetensors")
    for other in (loaded, imported.classifier):
        assert other.state_.transform == clf.state_.transform
        assert other.n_features_in_ == 16
        np.testing.assert_array_equal(other.predict(X), clf.predict(X))
        np.testing.assert_allclose(other.decision_function(X), clf.decision_function(X), rtol=1e-3)
        other.partial_fit(X[:20], [7] * 20).unlearn(X[:20], [7] * 20)
    assert file_info(tmp_path / "m.fecam").n_components == 6
    assert check(tmp_path / "m.fecam") == []


def test_saving_over_the_original_can_be_undone(clf, tmp_path):
    path = tmp_path / "m.fecam"
    clf.save(path)
    before = load(path).predict(X)
    clf.copy().compress(4).save(path)
    assert load(path).state_.n_features == 4
    with fecam.open(path) as model:
        model.learn(X[:3], [9, 9, 9])
        assert model.classifier.state_.n_features == 4
        model.undo()
        model.undo()
        assert model.classifier.state_.n_features == 16
        np.testing.assert_array_equal(model.classifier.predict(X), before)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM projections").fetchone() == (0,)
    assert check(path) == []


def test_a_compressed_copy_keeps_provenance_and_the_original(clf, tmp_path):
    path, small = tmp_path / "m.fecam", tmp_path / "small.fecam"
    with fecam.open(path) as model:
        model.learn(X, np.arange(40) % 4)
        original = path.read_bytes()
        estimate = compress_file(model, small, 5)
        with pytest.raises(ValueError, match="exists already"):
            compress_file(model, small, 5)
        compress_file(model, small, 5, replace=True)
        times = [record.learned for record in model.classes]
    assert path.read_bytes() == original
    assert estimate.n_components == 5
    with fecam.open(small) as copy:
        assert [record.learned for record in copy.classes] == times
        assert "5 of 16 components" in copy.steps[0].note
        result = copy.learn(X, np.arange(40) % 4)  # the samples are known by their hashes
        assert sum(result.n_duplicates.values()) == 40
        assert len(copy.predict(X[:2])) == 2


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM projections", "projection is missing"),
        ("UPDATE projections SET components = 3", "projection is damaged"),
        ("UPDATE projections SET components = 'x'", "projection is damaged"),
        ("UPDATE projections SET matrix = zeroblob(length(matrix))", "projection is damaged"),
        ("UPDATE projections SET matrix = NULL", "projection is damaged"),
        ("UPDATE settings SET value = '\"x\"' WHERE name = 'projection_'", "projection_"),
        ("UPDATE settings SET value = 'null' WHERE name = 'projection_'", "array"),
    ],
)
def test_damaged_projections_are_rejected(clf, tmp_path, sql, says):
    path = tmp_path / "m.fecam"
    clf.compress(4).save(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    with pytest.raises(ModelFileError, match=says):
        load(path)


def test_a_wrong_projection_in_an_exchange_file_is_rejected(clf, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "m.safetensors"
    export_model(clf.compress(4), path)
    tensors = safetensors.load_file(path)
    with pytest.importorskip("safetensors").safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    good = tensors["projection"]
    for bad in (good[:, :0], good[:8], good.T.copy(), good.astype("float64"), good * np.nan):
        safetensors.save_file({**tensors, "projection": bad.copy()}, path, metadata)
        with pytest.raises(ModelFileError, match="projection"):
            import_model(path)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_files_of_older_versions_can_be_compressed(tmp_path, version):
    path = tmp_path / "old.fecam"
    path.write_bytes((FILES / f"version-{version}.fecam").read_bytes())
    rows = np.random.default_rng(1).random((10, load(path).n_features_in_))
    before = load(path).predict(rows)
    with fecam.open(path) as model:
        compress_file(model, tmp_path / "small.fecam", 3)
        model.forget("owl")
        assert file_info(path).n_components is None
        model.undo()
    np.testing.assert_array_equal(load(path).predict(rows), before)
    assert check(path) == check(tmp_path / "small.fecam") == []
    assert load(tmp_path / "small.fecam").state_.n_features == 3
    load(path).compress(2).save(path)
    assert load(path).state_.n_features == 2
