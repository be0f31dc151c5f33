"""Classifiers as ONNX graphs: onnxruntime gives the same distances, probabilities and labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime

import fecam as package
from fecam import FeCAMClassifier
from fecam.errors import InputError, ModelFileError
from fecam.onnx_export import export_onnx
from fecam.presets import PRESETS
from helpers.features import relu_features
from helpers.small_models import pictures

X, Y = relu_features(5, 20, 12, 0)
QUERIES, _ = relu_features(5, 6, 12, 1)


def run(path, queries, name="features"):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    label, probabilities, distances = session.run(None, {name: queries})
    labels = json.loads(session.get_modelmeta().custom_metadata_map["fecam.labels"])
    return labels, label, probabilities, distances


def assert_same(clf, path, queries=QUERIES):
    labels, label, probabilities, distances = run(path, queries.astype(np.float32))
    assert labels == clf.classes_.tolist()
    expected = clf.transform(queries) ** 2
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-4 * expected.max())
    np.testing.assert_allclose(probabilities, clf.predict_proba(queries), atol=1e-3)
    assert label.tolist() == clf.predict(queries).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        *({"preset": name} for name in PRESETS),
        {},
        {"covariance": "common"},
        {"covariance": "pooled", "mean_uncertainty": 1.0},
        {"covariance": "diagonal"},
        {"covariance": "identity", "mean_uncertainty": 1.0},
        {"tukey": 0.0, "l2": None},
        {"priors": {0: 5.0, 3: 0.5}},
        {"priors": "empirical"},
    ],
    ids=str,
)
def test_onnxruntime_agrees(settings, tmp_path):
    settings = dict(settings)
    preset = settings.pop("preset", None)
    clf = FeCAMClassifier(**settings) if preset is None else FeCAMClassifier.from_preset(preset)
    rows = X + 0.01 if settings.get("tukey") == 0 else X
    clf.partial_fit(rows[: 2 * 20], Y[: 2 * 20]).partial_fit(rows[40:83], Y[40:83])
    export_onnx(clf, tmp_path / "m.onnx")
    assert_same(clf, tmp_path / "m.onnx", QUERIES + 0.01)


@pytest.mark.parametrize("labels", [["cat", "dog", "é", "tit", "owl"], [False, True], [7, 9, -3]])
def test_labels_keep_their_type(labels, tmp_path):
    rows = len(labels) > Y
    clf = FeCAMClassifier().fit(X[rows], np.asarray(labels)[Y[rows]])
    export_onnx(clf, tmp_path / "m.onnx")
    assert_same(clf, tmp_path / "m.onnx")


def test_compressed_models_and_rows_of_zeros(tmp_path):
    clf = FeCAMClassifier().fit(X, Y).compress(4)
    export_onnx(clf, tmp_path / "m.onnx")
    assert_same(clf, tmp_path / "m.onnx", np.vstack([QUERIES, np.zeros((1, 12), np.float32)]))


def test_images_to_labels_in_one_file(fecam, place):
    with package.open("m.fecam", encoder="efficientnet-lite0?resolution=64") as model:
        model.learn(pictures(), [str(i % 2) for i in range(len(pictures()))])
        expected = model.classifier.transform(model.encode(pictures())) ** 2
        pixels = np.stack([model.encoder.prepare(item) for item in pictures()])
    fecam("export", "m.onnx", "-m", "m.fecam", "--with-encoder")
    _, label, _, distances = run("m.onnx", pixels, "pixels")
    np.testing.assert_allclose(distances, expected, rtol=1e-3, atol=1e-3 * expected.max())
    assert set(label.tolist()) <= {"0", "1"}
    said = fecam("export", "m.safetensors", "-m", "m.fecam", "--with-encoder", code=1).err
    assert "statistics only" in said


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    clf = FeCAMClassifier().fit(X, Y)
    with pytest.raises(ModelFileError, match="was not written"):
        export_onnx(clf, tmp_path / "missing" / "m.onnx")
    monkeypatch.setattr("fecam.onnx_export.MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"fecam compress"):
        export_onnx(clf, tmp_path / "m.onnx")
    clf.forget(0).forget(1).forget(2).forget(3).forget(4)
    with pytest.raises(InputError, match="no classes"):
        export_onnx(clf, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_an_encoder_of_another_width_is_refused(tmp_path):
    from fecam.encoders import catalogue, load

    catalogue.export(load("efficientnet-lite0", resolution=64), tmp_path / "encoder.onnx")
    with pytest.raises(InputError, match="1280 features, the model 12"):
        export_onnx(
            FeCAMClassifier().fit(X, Y), tmp_path / "m.onnx", encoder=tmp_path / "encoder.onnx"
        )
