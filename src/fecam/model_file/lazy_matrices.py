"""Matrices that stay in the file until they are asked for."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from fecam.core.arrays import Array
from fecam.core.scatter import Scatter
from fecam.errors import ModelFileError
from fecam.model_file.connection import open_for_reading
from fecam.model_file.descriptors import descriptor_of
from fecam.model_rows import Layout, Row, check_matrices, file_error

CACHE_BYTES = 64 * 2**20
"""Of the matrices read last, for they are often asked for again at once."""

READAHEAD_AFTER = 4
"""Whoever has asked for so many matrices is about to ask for all: let the system fetch them."""

Pair = list[Scatter | None]


class LazyMatrixStore:
    """The matrices of one file."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._size = path, size
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Pair] = OrderedDict()
        self._bytes = self._reads = 0
        self._open()

    def _open(self) -> None:
        self.db, self._process = open_for_reading(self.path, self._size), os.getpid()
        self._finalizer = weakref.finalize(self, self.db.close)

    def close(self) -> None:
        """Let go of the file; matrices that were not read cannot be read any more."""
        self._finalizer()

    def stored(self, number: int, row: Row, layout: Layout) -> tuple[Scatter | None, ...]:
        """The matrices of a record, not read yet."""
        return tuple(
            None if length is None else LazyScatter(self, number, row, layout, which)
            for which, length in enumerate(row.lengths)
        )

    def read(self, number: int, row: Row, layout: Layout) -> Pair:
        """The matrices of a record, checked."""
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
            if self._process != os.getpid():  # a connection must not be taken through a fork
                self._finalizer.detach()
                self._open()
            found = self._fetch(number, row)
            self._reads += 1
            if self._reads == READAHEAD_AFTER:
                threading.Thread(target=_fetch_ahead, args=(self.path,), daemon=True).start()
        pair = check_matrices(row, found, layout)  # the longer part, outside of the lock
        with self._lock:
            if number not in self._kept:
                self._kept[number] = pair
                self._bytes += _size(row)
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= sum(one.data.nbytes for one in gone if one is not None)
        return pair

    def _fetch(self, number: int, row: Row) -> tuple[Any, Any]:
        try:
            return fetch(self.db, number, row)
        except sqlite3.ProgrammingError:
            raise file_error(
                f"the matrix of class {row.label} cannot be read: {self.path} was closed.",
                "Open it again.",
            ) from None
        except sqlite3.Error as error:
            what = f"{self.path}: the matrix of class {row.label} cannot be read: {error}."
            raise file_error(what) from None


def _fetch_ahead(path: Path) -> None:
    """Have the system read a file while we compute; it is only a hint, and may be ignored."""
    with suppress(OSError, AttributeError), descriptor_of(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)  # not every system knows it


def fetch(db: sqlite3.Connection, number: int, row: Row) -> tuple[Any, Any]:
    """The matrices of a record as they are stored; of a wrong length they are not even read."""
    blobs = ", ".join(
        f"CASE WHEN {name} IS NULL OR (typeof({name}) = 'blob' AND length({name}) IS ?) "
        f"THEN {name} ELSE x'00' END"
        for name in ("scatter", "averaged")
    )
    found = db.execute(f"SELECT {blobs} FROM matrices WHERE id = ?", (*row.lengths, number))
    pair = found.fetchone()
    if pair is None:
        raise ModelFileError(
            f"the matrix of class {row.label} is not in the file any more: the model was changed "
            "by another program since it was opened. Open it again."
        )
    return pair[0], pair[1]


class LazyScatter(Scatter):
    """A scatter whose numbers are read when they are looked at, and not kept here."""

    __slots__ = ("_layout", "_number", "_row", "_store", "_which")
    _store: LazyMatrixStore
    _number: int
    _row: Row
    _layout: Layout
    _which: int

    def __init__(
        self, store: LazyMatrixStore, number: int, row: Row, layout: Layout, which: int
    ) -> None:
        values = {
            "storage": layout.shape_of(row.lengths[which]),
            "n_features": layout.width,
            "_store": store,
            "_number": number,
            "_row": row,
            "_layout": layout,
            "_which": which,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def data(self) -> Array:
        """From the file, or from what was read last."""
        found = self._store.read(self._number, self._row, self._layout)[self._which]
        return found.data if found is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scatter, (self.data, self.storage, self.n_features)


def _size(row: Row) -> int:
    return sum(length or 0 for length in row.lengths)
