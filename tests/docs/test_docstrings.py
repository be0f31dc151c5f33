"""The check of docstrings finds what is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numpydoc")
SCRIPT = Path(__file__).parents[2] / "docs" / "scripts" / "check_docstrings.py"

SAMPLE = '''
class Scale:
    """A factor.

    Parameters
    ----------
    factor : float
        Multiplies a value.
    """

    def __init__(self, factor):
        self.factor = factor

    def apply(self, value):
        """Return the product

        Parameters
        ----------
        value
            Any number.
        """
        return self.factor * value

    def size(self):
        """Return the absolute value."""
        return abs(self.factor)

    def _hidden(self):
        pass

class Doubled(Scale):
    """Twice."""

def undocumented():
    pass
'''


@pytest.fixture
def check(monkeypatch):
    spec = importlib.util.spec_from_file_location("check_docstrings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sample(tmp_path, monkeypatch):
    (tmp_path / "fecam_sample.py").write_text(SAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("fecam_sample")
    module.__all__ = ["Scale", "Doubled", "undocumented", "constant"]
    module.constant = 1
    yield module
    del sys.modules["fecam_sample"]


def codes(check, name):
    return sorted(line.split(": ")[2][:4] for line in check.violations(name))


def test_public_names_have_their_own_and_inherited_members(check, sample):
    names = set(check.names("fecam_sample"))
    assert isinstance(sample, ModuleType)
    assert names == {
        "fecam_sample.Scale",
        "fecam_sample.Scale.apply",
        "fecam_sample.Scale.size",
        "fecam_sample.Doubled",
        "fecam_sample.Doubled.apply",
        "fecam_sample.Doubled.size",
        "fecam_sample.undocumented",
    }


def test_violations_are_found(check, sample):
    assert codes(check, "fecam_sample.Scale") == []
    assert codes(check, "fecam_sample.Scale.apply") == ["PR04", "RT01", "SS03"]
    assert codes(check, "fecam_sample.Scale.size") == []
    assert codes(check, "fecam_sample.Doubled") == ["PR01"]
    assert codes(check, "fecam_sample.undocumented") == ["GL08"]
