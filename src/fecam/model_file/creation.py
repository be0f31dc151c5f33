"""A new file, written aside and put in its place when it is whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from fecam.core.state import ClassifierState
from fecam.errors import ModelFileError
from fecam.model_file.header import APPLICATION_ID, VERSION
from fecam.model_file.priors import insert_prior
from fecam.model_file.schema import create
from fecam.model_file.snapshot import check_kind
from fecam.model_file.writing import (
    STEP_BITS,
    WorkingCopy,
    check_texts,
    insert,
    layout_of,
    now,
    pack_file_settings,
    prior_of,
    set_current,
    write_settings,
)
from fecam.model_rows import Provenance, file_error, pack_class


def create_file(
    path: Path,
    working: WorkingCopy,
    what: str = "save",
    note: str = "",
    key: str = "",
    *,
    replace: bool,
) -> None:
    """Write a file that holds a working copy; its history begins with this step."""
    check_texts(note=note, key=key)
    with _placing(path, replace=replace) as temporary:
        _write(temporary, working, what, note, key)


def _write(path: Path, working: WorkingCopy, what: str, note: str, key: str) -> None:
    classifier, known = working.classifier, working.classifier.state_
    layout, time = layout_of(classifier), now()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # Small pages waste less at the end of a row, large ones are read faster.
        db.execute(f"PRAGMA page_size = {16384 if _is_bulky(known) else 1024}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # what is dropped later can be given back
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("PRAGMA journal_mode = OFF")  # nobody sees this file before it is whole
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        create(db)
        checksums, counts = {}, {}
        for position, (name, one) in enumerate(known.classes.items(), start=1):
            label: int | str = name  # type: ignore[assignment]
            provenance = Provenance(
                working.learned.get(label, time),
                time,
                working.notes.get(label) or note,
                working.content_hashes.get(label, b""),
            )
            row, matrices = pack_class(label, one, known.tasks[label], layout, provenance)
            insert(db, (1 << STEP_BITS) + position, row, matrices)
            set_current(db, row.label, (1 << STEP_BITS) + position)
            checksums[row.label], counts[row.label] = row.checksum, row.numbers[0]
            if what != "save":  # there is nothing to go back to
                values = (1, row.label, None, (1 << STEP_BITS) + position)
                db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", values)
        check_kind([int(x) if isinstance(x, bool) else x for x in known.classes])  # type: ignore[misc]
        prior = prior_of(working)
        if prior is not None:
            insert_prior(db, 1 << STEP_BITS, prior)
        settings = pack_file_settings(working, 1, None if prior is None else 1 << STEP_BITS)
        write_settings(db, settings, checksums.values())
        step = (1, time, what, note, key, json.dumps(counts), None, None, None)
        db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", step)
        db.execute("COMMIT")


def _is_bulky(known: ClassifierState) -> bool:
    """Whether most classes take many small pages."""
    numbers = [math.prod(one.scatter.data.shape) for one in known.classes.values() if one.scatter]
    return bool(sum(numbers) > 2**15 * len(numbers))


@contextmanager
def _placing(target: Path, *, replace: bool) -> Iterator[Path]:
    """A new file beside the target, which takes its place if nothing goes wrong."""
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
        _flush(temporary, os.O_RDWR)
        if not replace and target.exists():  # and its log is not ours to take away
            raise _made_meanwhile()
        # What a file that was here before has left would be taken for that of the new one.
        for ending in ("-journal", "-wal", "-shm"):
            target.with_name(target.name + ending).unlink(missing_ok=True)
        _place(temporary, target, replace)
        with suppress(OSError):  # not every system lets a folder be opened
            _flush(target.parent, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)


def _place(temporary: Path, target: Path, replace: bool) -> None:
    if not replace:
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise _made_meanwhile() from None
        except OSError:  # not every system knows links
            replace = True
    if replace:
        os.replace(temporary, target)


def _made_meanwhile() -> ModelFileError:
    return file_error("another program has just made it.", "Try again: it is then added to.")


def _flush(path: Path, flags: int) -> None:
    """Wait until a file, or the list of what a folder holds, is on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
