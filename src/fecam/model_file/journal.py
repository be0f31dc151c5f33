"""The history of a file, and undo.

It keeps earlier statistics of whole classes, never a sample.
"""

import json
import math
import sqlite3
from typing import Any

from fecam.errors import ModelFileError, UndoError
from fecam.model_file import writing
from fecam.model_file.projections import drop_projections
from fecam.model_file.schema import user_version
from fecam.model_file.snapshot import Snapshot
from fecam.model_rows import MAX_TEXT, file_error, parse_json
from fecam.results import Label, Step

PURGED = "for good"
"""Stored instead of the time of undo for a step that can never be undone."""


def read_steps(db: sqlite3.Connection, number: int | None = None) -> list[Step]:
    """Return all steps, the last one first, or the one with this number."""
    author = "coalesce(author, '')" if user_version(db) >= 5 else "''"
    query = (
        f"SELECT number, time, what, note, key, {author}, counts, undone, "
        "settings IS NOT NULL OR EXISTS(SELECT 1 FROM changes WHERE step = number) "
        "FROM steps WHERE ?1 IS NULL OR number = ?1 ORDER BY number DESC"
    )
    return [_step(values) for values in db.execute(query, (number,))]


def _step(values: tuple[Any, ...]) -> Step:
    number, time, what, note, key, author, counts, undone, kept = values
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in values[1:6]):
        raise file_error(f"step {number} of its history is not text, or too long.")
    pairs = parse_json(f"history of step {number}", counts, max_length=math.inf)
    if not isinstance(pairs, dict):
        raise file_error(f"step {number} of its history is damaged.")
    by_label: dict[Label, int] = {}
    for text, count in pairs.items():
        label = parse_json("label", text)
        if type(label) not in (bool, int, str) or type(count) is not int:
            raise file_error(f"step {number} of its history is damaged.")
        by_label[label] = count
    is_undone = undone not in (None, PURGED)
    can_undo = bool(kept) and not is_undone
    return Step(number, time, what, note, by_label, is_undone, can_undo, key, author)


def find_step(db: sqlite3.Connection, idempotency_key: str) -> Step | None:
    """Return the step that was done with a key and not undone; None if there is none."""
    query = "SELECT number FROM steps WHERE key = ? AND undone IS NULL"
    values = db.execute(query, (idempotency_key,)).fetchone() if idempotency_key else None
    return None if values is None else read_steps(db, values[0])[0]


def undo_step(db: sqlite3.Connection, before: Snapshot) -> int:
    """Undo the last step that was not undone, and return its number."""
    values = db.execute(
        "SELECT number, settings, prior FROM steps WHERE undone IS NULL ORDER BY number DESC"
    ).fetchone()
    if values is None:
        raise UndoError("there is nothing to undo: no step is left.")
    step, settings, prior_id = values
    query = "SELECT label, before, after FROM changes WHERE step = ?"
    changes = db.execute(query, (step,)).fetchall()
    if not changes and settings is None:
        raise UndoError(
            f"step {step} cannot be undone: it is older than the last {writing.UNDO_STEPS} steps, "
            "was purged, or the history was dropped."
        )
    old_settings = {}
    if settings is not None:
        old_settings = parse_json(f"settings of step {step}", settings, max_length=math.inf)
    is_right = isinstance(old_settings, dict) and old_settings.keys() <= before.settings.keys()
    if not is_right or not all(isinstance(value, str) for value in old_settings.values()):
        raise _damaged(step)
    for label, old_id, new_id in changes:
        if old_id is not None:
            query = "SELECT label FROM records WHERE id = ?"
            if db.execute(query, (old_id,)).fetchone() != (label,):
                raise _damaged(step)
        writing.set_current(db, label, old_id)
        _drop_record(db, new_id)
    db.execute("DELETE FROM changes WHERE step = ?", (step,))
    db.execute("UPDATE steps SET undone = ? WHERE number = ?", (writing.now(), step))
    has_prior = db.execute("SELECT 1 FROM priors WHERE id = ?", (prior_id,)).fetchone()
    after = {**before.settings, **old_settings}
    after["version_"] = json.dumps(before.version + 1)
    after["prior_"] = json.dumps(prior_id if has_prior else None)
    writing.write_settings(db, after, writing.current_checksums(db))
    _drop_unused(db)
    return int(step)


