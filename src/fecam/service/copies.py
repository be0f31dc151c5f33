"""A copy of the model's file, whole though it is written to meanwhile."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

from fecam.model_file.connection import open_for_reading
from fecam.model_file.file import explained
from fecam.model_file.header import check_header


def copy_of(model: Path) -> Path:
    """A consistent copy, which whoever asked for it removes."""
    handle, name = tempfile.mkstemp(prefix="fecam-copy-", suffix=".fecam")
    os.close(handle)
    copy = Path(name)
    try:
        with explained(model):
            size, _ = check_header(model)
            source = open_for_reading(model, size)
            try:
                target = sqlite3.connect(copy, isolation_level=None)
                try:
                    source.set_progress_handler(None, 0)
                    source.backup(target)
                    target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
                finally:
                    target.close()
            finally:
                source.close()
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy
