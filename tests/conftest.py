"""What several tests need: features shaped like those of real encoders, and the program."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("fecam", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("fecam")


@pytest.fixture(scope="session")
def digits():
    """scikit-learn's digits, split in two halves: X_train, y_train, X_test, y_test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X.astype(np.float32), y, test_size=0.5, stratify=y, random_state=0
    )
    return X_train, y_train, X_test, y_test


@pytest.fixture
def default_sigint():
    """SIGINT with its default handler: a child process inherits an ignored SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a cache of its own."""
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FECAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("FECAM_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fecam(place, monkeypatch, capsys):
    """The program, in this process; what it prints comes back."""
    from fecam.cli.app import main

    def run(*arguments, code=0, stdin=None):
        monkeypatch.setattr(sys, "argv", ["fecam", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        assert (end.value.code or 0) == code, printed
        assert "Traceback" not in printed.err
        return printed

    return run


@pytest.fixture
def answer(fecam):
    """What a command says to programs."""
    return lambda *arguments, code=0: json.loads(fecam(*arguments, "--json", code=code).out)


SLOW = 20_000
"""Milliseconds that a page may take on a busy machine."""
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),  # a camera
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A real browser with a fresh profile."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    api.expect.set_options(timeout=SLOW)
    with api.sync_playwright() as tools:
        context = tools.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=chromium,
            headless=True,
            args=FLAGS,
            has_touch=True,
            timeout=300_000,
        )
        context.set_default_timeout(SLOW)
        yield context
        context.close()
