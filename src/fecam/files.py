"""Files that appear under their name only when they are complete."""

import glob
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

PathLike = str | os.PathLike[str]

_STALE_S = 3600.0
"""Seconds after which a temporary file belongs to a process that was killed."""


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` if no error is raised; ``mode`` is umasked."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_S:
                leftover.unlink()
    temporary = path.with_name(f".{path.name}.{token_hex(8)}.part")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees its old or its new content."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(path: Path, flags: int = os.O_RDONLY) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
