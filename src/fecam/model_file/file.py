"""`ModelFile`: an open ``.fecam`` file, which is read as snapshots and changed in steps."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from fecam.core.prior import Prior
from fecam.errors import FecamError, ModelFileError
from fecam.model_file import journal
from fecam.model_file.connection import (
    close_writer,
    open_for_reading,
    open_for_writing,
    set_limits,
    transaction,
)
from fecam.model_file.descriptors import file_id
from fecam.model_file.header import OLDEST_READ_IN_PLACE, VERSION, check_header
from fecam.model_file.lazy_matrices import LazyMatrixStore
from fecam.model_file.migrations import migrate, migrated_copy
from fecam.model_file.schema import check_schema
from fecam.model_file.snapshot import Snapshot, read_snapshot, row_hashes
from fecam.model_file.writing import WorkingCopy, write_step
from fecam.model_rows import RESTORE
from fecam.results import Step

EAGER_BYTES = 32 * 2**20
"""A file up to this size is read at once; the matrices of a larger one when they are needed."""
_ENVIRONMENT_ERRORS = ("readonly", "disk is full", "disk I/O", "unable to open")
"""Messages of SQLite on problems of the disk or the folder, not of the file."""


class ModelFile:
    """An open file. Any number of programs may read it while one writes.

    ``snapshot`` is its contents when it was opened, last changed by this object, or reloaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._store: LazyMatrixStore | None = None
        with translate_errors(self.path, reading=True):
            self.snapshot = self._open()

    def _open(self) -> Snapshot:
        self._file_id = file_id(self.path)
        self._size, version = check_header(self.path)
        if version >= OLDEST_READ_IN_PLACE and self._size > EAGER_BYTES:
            self._store = LazyMatrixStore(self.path, self._size)
        with self.reading() as db:
            if db is not None:
                return self._read(db)
        with migrated_copy(self.path, self._size) as db:
            return read_snapshot(db, self._size, None)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield an open or a temporary connection; None for a file that cannot be read in place."""
        with self._lock, translate_errors(self.path):
            self._size, version = check_header(self.path)
            if version < OLDEST_READ_IN_PLACE:
                yield None
            elif db := self._writer or (self._store and self._store.db):
                yield db
            else:
                with closing(open_for_reading(self.path, self._size)) as db:
                    yield db

    def _read(
        self, db: sqlite3.Connection, before: Snapshot | None = None, new_prior: Prior | None = None
    ) -> Snapshot:
        """Return one consistent snapshot, even while another program writes."""
        nested = db.in_transaction
        if not nested:
            db.execute("BEGIN")
        try:
            check_schema(db)
            # The file may have grown since it was opened.
            self._size = max(self._size, check_header(self.path)[0])
            set_limits(db, self._size)
            return read_snapshot(db, self._size, self._store, before, new_prior)
        finally:
            if not nested:
                db.execute("COMMIT")

    def reload(self) -> bool:
        """Read changes of other programs; return whether there were any."""
        with self._lock, translate_errors(self.path):
            before = self.snapshot
            self._follow()
            with self.reading() as db:
                if db is not None:
                    self.snapshot = self._newest(db)
            return self.snapshot is not before

    def _newest(self, db: sqlite3.Connection) -> Snapshot:
        value = db.execute("SELECT value FROM settings WHERE name = 'checksum_'").fetchone()
        if value is not None and value[0] == self.snapshot.checksum:
            return self.snapshot
        try:
            return self._read(db, self.snapshot)
        except ModelFileError:
            # Another file was copied over this one, and its records may have the same ids.
            if self._store is not None:
                self._store = LazyMatrixStore(self.path, self._size)
            return self._read(db)

    def _follow(self) -> None:
        """Open the file again if another was moved to its path; old snapshots can still be read."""
        if file_id(self.path) != self._file_id:
            self._store = None
            self.close()
            self.snapshot = self._open()

    def write(
        self,
        what: str,
        change: Callable[[WorkingCopy], None],
        note: str = "",
        *,
        idempotency_key: str = "",
        author: str = "",
        purge: bool = False,
    ) -> Step | None:
        """Change the model in one transaction and return the step; None if nothing changed.

        ``change`` edits a working copy of the file's current contents. A step that was done before
        with the same ``idempotency_key`` is returned and not repeated. With ``purge`` the history
        keeps nothing of the removed classes.
        """
        with self._lock, translate_errors(self.path):
            db = self.writer()
            with transaction(db):
                before = self._newest(db)
                if (done := journal.find_step(db, idempotency_key)) is not None:
                    self.snapshot = before
                    return done
                hashes = row_hashes(before.rows)
                working = WorkingCopy(
                    before.classifier.copy(), hashes, encoder=before.encoder, rows=before.rows
                )
                change(working)
                number = write_step(db, before, working, what, note, idempotency_key, author)
                if number is not None and purge:
                    left = working.classifier.state_.classes
                    gone = [r.row.label for label, r in before.rows.items() if label not in left]
                    journal.purge_classes(db, gone, number)
                if number is not None:
                    journal.prune_history(db)
            if number is None:
                self.snapshot = before
                return None
            return self._after(db, before, number, working.classifier.prior_)

    def find_step(self, idempotency_key: str) -> Step | None:
        """Return the step that was done with a key and not undone; None if there is none."""
        if not idempotency_key:
            return None
        with self.reading() as db:
            return None if db is None else journal.find_step(db, idempotency_key)

    def undo(self) -> Step:
        """Undo the last step that was not undone, and return it."""
        with self._lock, translate_errors(self.path):
            db = self.writer()
            with transaction(db):
                before = self._newest(db)
                number = journal.undo_step(db, before)
                self._read(db, before)  # a damaged history must not damage the model
            return self._after(db, before, number)

    @property
    def steps(self) -> list[Step]:
        """The history of the file, the last step first."""
        with self.reading() as db:
            return [] if db is None else journal.read_steps(db)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._store is not None:
                self._store.close()  # first, because it keeps the log open
            if self._writer is not None:
                close_writer(self._writer)
                self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def writer(self) -> sqlite3.Connection:
        """Return the connection to write with; a file of an older version is upgraded."""
        self._follow()
        if self._writer is None:
            self._size, version = check_header(self.path)
            if version < VERSION:
                migrate(self.path, self._size)
            self._writer = open_for_writing(self.path, self._size)
            check_schema(self._writer)
        return self._writer

    def _after(
        self, db: sqlite3.Connection, before: Snapshot, number: int, new_prior: Prior | None = None
    ) -> Step:
        """Read the file after a step, as any other program would."""
        self._size = max(self._size, check_header(self.path)[0])
        if self._store is None and self._size > EAGER_BYTES:
            self._store = LazyMatrixStore(self.path, self._size)
        self.snapshot = self._read(db, before, new_prior)
        (step,) = journal.read_steps(db, number)
        return step


@contextmanager
def translate_errors(path: str | os.PathLike[str], *, reading: bool = False) -> Iterator[None]:
    """Raise errors as `ModelFileError` that names the file and a remedy."""
    try:
        yield
    except ModelFileError as error:
        message = str(error)
        is_named = message.startswith((f"{path}: ", f"{path} was "))
        raise type(error)(message if is_named else f"{path}: {message}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        if isinstance(error, OSError) or any(text in str(error) for text in _ENVIRONMENT_ERRORS):
            raise ModelFileError(
                f"{path}: {getattr(error, 'strerror', None) or error}. Check that it and its "
                "folder may be read and written, and that the disk has room."
            ) from None
        # While reading, any other error comes from the content of the file.
        if isinstance(error, FecamError) or (isinstance(error, ValueError) and not reading):
            raise
        raise ModelFileError(f"{path}: {error}. It is damaged. {RESTORE}") from None
