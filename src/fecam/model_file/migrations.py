"""Files of older versions: brought up to date when they are written to, in memory when only read.

Version 1 kept raw means in double precision. Version 2 had no history: one table held each class
with its matrices.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fecam.model_file.connection import (
    close_writing,
    open_for_reading,
    open_for_writing,
    set_limits,
    transaction,
)
from fecam.model_file.header import NOT_OURS, VERSION
from fecam.model_file.schema import TABLES
from fecam.model_file.settings import ABOUT, FOUND, PARAMETERS, unpack_settings
from fecam.model_file.writing import STEP_BITS, insert, now, set_current, write_settings
from fecam.model_rows import MAX_TEXT, Layout, Row, checksum, file_error, parse_json, row_checksum

_CLASSES = (
    "CREATE TABLE classes(label TEXT PRIMARY KEY, count INTEGER, visits INTEGER, "
    "task INTEGER, sampled_count INTEGER, sampled_sum REAL, sampled_squares REAL, checksum BLOB, "
    "raw_mean BLOB, mean BLOB, scatter BLOB, averaged BLOB)"
)
_SCHEMA = {
    ("table", "settings", TABLES["settings"]),
    ("table", "classes", _CLASSES),
    ("index", "sqlite_autoindex_settings_1", None),
    ("index", "sqlite_autoindex_classes_1", None),
}


@contextmanager
def migrated_copy(path: Path, size: int) -> Iterator[sqlite3.Connection]:
    """An older file as it would be today, in memory."""
    source, copy = open_for_reading(path, size), sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.backup(copy)
        set_limits(copy, size)
        copy.execute("PRAGMA trusted_schema = OFF")
        _upgrade(copy, size)
        yield copy
    finally:
        source.close()
        copy.close()


def migrate(path: Path, size: int) -> None:
    """Bring an older file up to date, or leave it as it was."""
    db = open_for_writing(path, size)
    try:
        with transaction(db):
            if db.execute("PRAGMA user_version").fetchone()[0] < VERSION:
                _upgrade(db, size)
    finally:
        close_writing(db)


def _upgrade(db: sqlite3.Connection, size: int) -> None:
    """From version 1 or 2 to 3."""
    found = set(db.execute("SELECT type, name, sql FROM sqlite_master LIMIT 9"))
    for kind, name, _ in found ^ _SCHEMA:
        raise file_error(
            f"its {kind} {str(name)[:80]!r} is missing, or not part of a model.", NOT_OURS
        )
    settings = _settings(db)
    signed = settings.pop("checksum_")
    settings |= {"encoder_": "null", "version_": "1", "prior_": "null"}
    classifier, empty = unpack_settings(settings)
    layout = Layout(empty.scatter_kind, empty.n_features, classifier.dtype)
    old = list(_old_rows(db, layout, size))
    about = {name: settings[name] for name in (*PARAMETERS, *FOUND, "fecam_")}
    if json.dumps(_old_file_checksum(about, {row[0]: row[7] for row in old})) != signed:
        raise file_error("a setting was changed or a class was lost: the checksum does not match.")
    db.execute("DROP TABLE classes")
    for name in TABLES.keys() - {"settings"}:
        db.execute(TABLES[name])
    checksums, time = [], now()
    for position, values in enumerate(old, start=1):
        row, matrices = _new_row(values, layout, time)
        insert(db, (1 << STEP_BITS) + position, row, matrices)
        set_current(db, row.label, (1 << STEP_BITS) + position)
        checksums.append(row.checksum)
    write_settings(db, settings, checksums)
    db.execute(f"PRAGMA user_version = {VERSION}")


def _settings(db: sqlite3.Connection) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in db.execute("SELECT name, value FROM settings NOT INDEXED"):
        longest = float("inf") if name == "feature_names_in_" else MAX_TEXT
        parse_json(f"setting {str(name)[:80]!r}", value, longest=longest)
        if name in settings:
            raise file_error(f"the setting {name!r} comes twice.")
        settings[name] = value
    due = {*PARAMETERS, *FOUND, *ABOUT} - {"encoder_", "version_", "prior_"}
    for name in due ^ settings.keys():
        raise file_error(f"the setting {str(name)[:80]!r} is missing, or not known here.")
    return settings


def _old_rows(db: sqlite3.Connection, layout: Layout, size: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the old table, each as it was signed."""
    lengths = {"raw_mean": 8 * layout.width, "mean": 8 * layout.width}
    most = max(layout.scatter_bytes, layout.most_row_bytes)
    blobs = ", ".join(
        f"CASE WHEN {name} IS NULL OR (typeof({name}) = 'blob' AND length({name}) <= "
        f"{lengths.get(name, most)}) THEN {name} ELSE x'00' END"
        for name in ("checksum", "raw_mean", "mean", "scatter", "averaged")
    )
    numbers = "count, visits, task, sampled_count, sampled_sum, sampled_squares"
    total = 0
    for values in db.execute(f"SELECT label, {numbers}, {blobs} FROM classes NOT INDEXED"):
        label = values[0]
        try:
            numbers_of = struct.pack("<4q2d", *values[1:7])
            right = values[7] == _blake(str(label).encode(), numbers_of, *values[8:])
        except (struct.error, TypeError):
            right = False
        if not right or not isinstance(label, str):
            raise file_error(f"class {str(label)[:80]} is damaged: its checksum does not match.")
        total += sum(len(array) for array in values[8:] if array is not None)
        if total > size:
            raise file_error("it claims to hold more than its size allows.")
        yield values


def _new_row(
    values: tuple[Any, ...], layout: Layout, time: str
) -> tuple[Row, tuple[bytes | None, bytes | None]]:
    label, numbers, (raw_mean, mean, scatter, averaged) = values[0], values[1:7], values[8:]
    if raw_mean is not None and len(raw_mean) == 8 * layout.width:
        with np.errstate(over="ignore"):
            narrow = np.frombuffer(raw_mean, "<f8").astype(np.dtype(layout.dtype).newbyteorder("<"))
        raw_mean = narrow.tobytes()
    matrices = scatter, averaged
    unsigned = Row(
        label,
        numbers,
        tuple(None if some is None else len(some) for some in matrices),
        (time, time, ""),
        (raw_mean, mean, b""),
        checksum(*matrices),
        b"",
    )
    return unsigned._replace(checksum=row_checksum(unsigned)), matrices


def _old_file_checksum(settings: dict[str, str], rows: dict[str, bytes]) -> str:
    texts = [part for name in sorted(settings) for part in (name, settings[name])]
    checksums = [part for text in sorted(rows) for part in (text.encode(), rows[text])]
    return _blake(*(text.encode() for text in texts), *checksums).hex()


def _blake(*parts: bytes | None) -> bytes:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(struct.pack("<q", -1 if part is None else len(part)))
        found.update(part or b"")
    return found.digest()
