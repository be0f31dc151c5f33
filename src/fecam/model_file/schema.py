"""The tables of a ``.fecam`` file; docs/reference/model-file.md describes them."""

from __future__ import annotations

import sqlite3

from fecam.model_file.header import NOT_OURS
from fecam.model_rows import file_error

TABLES = {
    # Each value is JSON. A name that ends with an underscore was found, not chosen.
    "settings": "CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT)",
    # What is known now: of each label the record that holds.
    "classes": "CREATE TABLE classes(label TEXT PRIMARY KEY, record INTEGER)",
    # Records and matrices are written once and never changed; undoing points back to older ones.
    "records": "CREATE TABLE records(id INTEGER PRIMARY KEY, label TEXT, count INTEGER, "
    "visits INTEGER, task INTEGER, sampled_count INTEGER, sampled_sum REAL, "
    "sampled_squares REAL, scatter_bytes INTEGER, averaged_bytes INTEGER, taught TEXT, "
    "changed TEXT, note TEXT, matrices BLOB, checksum BLOB, raw_mean BLOB, mean BLOB, marks BLOB)",
    "matrices": "CREATE TABLE matrices(id INTEGER PRIMARY KEY, scatter BLOB, averaged BLOB)",
    # The matrix that all classes lean on, as it was when it was last brought up to date.
    "priors": "CREATE TABLE priors(id INTEGER PRIMARY KEY, strength REAL, freedom INTEGER, "
    "checksum BLOB, covariance BLOB)",
    # What happened; settings and prior are those before, if the step changed them.
    "steps": "CREATE TABLE steps(number INTEGER PRIMARY KEY, time TEXT, what TEXT, note TEXT, "
    "key TEXT, counts TEXT, undone TEXT, settings TEXT, prior INTEGER)",
    # Of each label that a step touched the record before and after it.
    "changes": "CREATE TABLE changes(step INTEGER, label TEXT, before INTEGER, after INTEGER, "
    "PRIMARY KEY(step, label)) WITHOUT ROWID",
}
INDEXED = ("settings", "classes")

_SCHEMA = {("table", name, sql) for name, sql in TABLES.items()} | {
    ("index", f"sqlite_autoindex_{name}_1", None) for name in INDEXED
}


def check_schema(db: sqlite3.Connection) -> None:
    """Refuse a file whose tables are not ours to the letter."""
    limit = len(_SCHEMA) + 1
    found = set(db.execute("SELECT type, name, sql FROM sqlite_master LIMIT ?", (limit,)))
    for kind, name, _ in found ^ _SCHEMA:
        raise file_error(
            f"its {kind} {str(name)[:80]!r} is missing, or not part of a model.", NOT_OURS
        )


def create(db: sqlite3.Connection) -> None:
    """Make all tables."""
    for sql in TABLES.values():
        db.execute(sql)
