"""Consistent copies of a model file that is being written."""

import os
import sqlite3
import tempfile
from contextlib import closing
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
