"""The package around the method."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import fecam

ROOT = Path(__file__).parent.parent
# pandas is not among them: scikit-learn loads it by itself where it is installed.
HEAVY = ("torch", "ray", "transformers", "matplotlib", "fastapi", "typer")


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_importing_it_loads_nothing_heavy():
    code = f"import fecam, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert run("-c", code).stdout.strip() == "[]"


def test_learning_and_predicting_load_nothing_heavy():
    code = (
        "import fecam, sys, numpy as np; X = np.eye(4); c = fecam.FeCAMClassifier()\n"
        "c.partial_fit(X, [0, 1, 0, 1]).predict_proba(X); c.novelty(X)\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert run("-c", code).stdout.strip() == "[]"


def test_the_demo_runs_and_shows_what_it_promises():
    done = run("examples/learn_digits.py")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 10
    last = [float(cell.rstrip("%")) for cell in rows[-1][2:]]
    assert last[2] > last[0] + 5, "the default beats the nearest mean by far"


def test_versions_agree():
    assert version("fecam") == fecam.__version__
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_types_are_shipped():
    assert (Path(fecam.__file__).parent / "py.typed").exists()


def test_the_settings_are_the_parameters():
    from fecam.settings import PARAMETERS

    assert set(PARAMETERS) == set(fecam.FeCAMClassifier().get_params())
