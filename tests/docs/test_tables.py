"""Each measured table carries a stamp, and says so if its code has changed since."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import stamps  # noqa: E402

TABLES = {path.name: path for path in sorted(stamps.TABLES.glob("*.md"))}


def read(name):
    return TABLES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_ends_with_a_stamp_of_existing_paths(name):
    stamp = stamps.Stamp.read(read(name))
    assert stamp is not None, f"{name} has no stamp: measure it again"
    assert read(name).endswith(f"\n\n{stamp}\n")
    missing = [path for path in stamp.paths if not (ROOT / path).exists()]
    assert not missing, f"{name} measures {missing}, which do not exist"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_whether_its_code_has_changed(name):
    if reason := stamps.missing_history():
        pytest.skip(f"whether the code has changed cannot be found out: {reason}")
    stamp = stamps.Stamp.read(read(name))
    assert stamp.code_changed() == stamp.says_changed, (
        f"{name}, measured at {stamp.commit}: run `python benchmarks/stamps.py --mark`"
    )


def test_a_stamp_is_read_as_it_was_written():
    for changed in (False, True):
        stamp = stamps.Stamp("0123abc", "2026-11-18", ("src/a", "src/b.py"), changed)
        table = stamps.stamped("| a |\n|---|\n| 1 |", stamp)
        assert stamps.Stamp.read(table) == stamp
        assert stamps.stamped(table, stamp) == table


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(stamps, "ROOT", tmp_path)
    stamps.git("init", "-q")
    commit(tmp_path, "a.py", "1")
    return tmp_path


def commit(folder, name, text):
    (folder / name).write_text(text)
    stamps.git("add", name)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    stamps.git(*who, "commit", "-q", "-m", "docs: change a file")


def test_changes_of_the_measured_code_are_found(repository):
    stamp = stamps.Stamp.now(("a.py",))
    commit(repository, "b.py", "1")
    assert not stamp.code_changed()
    (repository / "a.py").write_text("2")
    assert stamp.code_changed()
    commit(repository, "a.py", "2")
    assert stamp.code_changed() and not stamps.Stamp.now(("a.py",)).code_changed()


def test_a_commit_of_another_history_counts_as_changed(repository):
    assert stamps.Stamp("0123abc", "2026-11-18", ("a.py",)).code_changed()


def test_a_checkout_without_history_says_so(tmp_path, monkeypatch, repository):
    assert stamps.missing_history() is None
    commit(repository, "a.py", "2")
    shallow = ["git", "clone", "-q", "--depth", "1", f"file://{repository}", str(tmp_path / "s")]
    subprocess.run(shallow, check=True, capture_output=True)
    monkeypatch.setattr(stamps, "ROOT", tmp_path / "s")
    assert "shallow" in stamps.missing_history()
    (tmp_path / "s" / ".git").rename(tmp_path / "s" / "no-git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "not a git checkout" in stamps.missing_history()
