"""A model file as a pyfunc model of MLflow."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("mlflow")

import pandas as pd

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow warns of its own annotations
    from fecam.mlflow_model import save_model

import fecam
from fecam.errors import ModelFileError
from helpers.features import relu_features

X, Y = relu_features(3, 12, 6, 0)
NAMES = np.asarray(["cat", "dog", "owl"])[Y]


@pytest.fixture
def saved(tmp_path):
    with fecam.open(tmp_path / "pets.fecam") as model:
        model.learn(X, NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow: it misses a signature
        save_model(tmp_path / "pets.fecam", tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_model_predicts_as_the_file(saved):
    import mlflow.pyfunc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mlflow.pyfunc.load_model(str(saved))
        found = model.predict(pd.DataFrame(X))
        far = model.unwrap_python_model().predict(None, X[:, ::-1], {"reject": 0.05})
    with fecam.open(saved.parent / "pets.fecam", readonly=True) as own:
        expected = own.predict_detailed(X)
        rejected = [one.label is None for one in own.predict_detailed(X[:, ::-1], reject=0.05)]
    assert found["label"].tolist() == [one.label for one in expected]
    np.testing.assert_allclose(found["novelty"], [one.novelty for one in expected], rtol=1e-5)
    assert far["label"].isna().tolist() == rejected and any(rejected)


def test_nothing_is_pickled(saved):
    names = {path.suffix for path in saved.rglob("*") if path.is_file()}
    assert ".pkl" not in names and (saved / "artifacts" / "pets.fecam").exists()


def test_a_missing_file_writes_nothing(tmp_path):
    with pytest.raises(ModelFileError, match="no such file"):
        save_model(tmp_path / "none.fecam", tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
