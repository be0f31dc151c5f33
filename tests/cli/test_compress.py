"""`fecam compress`: a new file, the expected loss, and nothing overwritten by accident."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fecam import FeCAMClassifier, load
from fecam.cli.app import app
from fecam.errors import InputError, ModelFileError, SettingsError


@pytest.fixture
def model(tmp_path):
    y = np.repeat(["a", "b", "c"], 20)
    X = np.random.default_rng(0).random((60, 16)) + np.eye(3, 16).repeat(20, axis=0)
    FeCAMClassifier().fit(X, y).save(tmp_path / "m.fecam")
    return tmp_path / "m.fecam"


def run(*arguments):
    result = CliRunner().invoke(app, ["compress", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_default_writes_a_new_file(model):
    original = model.read_bytes()
    output = model.with_name("m-compressed.fecam")
    shown = run(model, "--components", 4).output
    assert "4 of 16 components" in shown
    assert "% of labels unchanged" in shown
    assert load(output).state_.n_features == 4
    assert model.read_bytes() == original
    with pytest.raises(InputError, match=r"exists already.*--force"):
        run(model)
    assert "8 of 16" in run(model, "--components", 8, "--force").output
    assert load(output).state_.n_features == 8


def test_dry_run_writes_nothing(model):
    done = json.loads(run(model, "--dry-run", "--json").stdout)
    assert done["output"] is None
    assert done["n_components"] in (2, 4, 8)
    assert 0 < done["agreement"] <= 1
    assert done["bytes_after"] < done["bytes_before"]
    assert [path.name for path in model.parent.iterdir()] == ["m.fecam"]


def test_the_source_is_replaced_only_with_force(model):
    with pytest.raises(InputError, match="exists already"):
        run(model, "-o", model)
    run(model, "-o", model, "--force", "--components", 5)
    assert load(model).state_.n_features == 5
    with pytest.raises(SettingsError, match="compressed already"):
        run(model)


def test_a_copy_that_is_not_smaller_says_why(tmp_path):
    path = tmp_path / "few.fecam"
    X = np.random.default_rng(0).random((12, 256))
    FeCAMClassifier().fit(X, np.repeat(["a", "b", "c"], 4)).save(path)
    assert "classes of few samples" in run(path, "--components", 200).output


def test_bad_input(model):
    for components, says in {"0": "--components 0", "17": "from 1 to 16", "x": "auto"}.items():
        with pytest.raises(InputError, match=says):
            run(model, "--components", components)
    with pytest.raises(ModelFileError, match="does not exist"):
        run(model.with_name("no.fecam"))
    assert len(list(model.parent.iterdir())) == 1
