"""The remedy for a missing package is a command that works for the installation."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from fecam.errors import MissingPackageError, install_command

ROOT = Path(__file__).parents[2]
URL = "https://example.org/fecam"


def install(monkeypatch, source):
    text = source if source is None or isinstance(source, str) else json.dumps(source)
    record = type("Distribution", (), {"read_text": lambda self, name: text})()
    monkeypatch.setattr(metadata, "distribution", lambda name: record)


def folder(path, **info):
    return {"url": path.as_uri(), "dir_info": info}


def test_from_a_checkout(monkeypatch, tmp_path):
    checkout = tmp_path / "my fecam"
    install(monkeypatch, folder(checkout))
    assert install_command("images") == "pip install -c constraints.txt '.[images]'"
    checkout.mkdir()
    place = f"cd '{checkout}' && "
    assert install_command("images") == place + "pip install -c constraints.txt '.[images]'"
    install(monkeypatch, folder(checkout, editable=True))
    assert install_command("images") == place + "pip install -c constraints.txt -e '.[images]'"
    assert install_command("images") in str(MissingPackageError("reading", "pillow", "images"))


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'fecam[text]'"),
        ("no json", "pip install 'fecam[text]'"),
        ("[]", "pip install 'fecam[text]'"),
        ({"url": f"{URL}.whl", "archive_info": {}}, f"pip install 'fecam[text] @ {URL}.whl'"),
        ({"url": URL, "vcs_info": {"vcs": "git"}}, f"pip install 'fecam[text] @ git+{URL}'"),
    ],
)
def test_from_elsewhere(monkeypatch, source, command):
    install(monkeypatch, source)
    assert install_command("text") == command


def test_not_installed_at_all(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("text") == "pip install 'fecam[text]'"


def test_no_other_place_names_the_index():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    naming = [str(path.relative_to(ROOT)) for path in files if "'fecam[" in path.read_text("utf-8")]
    assert naming == ["src/fecam/errors.py"]


def test_the_pages_install_with_the_constraints():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for line in re.findall(r"pip install .*", path.read_text("utf-8")):
            assert line.startswith("pip install -c constraints.txt"), f"{path}: {line}"
