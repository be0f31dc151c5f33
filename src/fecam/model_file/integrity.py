"""Describing, checking and compacting a file."""

import json
import os
import sqlite3
from functools import partial
from pathlib import Path

from fecam.errors import ModelFileError
from fecam.model_file.connection import transaction
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.header import check_header
from fecam.model_file.journal import history_bytes, prune_history, read_steps
from fecam.model_file.lazy_matrices import read_matrices
from fecam.model_file.records import FileInfo
from fecam.model_file.snapshot import read_rows
from fecam.model_rows import unpack_class

MAX_PROBLEMS = 1000


def file_info(path: str | os.PathLike[str]) -> FileInfo:
    """Describe a file: sizes, settings, classes and history; no matrix of a large file is read."""
    with ModelFile(path) as file:
        snapshot, free, history, priors = file.snapshot, 0, 0, 0
        with file.reading() as db:
            size, version = check_header(file.path)
            if db is not None:
                (pages,), (page_size,) = (
                    db.execute(f"PRAGMA {name}").fetchone()
                    for name in ("freelist_count", "page_size")
                )
                free, history = pages * page_size, history_bytes(db)
                query = "SELECT total(length(covariance)) FROM priors"
                priors = int(db.execute(query).fetchone()[0])
        return FileInfo(
            *(version, snapshot.version, size, free, history, priors),
            {name: json.loads(text) for name, text in snapshot.settings.items()},
            snapshot.encoder,
            snapshot.classes,
            file.steps,
            None if snapshot.projection_id is None else snapshot.layout.n_features,
        )


def check(path: str | os.PathLike[str]) -> list[str]:
    """Read a whole file and return a message per problem."""
    problems: list[str] = []
    path = Path(path)
    try:
        with ModelFile(path) as file, file.reading() as db:
            if db is None:  # opening has read all of an older file
                return problems
            problems += [
                f"{path}: SQLite finds {text}."
                for (text,) in db.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")
                if text != "ok"
            ]
            layout = file.snapshot.layout
            for record_id, row in read_rows(db, layout):
                try:
                    unpack_class(row, layout, partial(read_matrices, db, record_id, row, layout))
                except ModelFileError as error:
                    problems.append(f"{path}: {error}")
            read_steps(db)
    except ModelFileError as error:
        problems.append(str(error))
    return problems


def compact(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Drop the history and release free space; return the size before and after."""
    with ModelFile(path) as file, translate_errors(path):
        size, _ = check_header(file.path)
        db = file.writer()
        try:
            with transaction(db):
                prune_history(db, keep=0)
            db.set_progress_handler(None, 0)
            db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            raise ModelFileError(
                f"{path} was not made smaller: {error}. Try again later."
            ) from None
    return size, os.path.getsize(path)
