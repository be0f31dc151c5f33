"""One change of a model, written down: new records, what was before, and nothing else.

Records are never changed, only added; what was known before a step is a list of numbers of older
records. So a step writes the classes that it touched, and undoing one writes next to nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fecam.classifier import FeCAMClassifier
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.errors import InputError
from fecam.model_file.priors import insert_prior
from fecam.model_file.records import EncoderRecord
from fecam.model_file.settings import pack_settings
from fecam.model_file.snapshot import COLUMNS, ClassRow, Snapshot, check_kind
from fecam.model_rows import MAX_TEXT, Layout, Matrices, Provenance, Row, file_checksum
from fecam.model_rows import pack_class as packed
from fecam.results import Label

UNDO_STEPS = 20
"""So many steps can be taken back; what only older ones need is dropped."""
STEP_BITS = 24
"""Numbers of records grow with the version and are never given twice: a program that still reads an
older state must not find another record under a number."""


@dataclass
class WorkingCopy:
    """What is to be written: a classifier that was changed, and what is known of its classes."""

    classifier: FeCAMClassifier
    content_hashes: MutableMapping[Label, bytes] = field(default_factory=dict)
    """Of classes whose samples changed, those of all their samples now."""
    notes: dict[Label, str] = field(default_factory=dict)
    learned: dict[Label, str] = field(default_factory=dict)
    encoder: EncoderRecord | None = None
    needs_prior: bool = False
    """Make one now, so that whoever opens the file need not read all matrices for it."""


def now() -> str:
    """The time, as all times in a file are written."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_texts(**texts: str) -> None:
    """Refuse what could not be read back."""
    for name, text in texts.items():
        if not isinstance(text, str) or not _is_unicode(text):
            raise InputError(f"the {name} {text!r} is not text. Write it in UTF-8.")
        if len(text) > MAX_TEXT:
            raise InputError(f"the {name} has {len(text)} characters. Keep it below {MAX_TEXT}.")


