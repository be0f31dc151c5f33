"""Atomic files."""

import os
import stat

import pytest

from fecam.files import atomic_file, write_atomically


def test_an_error_keeps_the_previous_content(tmp_path):
    path = tmp_path / "a[1].txt"
    write_atomically(path, "old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_mode_of_the_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "public", b"")
        with atomic_file(tmp_path / "private", mode=0o600):
            pass
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("public", "private")]
    assert modes == [0o644, 0o600]


def test_stale_temporary_files_are_removed(tmp_path):
    path, stale, recent, other = (
        tmp_path / name for name in ("a[1]", ".a[1].1.part", ".a[1].2.part", ".a1.1.part")
    )
    for temporary in (stale, recent, other):
        temporary.write_bytes(b"")
    for temporary in (stale, other):
        os.utime(temporary, (0, 0))
    write_atomically(path, "text")
    assert set(tmp_path.iterdir()) == {path, recent, other}
