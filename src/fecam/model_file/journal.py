"""What happened to a file, and taking it back.

The journal keeps statistics of whole classes as they were before, never a sample.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from fecam.errors import ModelFileError, UndoError
from fecam.model_file.snapshot import Snapshot
from fecam.model_file.writing import UNDO_STEPS, now, set_current, write_settings
from fecam.model_rows import MAX_TEXT, file_error, parse_json
from fecam.results import Label, Step

FOR_GOOD = "for good"
"""In the place of the time when a step was undone: it never will be."""


def read_steps(db: sqlite3.Connection, number: int | None = None) -> list[Step]:
    """All steps, the last one first; or one."""
    query = (
        "SELECT number, time, what, note, key, counts, undone, "
        "settings IS NOT NULL OR EXISTS(SELECT 1 FROM changes WHERE step = number) "
        "FROM steps WHERE ?1 IS NULL OR number = ?1 ORDER BY number DESC"
    )
    return [_step(values) for values in db.execute(query, (number,))]


def _step(values: tuple[Any, ...]) -> Step:
    number, time, what, note, key, counts, undone, kept = values
    texts = [time, what, note, key]
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
        raise file_error(f"step {number} of its history is not text, or too long.")
    found = parse_json(f"history of step {number}", counts, longest=float("inf"))
    if not isinstance(found, dict):
        raise file_error(f"step {number} of its history is damaged.")
    by_label: dict[Label, int] = {}
    for text, count in found.items():
        label = parse_json("label", text)
        if type(label) not in (int, str) or type(count) is not int:
            raise file_error(f"step {number} of its history is damaged.")
        by_label[label] = count
    is_undone = undone not in (None, FOR_GOOD)
    can_undo = bool(kept) and not is_undone
    return Step(number, time, what, note, by_label, is_undone, can_undo, key)


def find_step(db: sqlite3.Connection, key: str) -> Step | None:
    """The step that was done under a key, and not undone."""
    query = "SELECT number FROM steps WHERE key = ? AND undone IS NULL"
    found = db.execute(query, (key,)).fetchone() if key else None
    return None if found is None else read_steps(db, found[0])[0]


def undo_step(db: sqlite3.Connection, before: Snapshot) -> int:
    """Undo the last step that was not undone; its number."""
    found = db.execute(
        "SELECT number, settings, prior FROM steps WHERE undone IS NULL ORDER BY number DESC"
    ).fetchone()
    if found is None:
        raise UndoError("there is nothing to undo: no step is left.")
    step, settings, prior = found
    changes = db.execute("SELECT label, before, after FROM changes WHERE step = ?", (step,))
    changed = changes.fetchall()
    if not changed and settings is None:
        raise UndoError(
            f"step {step} cannot be undone: it is older than the last {UNDO_STEPS} steps, was "
            "done for good, or the history was dropped."
        )
    again = {} if settings is None else parse_json(f"settings of step {step}", settings)
    is_right = isinstance(again, dict) and again.keys() <= before.settings.keys()
    if not is_right or not all(isinstance(value, str) for value in again.values()):
        raise _damaged(step)
    for text, old, new in changed:
        if old is not None:
            found = db.execute("SELECT label FROM records WHERE id = ?", (old,)).fetchone()
            if found != (text,):
                raise _damaged(step)
        set_current(db, text, old)
        _drop_record(db, new)
    db.execute("DELETE FROM changes WHERE step = ?", (step,))
    db.execute("UPDATE steps SET undone = ? WHERE number = ?", (now(), step))
    known = db.execute("SELECT 1 FROM priors WHERE id = ?", (prior,)).fetchone()
    after = {**before.settings, **again}
    after["version_"] = json.dumps(before.version + 1)
    after["prior_"] = json.dumps(prior if known else None)
    rows = db.execute(
        "SELECT records.checksum FROM classes JOIN records ON records.id = classes.record"
    )
    write_settings(db, after, [checksum for (checksum,) in rows.fetchall()])
    drop_priors(db)
    return int(step)


def _damaged(step: int) -> ModelFileError:
    return file_error(
        f"step {step} cannot be undone: its history is damaged. Nothing was changed.",
        "`fecam unlearn` takes the samples out again.",
    )


def prune_history(db: sqlite3.Connection, keep: int = UNDO_STEPS) -> None:
    """Drop what is needed only to undo older steps."""
    old = db.execute(
        "SELECT number FROM steps WHERE undone IS NULL AND (settings IS NOT NULL OR "
        "EXISTS(SELECT 1 FROM changes WHERE step = number)) "
        "ORDER BY number DESC LIMIT -1 OFFSET ?",
        (keep,),
    ).fetchall()
    for (step,) in old:
        rows = db.execute("SELECT before FROM changes WHERE step = ?", (step,)).fetchall()
        for (number,) in rows:
            _drop_record(db, number)
        db.execute("DELETE FROM changes WHERE step = ?", (step,))
        db.execute("UPDATE steps SET settings = NULL WHERE number = ?", (step,))
    drop_priors(db)


def purge_classes(db: sqlite3.Connection, texts: list[str], step: int) -> None:
    """Leave no trace of some classes that are not known any more since a step."""
    touched = {step}
    for text in texts:
        for (number,) in db.execute("SELECT id FROM records WHERE label = ?", (text,)).fetchall():
            _drop_record(db, number)
        steps = db.execute("SELECT step FROM changes WHERE label = ?", (text,))
        touched.update(number for (number,) in steps)
        db.execute("DELETE FROM changes WHERE label = ?", (text,))
    for number in touched:  # a step that touched no other class has nothing left to undo
        db.execute(
            "UPDATE steps SET undone = ? WHERE number = ? AND undone IS NULL AND settings IS NULL "
            "AND NOT EXISTS(SELECT 1 FROM changes WHERE step = number)",
            (FOR_GOOD, number),
        )
    for number, counts in db.execute("SELECT number, counts FROM steps").fetchall():
        left = {text: count for text, count in json.loads(counts).items() if text not in texts}
        db.execute("UPDATE steps SET counts = ? WHERE number = ?", (json.dumps(left), number))
    db.execute("UPDATE steps SET prior = NULL")  # their samples were in it
    drop_priors(db)


def drop_priors(db: sqlite3.Connection) -> None:
    """Drop priors that nothing points at."""
    (current,) = db.execute("SELECT value FROM settings WHERE name = 'prior_'").fetchone()
    db.execute(
        "DELETE FROM priors WHERE id IS NOT ? AND id NOT IN (SELECT prior FROM steps "
        "WHERE prior IS NOT NULL AND number IN (SELECT step FROM changes))",
        (json.loads(current),),
    )


def _drop_record(db: sqlite3.Connection, number: int | None) -> None:
    if number is not None:
        db.execute("DELETE FROM records WHERE id = ?", (number,))
        db.execute("DELETE FROM matrices WHERE id = ?", (number,))


def history(db: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """The number and the size of each record that is kept only to undo."""
    yield from db.execute(
        "SELECT id, coalesce(scatter_bytes, 0) + coalesce(averaged_bytes, 0) + length(raw_mean) "
        "+ length(mean) + length(marks) FROM records WHERE id NOT IN (SELECT record FROM classes)"
    )