def _damaged(step: int) -> ModelFileError:
    return file_error(
        f"step {step} cannot be undone: its history is damaged. Nothing was changed.",
        "`fecam unlearn` removes the samples.",
    )


def prune_history(db: sqlite3.Connection, keep: int = writing.UNDO_STEPS) -> None:
    """Drop what is needed only to undo older steps."""
    old = db.execute(
        "SELECT number FROM steps WHERE undone IS NULL AND (settings IS NOT NULL OR "
        "EXISTS(SELECT 1 FROM changes WHERE step = number)) "
        "ORDER BY number DESC LIMIT -1 OFFSET ?",
        (keep,),
    ).fetchall()
    for (step,) in old:
        rows = db.execute("SELECT before FROM changes WHERE step = ?", (step,)).fetchall()
        for (record_id,) in rows:
            _drop_record(db, record_id)
        db.execute("DELETE FROM changes WHERE step = ?", (step,))
        db.execute("UPDATE steps SET settings = NULL WHERE number = ?", (step,))
    _drop_unused(db)


def purge_classes(db: sqlite3.Connection, labels: list[str], step: int) -> None:
    """Remove all traces of classes that a step has removed."""
    touched = {step}
    for label in labels:
        ids = db.execute("SELECT id FROM records WHERE label = ?", (label,)).fetchall()
        for (record_id,) in ids:
            _drop_record(db, record_id)
        steps = db.execute("SELECT step FROM changes WHERE label = ?", (label,))
        touched.update(number for (number,) in steps)
        db.execute("DELETE FROM changes WHERE label = ?", (label,))
    for number in touched:  # a step that changed no other class has nothing left to undo
        db.execute(
            "UPDATE steps SET undone = ? WHERE number = ? AND undone IS NULL AND settings IS NULL "
            "AND NOT EXISTS(SELECT 1 FROM changes WHERE step = number)",
            (PURGED, number),
        )
    for number, counts in db.execute("SELECT number, counts FROM steps").fetchall():
        left = {label: count for label, count in json.loads(counts).items() if label not in labels}
        db.execute("UPDATE steps SET counts = ? WHERE number = ?", (json.dumps(left), number))
    db.execute("UPDATE steps SET prior = NULL")  # the samples contributed to it
    _drop_unused(db)


def _drop_unused(db: sqlite3.Connection) -> None:
    """Drop priors and projections that nothing refers to."""
    drop_projections(db)
    (current,) = db.execute("SELECT value FROM settings WHERE name = 'prior_'").fetchone()
    db.execute(
        "DELETE FROM priors WHERE id IS NOT ? AND id NOT IN (SELECT prior FROM steps "
        "WHERE prior IS NOT NULL AND number IN (SELECT step FROM changes))",
        (json.loads(current),),
    )


def _drop_record(db: sqlite3.Connection, record_id: int | None) -> None:
    if record_id is not None:
        db.execute("DELETE FROM records WHERE id = ?", (record_id,))
        db.execute("DELETE FROM matrices WHERE id = ?", (record_id,))


def history_bytes(db: sqlite3.Connection) -> int:
    """Return the size of the records that are kept only to undo."""
    query = (
        "SELECT sum(coalesce(scatter_bytes, 0) + coalesce(averaged_bytes, 0) + length(raw_mean) "
        "+ length(mean) + length(marks)) FROM records WHERE id NOT IN (SELECT record FROM classes)"
    )
    return int(db.execute(query).fetchone()[0] or 0)
