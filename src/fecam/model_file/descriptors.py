"""Reading a file beside SQLite without releasing its locks.

On POSIX, closing any descriptor of a file releases all locks that the process has on it, including
those of SQLite; another process could then delete a log that is in use. So while a connection is
open, one descriptor per file is shared, and closed after the last connection.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FileId = tuple[int, int]


_lock = threading.RLock()
_open: dict[FileId, list[int]] = {}
_users: Counter[FileId] = Counter()


class Connection(sqlite3.Connection):
    """A connection that keeps the shared descriptor of its file open."""

    _release: weakref.finalize[..., Connection] | None = None

    def share(self, path: Path) -> None:
        """Acquire the shared descriptor; call this before SQLite takes its first lock."""
        self._release = weakref.finalize(self, _release, _acquire(path))
        self._release.atexit = False

    def close(self) -> None:
        """Close the connection, then release the descriptor."""
        super().close()
        if self._release is not None:
            self._release()


def file_id(path: Path) -> FileId | None:
    """Return device and inode, which differ if the file was replaced; None if there is none."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return status.st_dev, status.st_ino


def read_start(path: Path, n_bytes: int) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size."""
    with _lock, descriptor_of(path) as descriptor:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, n_bytes), os.fstat(descriptor).st_size


@contextmanager
def descriptor_of(path: Path) -> Iterator[int]:
    """Yield the shared descriptor of a file; the caller must not close it."""
    key = _acquire(path)
    try:
        yield _open[key][0]
    finally:
        _release(key)


def _acquire(path: Path) -> FileId:
    with _lock:
        key = file_id(path)
        if key is None or key not in _open:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            status = os.fstat(descriptor)
            key = status.st_dev, status.st_ino
            _open.setdefault(key, []).append(descriptor)
        _users[key] += 1
        return key


def _release(key: FileId) -> None:
    with _lock:
        _users[key] -= 1
        if not _users[key]:
            del _users[key]
            for descriptor in _open.pop(key):
                os.close(descriptor)
