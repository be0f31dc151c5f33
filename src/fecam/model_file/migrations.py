"""Files of older versions: upgraded when they are written to, in memory when they are only read.

Version 1 has raw means in float64. Version 2 has no history: one table with each class and its
matrices. Version 3 lacks a column, a table and a setting,
version 4 the column of authors; both are read in place.
"""

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fecam.model_file import connection, writing
from fecam.model_file.header import OLDEST_READ_IN_PLACE, VERSION
from fecam.model_file.schema import TABLES, check_schema, user_version
from fecam.model_file.settings import (
    ABOUT,
    FITTED,
    NEW_IN_4,
    PARAMETERS,
    read_settings,
    setting_names,
    unpack_settings,
)
from fecam.model_rows import Layout, Matrices, Provenance, Row, checksum, file_error, signed_row

_OLD_TABLES = {
    "settings": TABLES["settings"],
    "classes": "CREATE TABLE classes(label TEXT PRIMARY KEY, count INTEGER, visits INTEGER, "
    "task INTEGER, sampled_count INTEGER, sampled_sum REAL, sampled_squares REAL, checksum BLOB, "
    "raw_mean BLOB, mean BLOB, scatter BLOB, averaged BLOB)",
}
_NEW_SETTINGS = {"encoder_": "null", "version_": "1", "prior_": "null", **NEW_IN_4}
_old_checksum = partial(checksum, algorithm=partial(blake2b, digest_size=16))


@contextmanager
def migrated_copy(path: Path, size: int) -> Iterator[sqlite3.Connection]:
    """Yield an upgraded copy of an older file, in memory."""
    source = connection.open_for_reading(path, size)
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.backup(copy)
        connection.set_limits(copy, size)
        copy.execute("PRAGMA trusted_schema = OFF")
        _upgrade(copy, size)
        yield copy
    finally:
        source.close()
        copy.close()


def migrate(path: Path, size: int) -> None:
    """Upgrade an older file, in one transaction."""
    db = connection.open_for_writing(path, size)
    try:
        with connection.transaction(db):
            version = user_version(db)
            if version < OLDEST_READ_IN_PLACE:
                _upgrade(db, size)
            elif version < VERSION:
                check_schema(db)
                if version == 3:
                    _upgrade_3(db)
                db.execute("ALTER TABLE steps ADD COLUMN author TEXT")
                db.execute(f"PRAGMA user_version = {VERSION}")
    finally:
        connection.close_writer(db)


def _upgrade_3(db: sqlite3.Connection) -> None:
    """Upgrade from version 3 to 4."""
    db.execute("ALTER TABLE records ADD COLUMN calibration BLOB")
    db.execute(TABLES["projections"])
    settings = read_settings(db, setting_names(3)) | NEW_IN_4
    del settings["checksum_"]
    writing.write_settings(db, settings, writing.current_checksums(db))


def _upgrade(db: sqlite3.Connection, size: int) -> None:
    """Upgrade from version 1 or 2."""
    check_schema(db, _OLD_TABLES)
    settings = read_settings(db, {*PARAMETERS, *FITTED, *ABOUT} - _NEW_SETTINGS.keys())
    signed = settings.pop("checksum_")
    texts = [part.encode() for name in sorted(settings) for part in (name, settings[name])]
    settings |= _NEW_SETTINGS
    classifier, empty = unpack_settings(settings)
    layout = Layout.of(empty, classifier.dtype)
    old_rows = sorted(_old_rows(db, layout, size), key=lambda values: str(values[0]))
    parts = [part for values in old_rows for part in (values[0].encode(), values[7])]
    if json.dumps(_old_checksum(*texts, *parts).hex()) != signed:
        raise file_error("a setting was changed or a class was lost: the checksum does not match.")
    db.execute("DROP TABLE classes")
    for name in TABLES.keys() - {"settings"}:
        db.execute(TABLES[name])
    checksums, time = [], writing.now()
    for record_id, values in enumerate(old_rows, start=(1 << writing.STEP_BITS) + 1):
        row, matrices = _new_row(values, layout, time)
        writing.insert(db, record_id, row, matrices)
        writing.set_current(db, row.label, record_id)
        checksums.append(row.checksum)
    writing.write_settings(db, settings, checksums)
    db.execute(f"PRAGMA user_version = {VERSION}")


def _old_rows(db: sqlite3.Connection, layout: Layout, size: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the old table, with their checksums verified."""
    lengths = {"raw_mean": 8 * layout.n_features, "mean": 8 * layout.n_features}
    longest = max(layout.scatter_bytes, layout.max_low_rank_bytes)
    blobs = ", ".join(
        f"CASE WHEN {name} IS NULL OR (typeof({name}) = 'blob' AND length({name}) <= "
        f"{lengths.get(name, longest)}) THEN {name} ELSE x'00' END"
        for name in ("checksum", "raw_mean", "mean", "scatter", "averaged")
    )
    numbers = "count, visits, task, sampled_count, sampled_sum, sampled_squares"
    total = 0
    for values in db.execute(f"SELECT label, {numbers}, {blobs} FROM classes NOT INDEXED"):
        label = values[0]
        try:
            packed = struct.pack("<4q2d", *values[1:7])
            is_right = values[7] == _old_checksum(str(label).encode(), packed, *values[8:])
        except (struct.error, TypeError):
            is_right = False
        if not is_right or not isinstance(label, str):
            raise file_error(f"class {str(label)[:80]} is damaged: its checksum does not match.")
        total += sum(len(array) for array in values[8:] if array is not None)
        if total > size:
            raise file_error("it claims to hold more than its size allows.")
        yield values


def _new_row(values: tuple[Any, ...], layout: Layout, time: str) -> tuple[Row, Matrices]:
    label, numbers, (raw_mean, mean, *matrices) = values[0], values[1:7], values[8:]
    if raw_mean is not None and len(raw_mean) == 8 * layout.n_features:
        with np.errstate(over="ignore"):
            narrow = np.frombuffer(raw_mean, "<f8").astype(np.dtype(layout.dtype).newbyteorder("<"))
        raw_mean = narrow.tobytes()
    scatter, averaged = matrices
    provenance = Provenance(time, time, "", b"")
    row = signed_row(label, numbers, provenance, (raw_mean, mean), (scatter, averaged), None)
    return row, (scatter, averaged)
