"""Creating a file: written beside its path, and moved there when it is complete."""

import math
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from fecam.core.state import ClassifierState
from fecam.files import sync
from fecam.model_file.header import APPLICATION_ID, VERSION
from fecam.model_file.schema import TABLES
from fecam.model_file.writing import WorkingCopy, write_step
from fecam.model_rows import file_error


def create_file(
    path: Path,
    working: WorkingCopy,
    what: str = "save",
    note: str = "",
    key: str = "",
    author: str = "",
    *,
    replace: bool,
) -> None:
    """Write a working copy to a new file, as the first step of its history."""
    with (
        atomic_file(path, replace=replace) as temporary,
        closing(sqlite3.connect(temporary, isolation_level=None)) as db,
    ):
        # Small pages waste less at the end of a row, large ones are read faster.
        page_size = 16384 if _has_large_matrices(working.classifier.state_) else 1024
        db.execute(f"PRAGMA page_size = {page_size}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # free pages can be released later
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("PRAGMA journal_mode = OFF")  # the file is not visible until complete
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for sql in TABLES.values():
            db.execute(sql)
        write_step(db, None, working, what, note, key, author)
        db.execute("COMMIT")


def _has_large_matrices(state: ClassifierState) -> bool:
    """Return whether the scatters have more than 2**15 numbers on average."""
    sizes = [math.prod(c.scatter.data.shape) for c in state.classes.values() if c.scatter]
    return bool(sum(sizes) > 2**15 * len(sizes))


@contextmanager
def atomic_file(target: Path, *, replace: bool) -> Iterator[Path]:
    """Yield the path of a new file that is moved to the target if no error is raised."""
    if target.exists() and not target.is_file():
        raise file_error(
            "it is a folder or something else that is not a file.", "Give another path."
        )
    temporary = target.with_name(f".fecam-{token_hex(8)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if target.exists():
            shutil.copymode(target, temporary)
        yield temporary
        sync(temporary, os.O_RDWR)
        if not replace and target.exists():  # keep the log of a file that exists
            raise FileExistsError
        # SQLite would apply what is left of an earlier file at this path to the new one.
        for ending in ("-journal", "-wal", "-shm"):
            target.with_name(target.name + ending).unlink(missing_ok=True)
        _move(temporary, target, replace)
        with suppress(OSError):  # some systems cannot open a folder
            sync(target.parent)
    except FileExistsError:
        raise file_error(
            "another program has just created it.", "Try again to add to it."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _move(temporary: Path, target: Path, replace: bool) -> None:
    if not replace:
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise
        except OSError:  # some file systems have no hard links
            replace = True
    if replace:
        os.replace(temporary, target)
