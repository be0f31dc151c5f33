"""Consistent copies of a model file that is being written."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from fecam.model_file.connection import open_for_reading
from fecam.model_file.file import translate_errors
from fecam.model_file.header import check_header


def backup_copy(model: Path) -> Path:
    """Return the path of a consistent copy; the caller removes it."""
    handle, name = tempfile.mkstemp(prefix="fecam-copy-", suffix=".fecam")
    os.close(handle)
    copy = Path(name)
    try:
        with translate_errors(model):
            size, _ = check_header(model)
            with (
                closing(open_for_reading(model, size)) as source,
                closing(sqlite3.connect(copy, isolation_level=None)) as target,
            ):
                source.set_progress_handler(None, 0)
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, no WAL
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def restore_into(copy: Path, model: Path) -> None:
    """Replace the content of a model file in one transaction; readers reload changed classes."""
    if model.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as source:
            with closing(sqlite3.connect(model, isolation_level=None)) as target:
                # The copy need not survive a crash: it is fetched again.
                target.execute("PRAGMA journal_mode = MEMORY")
                target.execute("PRAGMA synchronous = OFF")
                source.backup(target, sleep=0.005)
            return
    new = model.with_suffix(".new")
    shutil.copyfile(copy, new)
    os.replace(new, model)
