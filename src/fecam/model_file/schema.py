"""The tables of a ``.fecam`` file; docs/reference/model-file.md describes them."""

import sqlite3
from collections.abc import Mapping

from fecam.model_file.header import NOT_OURS, VERSION
from fecam.model_rows import file_error

TABLES = {
    # Each value is JSON. Names of values that are not parameters end with an underscore.
    "settings": "CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT)",
    # The current record of each label.
    "classes": "CREATE TABLE classes(label TEXT PRIMARY KEY, record INTEGER)",
    # Records and matrices are written once and never changed; undo points back to older ones.
    "records": "CREATE TABLE records(id INTEGER PRIMARY KEY, label TEXT, count INTEGER, "
    "visits INTEGER, task INTEGER, sampled_count INTEGER, sampled_sum REAL, "
    "sampled_squares REAL, scatter_bytes INTEGER, averaged_bytes INTEGER, taught TEXT, "
    "changed TEXT, note TEXT, matrices BLOB, checksum BLOB, raw_mean BLOB, mean BLOB, marks BLOB, "
    "calibration BLOB)",
    "matrices": "CREATE TABLE matrices(id INTEGER PRIMARY KEY, scatter BLOB, averaged BLOB)",
    # The pooled covariance, as of its last update.
    "priors": "CREATE TABLE priors(id INTEGER PRIMARY KEY, strength REAL, freedom INTEGER, "
    "checksum BLOB, covariance BLOB)",
    # The matrix of a compressed model, in the dtype of its matrices.
    "projections": "CREATE TABLE projections(id INTEGER PRIMARY KEY, components INTEGER, "
    "checksum BLOB, matrix BLOB)",
    # The history; settings and prior are those before the step, if it changed them.
    "steps": "CREATE TABLE steps(number INTEGER PRIMARY KEY, time TEXT, what TEXT, note TEXT, "
    "key TEXT, counts TEXT, undone TEXT, settings TEXT, prior INTEGER, author TEXT)",
    # Per step and label the record before and after it.
    "changes": "CREATE TABLE changes(step INTEGER, label TEXT, before INTEGER, after INTEGER, "
    "PRIMARY KEY(step, label)) WITHOUT ROWID",
}

_TABLES_4 = {**TABLES, "steps": TABLES["steps"].replace(", author TEXT", "")}
_TABLES_3 = {
    name: sql.replace(", calibration BLOB", "")
    for name, sql in _TABLES_4.items()
    if name != "projections"
}
_TABLES_OF = {3: _TABLES_3, 4: _TABLES_4, VERSION: TABLES}
"""The tables by version of the format, for the versions that are read in place."""


def user_version(db: sqlite3.Connection) -> int:
    """Return the version of the format of an open file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def check_schema(db: sqlite3.Connection, tables: Mapping[str, str] | None = None) -> None:
    """Reject a file whose tables differ in any letter from these, or from those of its version."""
    if tables is None:
        tables = _TABLES_OF[user_version(db)]
    expected = {("table", name, sql) for name, sql in tables.items()} | {
        ("index", f"sqlite_autoindex_{name}_1", None) for name in ("settings", "classes")
    }
    limit = len(expected) + 1
    actual = set(db.execute("SELECT type, name, sql FROM sqlite_master LIMIT ?", (limit,)))
    for kind, name, _ in actual ^ expected:
        raise file_error(
            f"its {kind} {str(name)[:80]!r} is missing, or not part of a model.", NOT_OURS
        )
