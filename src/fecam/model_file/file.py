"""`ModelFile`: an open ``.fecam`` file, that is read as snapshots and changed in steps."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from fecam.core.prior import Prior
from fecam.errors import FecamError, ModelFileError
from fecam.model_file.connection import (
    close_writing,
    open_for_reading,
    open_for_writing,
    set_limits,
    transaction,
)
from fecam.model_file.descriptors import identity
from fecam.model_file.header import VERSION, check_header
from fecam.model_file.journal import find_step, prune_history, purge_classes, read_steps, undo_step
from fecam.model_file.lazy_matrices import LazyMatrixStore
from fecam.model_file.migrations import migrate, migrated_copy
from fecam.model_file.schema import check_schema
from fecam.model_file.snapshot import RowHashes, Snapshot, read_snapshot
from fecam.model_file.writing import WorkingCopy, write_step
from fecam.model_rows import RESTORE
from fecam.results import Label, Step

EAGER_BYTES = 32 * 2**20
"""A file up to this size is read as a whole; of a larger one the matrices when they are needed."""
_PLACE = ("readonly", "disk is full", "disk I/O", "unable to open")
"""What SQLite says where a file lies badly, and is none the worse for it."""


class ModelFile:
    """An open file. Any number of programs may read it while one writes.

    ``snapshot`` is what it held when it was opened, last changed here, or reloaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._store: LazyMatrixStore | None = None
        with translate_errors(self.path, reading=True):
            self.snapshot = self._first()

    def _first(self) -> Snapshot:
        self._identity = identity(self.path)
        self._size, version = check_header(self.path)
        if version < VERSION:
            with migrated_copy(self.path, self._size) as db:
                return read_snapshot(db, self._size, None)
        if self._size > EAGER_BYTES:
            self._store = LazyMatrixStore(self.path, self._size)
            return self._read(self._store.db)
        with closing(open_for_reading(self.path, self._size)) as db:
            return self._read(db)

    def _read(
        self,
        db: sqlite3.Connection,
        before: Snapshot | None = None,
        priors: dict[int, Prior] | None = None,
    ) -> Snapshot:
        """One view of the file, even if it is being written to."""
        within = db.in_transaction
        if not within:
            db.execute("BEGIN")
        try:
            check_schema(db)
            # It may have grown since it was opened: by now it is as large as what is seen of it.
            self._size = max(self._size, check_header(self.path)[0])
            set_limits(db, self._size)
            return read_snapshot(db, self._size, self._store, before, priors)
        finally:
            if not within:
                db.execute("COMMIT")

    def reload(self) -> bool:
        """Take over what other programs wrote; whether there was anything."""
        with self._lock, translate_errors(self.path):
            before = self.snapshot
            self._follow()
            if check_header(self.path)[1] < VERSION:
                return self.snapshot is not before
            with self._reading() as db:
                self.snapshot = self._newest(db)
            return self.snapshot is not before

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read from: one that is open, or one for the moment."""
        db = self._writer or (self._store.db if self._store else None)
        if db is not None:
            yield db
            return
        with closing(open_for_reading(self.path, self._size)) as db:
            yield db

    def _newest(self, db: sqlite3.Connection) -> Snapshot:
        value = db.execute("SELECT value FROM settings WHERE name = 'checksum_'").fetchone()
        if value is not None and value[0] == self.snapshot.checksum:
            return self.snapshot
        try:
            return self._read(db, self.snapshot)
        except ModelFileError:
            # Records of a file that was written over this one may have the same numbers.
            if self._store is not None:
                self._store = LazyMatrixStore(self.path, self._size)
            return self._read(db)

    def _follow(self) -> None:
        """Take up the file that was put in the place of the one that was opened, if there is one.

        Whoever still reads matrices of the old one may do so.
        """
        if identity(self.path) != self._identity:
            self._store = None
            self.close()
            self.snapshot = self._first()

    def write(
        self,
        what: str,
        change: Callable[[WorkingCopy], None],
        note: str = "",
        *,
        idempotency_key: str = "",
        purge: bool = False,
    ) -> Step | None:
        """Change the model in one transaction; None if the change changed nothing.

        ``change`` is given a working copy of what the file holds at that moment. A step
        with the same ``idempotency_key`` is returned and not repeated. With ``purge`` the history
        keeps nothing of the removed classes.
        """
        with self._lock, translate_errors(self.path):
            db = self._writing()
            with transaction(db):
                before = self._newest(db)
                if (done := find_step(db, idempotency_key)) is not None:
                    self.snapshot = before
                    return done
                working = self._draft(before)
                change(working)
                number = write_step(db, before, working, what, note, idempotency_key)
                if number is not None and purge:
                    kept = working.classifier.state_.classes
                    gone = [o.row.label for label, o in before.rows.items() if label not in kept]
                    purge_classes(db, gone, number)
                if number is not None:
                    prune_history(db)
            if number is None:
                self.snapshot = before
                return None
            return self._after(db, before, number, working.classifier.prior_)

    def find_step(self, idempotency_key: str) -> Step | None:
        """The step that was done under a key, and not undone."""
        if not idempotency_key:
            return None
        with self._lock, translate_errors(self.path):
            if check_header(self.path)[1] < VERSION:
                return None
            with self._reading() as db:
                return find_step(db, idempotency_key)  # one row, however long the history is

    def undo(self) -> Step:
        """Take back the last step that was not taken back."""
        with self._lock, translate_errors(self.path):
            db = self._writing()
            with transaction(db):
                before = self._newest(db)
                number = undo_step(db, before)
                self._read(db, before)  # a history that is damaged must not damage the model
            return self._after(db, before, number, None)

    @property
    def steps(self) -> list[Step]:
        """What happened to the file, the last step first."""
        with self._lock, translate_errors(self.path):
            self._size, version = check_header(self.path)
            if version < VERSION:
                return []
            with self._reading() as db:
                return read_steps(db)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._store is not None:
                self._store.close()  # first, for it keeps the log open
            if self._writer is not None:
                close_writing(self._writer)
                self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _writing(self) -> sqlite3.Connection:
        self._follow()
        if self._writer is None:
            self._size, version = check_header(self.path)
            if version < VERSION:
                migrate(self.path, self._size)
            self._writer = open_for_writing(self.path, self._size)
            check_schema(self._writer)
        return self._writer

    @staticmethod
    def _draft(before: Snapshot) -> WorkingCopy:
        classifier = before.classifier.copy()
        hashes: ChainMap[Label, bytes] = ChainMap({}, RowHashes(before.rows))  # type: ignore[arg-type]
        return WorkingCopy(classifier, hashes, encoder=before.encoder)

    def _after(
        self, db: sqlite3.Connection, before: Snapshot, number: int, prior: Prior | None
    ) -> Step:
        """Read what was written, as any other program would."""
        self._size = max(self._size, check_header(self.path)[0])
        if self._store is None and self._size > EAGER_BYTES:
            self._store = LazyMatrixStore(self.path, self._size)
        value = db.execute("SELECT value FROM settings WHERE name = 'prior_'").fetchone()[0]
        priors = {} if prior is None or value == "null" else {int(value): prior}
        self.snapshot = self._read(db, before, priors)
        (step,) = read_steps(db, number)
        return step


@contextmanager
def translate_errors(path: str | os.PathLike[str], *, reading: bool = False) -> Iterator[None]:
    """Say of which file an error speaks, and what to do."""
    try:
        yield
    except ModelFileError as error:
        message = str(error)
        named = message.startswith((f"{path}: ", f"{path} was "))
        raise type(error)(message if named else f"{path}: {message}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        if isinstance(error, OSError) or any(word in str(error) for word in _PLACE):
            raise ModelFileError(
                f"{path}: {getattr(error, 'strerror', None) or error}. Check that it and its "
                "folder may be read and written, and that the disk has room."
            ) from None
        # While reading, whatever is not one of our own errors comes of what is in the file.
        if isinstance(error, FecamError) or (isinstance(error, ValueError) and not reading):
            raise
        raise ModelFileError(f"{path}: {error}. It is damaged. {RESTORE}") from None
