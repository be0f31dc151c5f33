"""Matrices that are read from the file when they are needed."""

import os
import sqlite3
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fecam.core.arrays import Array
from fecam.core.scatter import Scatter
from fecam.errors import ModelFileError
from fecam.model_file.connection import open_for_reading
from fecam.model_file.descriptors import descriptor_of
from fecam.model_rows import RESTORE, Layout, Matrices, Row, check_matrices, file_error

CACHE_BYTES = 64 * 2**20
"""Limit of the cache of matrices, which are often needed twice in a row."""
READAHEAD_AFTER = 4
"""After this many reads the system is asked to read the whole file ahead."""

Pair = list[Scatter | None]


class LazyMatrixStore:
    """The matrices of one file, with an LRU cache."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, tuple[Pair, int]] = OrderedDict()
        self._bytes = self._reads = 0
        self._open()

    def _open(self) -> None:
        self.db, self._process = open_for_reading(self.path, self._size), os.getpid()
        self._finalizer = weakref.finalize(self, self.db.close)

    def close(self) -> None:
        """Close the file; matrices that were not read cannot be read any more."""
        self._finalizer()

    def lazy_matrices(self, record_id: int, row: Row, layout: Layout) -> Pair:
        """Return the matrices of a record, which are read on access."""
        read = partial(self.read, record_id, row, layout)
        return [
            None if length is None else LazyScatter(read, i, layout, length)
            for i, length in enumerate((row.scatter_bytes, row.averaged_bytes))
        ]

    def read(self, record_id: int, row: Row, layout: Layout) -> Pair:
        """Return the checked matrices of a record, from the cache or the file."""
        with self._lock:
            if record_id in self._cache:
                self._cache.move_to_end(record_id)
                return self._cache[record_id][0]
            if self._process != os.getpid():  # a connection must not be used after a fork
                self._finalizer.detach()
                self._open()
            try:
                blobs = fetch(self.db, record_id, row)
            except sqlite3.Error as error:
                closed = isinstance(error, sqlite3.ProgrammingError)
                raise file_error(
                    f"{self.path}: the matrix of class {row.label} cannot be read: "
                    f"{'the file was closed' if closed else error}.",
                    "Open it again." if closed else RESTORE,
                ) from None
            self._reads += 1
            if self._reads == READAHEAD_AFTER:
                threading.Thread(target=_read_ahead, args=(self.path,), daemon=True).start()
        pair = check_matrices(row, blobs, layout)  # the slow part, outside of the lock
        with self._lock:
            if record_id not in self._cache:
                self._cache[record_id] = pair, row.matrix_bytes
                self._bytes += row.matrix_bytes
            while self._bytes > CACHE_BYTES and len(self._cache) > 1:
                self._bytes -= self._cache.popitem(last=False)[1][1]
        return pair


def _read_ahead(path: Path) -> None:
    with suppress(OSError, AttributeError), descriptor_of(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)  # not on every system


def fetch(db: sqlite3.Connection, record_id: int, row: Row) -> Matrices:
    """Return the stored matrices of a record; a blob of a wrong length is not read."""
    blobs = ", ".join(
        f"CASE WHEN {name} IS NULL OR (typeof({name}) = 'blob' AND length({name}) IS ?) "
        f"THEN {name} ELSE x'00' END"
        for name in ("scatter", "averaged")
    )
    values = (row.scatter_bytes, row.averaged_bytes, record_id)
    pair = db.execute(f"SELECT {blobs} FROM matrices WHERE id = ?", values).fetchone()
    if pair is None:
        raise ModelFileError(
            f"the matrix of class {row.label} is no longer in the file: another program changed "
            "the model since it was opened. Open it again."
        )
    return pair[0], pair[1]


def read_matrices(db: sqlite3.Connection, record_id: int, row: Row, layout: Layout) -> Pair:
    """Return the checked matrices of a record."""
    return check_matrices(row, fetch(db, record_id, row), layout)


class LazyScatter(Scatter):
    """A scatter whose numbers are read from the file on each access."""

    __slots__ = ("_index", "_read")
    _read: Callable[[], Pair]
    _index: int

    def __init__(self, read: Callable[[], Pair], index: int, layout: Layout, length: int) -> None:
        object.__setattr__(self, "storage", layout.storage_of(length))
        object.__setattr__(self, "n_features", layout.n_features)
        object.__setattr__(self, "_read", read)
        object.__setattr__(self, "_index", index)

    @property
    def data(self) -> Array:
        """The numbers, from the cache or the file."""
        scatter = self._read()[self._index]
        return scatter.data if scatter is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scatter, (self.data, self.storage, self.n_features)
