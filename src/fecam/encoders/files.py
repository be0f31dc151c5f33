"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from fecam.errors import FecamError

PathLike = str | os.PathLike[str]

_STALE = 3600.0
"""Seconds after which a temporary file belongs to a process that was killed."""


def write_atomically(path: PathLike, content: bytes, error: type[FecamError]) -> None:
    """Write a file, or keep the previous one and raise ``error``."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        for leftover in path.parent.glob(f".{path.name}.*.part"):
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _STALE:
                    leftover.unlink()
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as reason:
        with suppress(OSError):
            temporary.unlink()
        raise error(
            f"{path} was not written: {reason}. Choose a folder that exists and has space."
        ) from None
