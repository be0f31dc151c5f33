"""The package around the method."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fecam

ROOT = Path(__file__).parents[2]
# pandas is not among them: scikit-learn loads it by itself where it is installed.
HEAVY = ("torch", "ray", "transformers", "matplotlib", "starlette", "msgspec", "typer")


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


def test_the_demo_shows_what_it_promises(tmp_path):
    """Made smaller: what its network is worth is measured by benchmarks/experiments.py."""
    smaller = ["dataset.per_class=20", "first_task.width=4", "first_task.epochs=1"]
    smaller += ["scenario.base=60", "scenario.increment=45"]
    changes = [part for one in smaller for part in ("--set", one)]
    done = run("-m", "fecam", "bench", "demo", "-O", str(tmp_path), *changes)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    heads = ["NCM", "FeCAM, common matrix", "FeCAM", "FeCAM, default"]
    assert [line.split("  ")[0] for line in lines if line.startswith(("NCM", "FeCAM"))] == heads
    assert str(tmp_path / "demo" / "report.html") in done.stderr
    assert (tmp_path / "demo" / "report.html").exists()
    tasks = (tmp_path / "demo" / "records.csv").read_text().splitlines()
    assert len(tasks) == 1 + len(heads) * 3


def test_versions_agree():
    assert version("fecam") == fecam.__version__
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_types_are_shipped():
    assert (Path(fecam.__file__).parent / "py.typed").exists()


def test_the_settings_are_the_parameters():
    from fecam.settings import PARAMETERS

    assert set(PARAMETERS) == set(fecam.FeCAMClassifier().get_params())


def test_ctrl_c_while_it_starts_shows_no_traceback(default_sigint):
    begin = "import os, signal, sys; signal.setitimer(signal.ITIMER_REAL, 0.15)\n"
    begin += "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
    done = run(
        "-c", begin + "from fecam.__main__ import main; sys.argv = ['fecam', '--help']; main()"
    )
    assert done.returncode in (0, 130) and "Traceback" not in done.stderr


def test_what_is_not_there_is_not_loaded_lazily_either():
    with pytest.raises(AttributeError, match="Fecam"):
        _ = fecam.Fecam
    assert {"FeCAMClassifier", "load"} <= set(dir(fecam))
