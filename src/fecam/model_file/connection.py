"""Connections to a file: one that only reads, and one for the program that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fecam.model_file.descriptors import Connection
from fecam.model_file.header import check_journal, journal_of, wal_size
from fecam.model_rows import file_error

BUSY_TIMEOUT_S = 60.0
"""Seconds to wait for another program that writes."""
CACHE_KB = 65536
"""A change of up to this size is collected in memory before any of it is written."""


def open_for_reading(path: Path, size: int) -> sqlite3.Connection:
    """A connection that changes nothing, unless a program was killed while it wrote.

    What such a program had begun is taken back first, which SQLite does by itself on the first
    connection that may write.
    """
    check_journal(path)
    try:
        return _readable(path, "mode=ro", size)
    except sqlite3.OperationalError as error:
        if journal_of(path).exists():
            _rollback_hot_journal(path, size)
            return _readable(path, "mode=ro", size)
        if "unable to open" not in str(error) or wal_size(path):
            raise
        # A log is kept, but may not be begun in this folder; as it is empty, nobody misses it.
        return _readable(path, "mode=ro&immutable=1", size)


def _readable(path: Path, mode: str, size: int) -> sqlite3.Connection:
    db = _connect(path, mode, size)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


def open_for_writing(path: Path, size: int) -> sqlite3.Connection:
    """A connection that keeps its promises when the power fails, and leaves nothing readable.

    With a write-ahead log a step costs one fsync, and readers never wait. Where there can be none
    (on a network drive, or while another program reads at this very moment) it is done without.
    """
    check_journal(path)
    db = _connect(path, "mode=rw", size)
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError:
        mode = ""
    if mode != "wal":
        # Made once and emptied after each change, a journal costs less than made anew each time.
        db.execute("PRAGMA journal_mode = PERSIST")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    return db


def close_writing(db: sqlite3.Connection) -> None:
    """Close, and leave one file, if nobody else has it open."""
    with suppress(sqlite3.Error):  # whoever has it open will do the same
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; no other program writes meanwhile."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        raise file_error(
            f"another program has been writing to it for {BUSY_TIMEOUT_S:.0f} seconds.",
            "Nothing was changed; try again when it is done.",
        ) from None
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _connect(path: Path, mode: str, size: int) -> sqlite3.Connection:
    db: Connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
        factory=Connection,
    )
    db.share(path)
    set_limits(db, size)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def set_limits(db: sqlite3.Connection, size: int) -> None:
    """Give up what no honest file of that size takes: pages may point at each other for ever."""
    db.set_progress_handler(lambda: 1, min(1_000_000 + size, 2**31 - 1))


def _rollback_hot_journal(path: Path, size: int) -> None:
    db = _connect(path, "mode=rw", size)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    finally:
        db.close()
