"""Looking a file over: what it is made of, what is wrong with it, and making it small."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from fecam.errors import ModelFileError
from fecam.model_file.connection import (
    close_writing,
    open_for_reading,
    open_for_writing,
    transaction,
)
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.header import VERSION, check_header
from fecam.model_file.journal import history, prune_history, read_steps
from fecam.model_file.lazy_matrices import fetch
from fecam.model_file.migrations import migrate
from fecam.model_file.records import FileInfo
from fecam.model_file.snapshot import read_rows
from fecam.model_rows import check_matrices, unpack_class

MAX_PROBLEMS = 1000


def file_info(path: str | os.PathLike[str]) -> FileInfo:
    """What a file is made of; no matrix is read of a large one."""
    with ModelFile(path) as file, translate_errors(path):
        snapshot = file.snapshot
        size, version = check_header(file.path)
        free = kept = 0
        if version == VERSION:
            with closing(open_for_reading(file.path, size)) as db:
                pages, page = (
                    db.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("freelist_count", "page_size")
                )
                free, kept = pages * page, sum(length for _, length in history(db))
        settings = {name: json.loads(text) for name, text in snapshot.settings.items()}
        return FileInfo(
            version,
            size,
            free,
            kept,
            snapshot.version,
            settings,
            snapshot.encoder,
            snapshot.classes,
            file.steps,
        )


def check(path: str | os.PathLike[str]) -> list[str]:
    """Every problem of a file, in words; none if all is well. Everything in it is read."""
    problems: list[str] = []
    path = Path(path)
    try:
        with ModelFile(path) as file:
            layout = file.snapshot.layout
    except ModelFileError as error:
        return [str(error)]
    try:
        with translate_errors(path):
            size, version = check_header(path)
            if version < VERSION:
                return problems  # as a whole it was read already
            with closing(open_for_reading(path, size)) as db:
                problems += [
                    f"{path}: SQLite finds {text}."
                    for (text,) in db.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")
                    if text != "ok"
                ]
                for number, row in read_rows(db, layout):
                    try:
                        unpack_class(row, layout, None, None)
                        check_matrices(row, fetch(db, number, row), layout)
                    except ModelFileError as error:
                        problems.append(f"{path}: {error}")
                read_steps(db)
    except ModelFileError as error:
        problems.append(str(error))
    return problems


def compact(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Drop the history that is kept to undo, and give free space back: bytes before and after."""
    path = Path(path)
    with ModelFile(path), translate_errors(path):
        size, version = check_header(path)
        if version < VERSION:
            migrate(path, size)
        db = open_for_writing(path, size)
        try:
            with transaction(db):
                prune_history(db, keep=0)
            db.set_progress_handler(None, 0)
            db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            raise ModelFileError(
                f"{path} was not made smaller: {error}. Try again later."
            ) from None
        finally:
            close_writing(db)
        return size, os.path.getsize(path)