def _is_unicode(text: str) -> bool:
    """Whether it is text: bytes that were none come as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def pack_file_settings(working: WorkingCopy, version: int, prior: int | None) -> dict[str, str]:
    """All settings but the checksum."""
    encoder = None if working.encoder is None else vars(working.encoder)
    about = {"encoder_": encoder, "version_": version, "prior_": prior}
    known = working.classifier.state_
    return pack_settings(working.classifier, known) | {
        name: json.dumps(value) for name, value in about.items()
    }


def prior_of(working: WorkingCopy) -> Prior | None:
    """The prior that a classifier leans on now; None if it is to be made when needed."""
    classifier = working.classifier
    if not classifier.state_.classes:
        return None
    if working.needs_prior:
        return classifier.current_prior()
    return classifier.prior_


def layout_of(classifier: FeCAMClassifier) -> Layout:
    """What is kept of each class."""
    known = classifier.state_
    return Layout(known.scatter_kind, known.n_features, classifier.dtype)


def insert(db: sqlite3.Connection, number: int, row: Row, matrices: Matrices) -> None:
    """Write a record and its matrices."""
    values = (*_cells(row),)
    marks = ", ".join("?" * (1 + len(COLUMNS)))
    db.execute(f"INSERT INTO records VALUES ({marks})", (number, *values))
    db.execute("INSERT INTO matrices VALUES (?, ?, ?)", (number, *matrices))


def _cells(row: Row) -> Iterable[object]:
    return (
        *(row.label, *row.numbers, *row.lengths, *row.texts),
        *(row.matrices, row.checksum, *row.arrays),
    )


def write_settings(
    db: sqlite3.Connection, settings: Mapping[str, str], rows: Iterable[bytes]
) -> None:
    """Write all settings, signed together with the classes."""
    signed = {**settings, "checksum_": json.dumps(file_checksum(settings, rows))}
    db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", signed.items())


def write_step(
    db: sqlite3.Connection,
    before: Snapshot,
    working: WorkingCopy,
    what: str,
    note: str,
    key: str = "",
) -> int | None:
    """Write what a working copy changed, as one step; None if that is nothing."""
    check_texts(note=note, key=key)
    time, version = now(), before.version + 1
    layout, known = layout_of(working.classifier), working.classifier.state_
    check_kind([int(x) if isinstance(x, bool) else x for x in known.classes])  # type: ignore[misc]
    changes: dict[str, tuple[int | None, int | None]] = {}
    counts: dict[str, int] = {}
    checksums = {one.row.label: one.row.checksum for one in before.rows.values()}
    for label, old in before.rows.items():
        if label not in known.classes:
            changes[old.row.label] = old.number, None
            counts[old.row.label] = -old.row.numbers[0]
            del checksums[old.row.label]
    for row, matrices, was in _changed(before, working, layout, known, time, note):
        number = (version << STEP_BITS) + len(changes) + 1
        insert(db, number, row, matrices)
        changes[row.label] = None if was is None else was.number, number
        counts[row.label] = row.numbers[0] - (0 if was is None else was.row.numbers[0])
        checksums[row.label] = row.checksum
    prior = prior_of(working)
    place = _prior_id(before, prior, version)
    settings = pack_file_settings(working, version, place)
    apart = {name for name in settings if settings[name] != before.settings[name]}
    chosen = apart - {"version_", "prior_", "fecam_"}
    if not changes and not chosen:
        return None
    if prior is not None and place == version << STEP_BITS:
        insert_prior(db, place, prior)
    old_settings = {name: before.settings[name] for name in chosen}
    step = _next_step(db)
    db.execute(
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?)",
        (
            *(step, time, what, note, key, json.dumps(counts)),
            json.dumps(old_settings) if chosen else None,
            None if before.prior is None else before.prior[0],
        ),
    )
    for text, (old_number, new_number) in changes.items():
        db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (step, text, old_number, new_number))
        set_current(db, text, new_number)
    write_settings(db, settings, checksums.values())
    return step


def set_current(db: sqlite3.Connection, text: str, number: int | None) -> None:
    """Let a label have that record, or none."""
    if number is None:
        db.execute("DELETE FROM classes WHERE label = ?", (text,))
    else:
        db.execute("INSERT OR REPLACE INTO classes VALUES (?, ?)", (text, number))


def _changed(
    before: Snapshot,
    working: WorkingCopy,
    layout: Layout,
    known: ClassifierState,
    time: str,
    note: str,
) -> Iterable[tuple[Row, Matrices, ClassRow | None]]:
    """The rows of all classes that are not as they were."""
    same = layout == before.layout
    for key, one in known.classes.items():
        label: Label = key  # type: ignore[assignment]
        was = before.rows.get(label)
        if same and was is not None and was.statistics is one and was.task == known.tasks[key]:
            continue
        provenance = _provenance(working, label, was, time, note)
        if same and was is not None:  # it may come from elsewhere, and be the same for all that
            row, _ = packed(key, one, known.tasks[key], layout, was.provenance)
            if row.checksum == was.row.checksum:
                continue
        yield *packed(key, one, known.tasks[key], layout, provenance), was


def _provenance(
    working: WorkingCopy, label: Label, was: ClassRow | None, time: str, note: str
) -> Provenance:
    old = None if was is None else was.provenance
    said = working.notes.get(label) or note or ("" if old is None else old.note)
    first = working.learned.get(label) or time
    learned = first if old is None else min(first, old.learned or first)
    return Provenance(learned, time, said, working.content_hashes.get(label, b""))


def _prior_id(before: Snapshot, prior: Prior | None, version: int) -> int | None:
    """The number of a prior: that of the one before, if it is the same."""
    if prior is None:
        return None
    same = before.prior is not None and before.prior[1] is prior
    return before.prior[0] if before.prior is not None and same else version << STEP_BITS


def _next_step(db: sqlite3.Connection) -> int:
    (last,) = db.execute("SELECT max(number) FROM steps").fetchone()
    return int(last or 0) + 1
