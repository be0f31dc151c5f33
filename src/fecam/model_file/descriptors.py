"""Looking at the bytes of a file beside SQLite, without taking its locks away.

On POSIX systems, whoever closes any descriptor of a file gives up all locks that its process has on
it, those of SQLite too; another program would then take away a log that is still written to. So
while a connection is open here, one descriptor is shared, and closed after the last connection.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Identity = tuple[int, int]


@dataclass
class _Shared:
    descriptors: list[int] = field(default_factory=list)
    users: int = 0


_lock = threading.RLock()
_open: dict[Identity, _Shared] = {}


class Connection(sqlite3.Connection):
    """A connection to a file whose descriptor is shared as long as it is open."""

    _release: weakref.finalize[..., Connection] | None = None

    def share(self, path: Path) -> None:
        """Begin to share; before the first lock is taken."""
        self._release = weakref.finalize(self, _let_go, _hold(path))
        self._release.atexit = False

    def close(self) -> None:
        """Close, and only then the descriptor, if nobody else needs it."""
        super().close()
        if self._release is not None:
            self._release()


def identity(path: Path) -> Identity | None:
    """What tells a file from another one that is put in its place; None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found.st_dev, found.st_ino


def beginning(path: Path, count: int) -> tuple[bytes, int]:
    """The first bytes of a file, and its size."""
    with _lock, descriptor_of(path) as descriptor:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, count), os.fstat(descriptor).st_size


@contextmanager
def descriptor_of(path: Path) -> Iterator[int]:
    """A descriptor to read from; not to be closed."""
    held = _hold(path)
    try:
        yield _open[held].descriptors[0]
    finally:
        _let_go(held)


def _hold(path: Path) -> Identity:
    with _lock:
        name = identity(path)
        if name not in _open or name is None:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            found = os.fstat(descriptor)
            name = found.st_dev, found.st_ino
            _open.setdefault(name, _Shared()).descriptors.append(descriptor)
        _open[name].users += 1
        return name


def _let_go(name: Identity) -> None:
    with _lock:
        shared = _open[name]
        shared.users -= 1
        if not shared.users:
            del _open[name]
            for descriptor in shared.descriptors:
                os.close(descriptor)
