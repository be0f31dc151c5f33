"""SQLite connections to a file, for readers and for the writer."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fecam.model_file.descriptors import Connection
from fecam.model_file.header import check_journal, journal_path, wal_size
from fecam.model_rows import file_error

BUSY_TIMEOUT_S = 60.0
"""Seconds to wait for another writer."""
CACHE_KB = 65536
"""A transaction of up to this size is collected in memory before it is written."""


def open_for_reading(path: Path, size: int) -> sqlite3.Connection:
    """Return a read-only connection; a transaction of a killed writer is rolled back first."""
    check_journal(path)
    try:
        return _connect(path, "mode=ro", size)
    except sqlite3.OperationalError as error:
        if journal_path(path).exists():
            _connect(path, "mode=rw", size).close()  # SQLite rolls the journal back
            return _connect(path, "mode=ro", size)
        if "unable to open" not in str(error) or wal_size(path):
            raise
        # The file is in WAL mode in a read-only folder; as the log is empty, it can be ignored.
        return _connect(path, "mode=ro&immutable=1", size)


def open_for_writing(path: Path, size: int) -> sqlite3.Connection:
    """Return a connection whose commits survive a power failure; deleted content is overwritten.

    With a write-ahead log a step costs one fsync, and readers never wait. On a network drive, or
    while another program reads, a rollback journal is used instead.
    """
    check_journal(path)
    db = _connect(path, "mode=rw", size)
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError:
        mode = ""
    if mode != "wal":
        db.execute("PRAGMA journal_mode = PERSIST")  # cheaper than a new journal per step
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    return db


def close_writer(db: sqlite3.Connection) -> None:
    """Close the writer: release free pages, and remove the log if no other connection is open."""
    with suppress(sqlite3.Error):  # the last connection does it
        db.execute("PRAGMA busy_timeout = 0")
        db.executescript("PRAGMA incremental_vacuum")  # execute() would release one page
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    db.close()


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or roll back after an error; excludes other writers."""
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
    try:
        db.share(path)
        set_limits(db, size)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def set_limits(db: sqlite3.Connection, size: int) -> None:
    """Abort queries that no valid file of this size needs: pages of a hostile one form cycles."""
    db.set_progress_handler(lambda: 1, min(1_000_000 + size, 2**31 - 1))
