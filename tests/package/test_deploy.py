"""What is handed to systemd and to container builders says what the commands know."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT, CONTAINER = ROOT / "deploy" / "fecam.service", ROOT / "deploy" / "Containerfile"


def lines(path):
    """Lines of a file without comments, continued ones joined."""
    text = path.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def known():
    """The options of ``fecam serve``."""
    pytest.importorskip("starlette")
    from typer.main import get_command

    from fecam.cli.app import app

    command = get_command(app).commands["serve"]
    return {text for option in command.params for text in option.opts}


def options(words):
    return {word for word in words if re.match(r"--?[a-z]", word)}


def test_the_unit_starts_what_there_is(known):
    (start,) = [line for line in lines(UNIT) if line.startswith("ExecStart=")]
    program, verb, *rest = shlex.split(start.removeprefix("ExecStart="))
    assert program.endswith("/fecam") and verb == "serve"
    assert options(rest) and options(rest) <= known


def test_the_container_starts_what_there_is(known):
    words = dict(line.split(" ", 1) for line in lines(CONTAINER) if line[0] in "EC")
    assert json.loads(words["ENTRYPOINT"]) == ["fecam"]
    verb, *rest = json.loads(words["CMD"])
    assert verb == "serve" and options(rest) and options(rest) <= known
    (check,) = [line for line in lines(CONTAINER) if line.startswith("HEALTHCHECK")]
    command = json.loads(check[check.index("CMD ") + 4 :])
    compile(command[-1], "HEALTHCHECK", "exec")
    assert words["EXPOSE"] in command[-1] and "USER fecam" in lines(CONTAINER)


def test_the_container_has_the_files_that_it_copies():
    for line in lines(CONTAINER):
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
                assert f"!{name}" in lines(ROOT / ".dockerignore"), "left out of what is built from"


def test_the_docs_start_the_container_as_it_says_itself():
    text = CONTAINER.read_text().splitlines()
    said = [line.removeprefix("#   ") for line in text if line.startswith("#   podman")]
    page = (ROOT / "docs" / "how-to" / "run-the-service.md").read_text()
    assert len(said) == 3 and "\n".join(said) in page
    # The file of tokens that is made inside is the one that is served.
    made, served = said[1].split()[-1], lines(CONTAINER)[-1]
    assert f'"--tokens", "{made}"' in served


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / "fecam.service"
    text = UNIT.read_text().replace("/opt/fecam/bin/fecam", sys.executable)
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    # Of other units of the machine it may say what it likes.
    about = [line for line in done.stderr.splitlines() if "fecam.service" in line]
    assert not about, done.stderr
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-600:]


def test_an_audit_that_saw_nothing_does_not_look_like_a_good_one():
    spec = importlib.util.spec_from_file_location("audit", ROOT / "deploy" / "audit.py")
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    assert audit.told(None) == audit.told([{"name": "a", "skip_reason": "no network"}])
    assert "nothing was audited" in audit.told(None)[0]
    good = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
    assert audit.told([good])[1] == 0
    text, code = audit.told([good, bad])
    assert code == 1 and "b 2: PYSEC-1, mended in ['3']" in text and "1 packages have no" in text
