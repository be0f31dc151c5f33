"""Writing one step: new records, the ones they replace, and nothing else.

Records are only added, never changed; the state before a step is a list of ids of older records. So
a step writes the classes that it changed, and undoing it writes next to nothing.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fecam.classifier import FeCAMClassifier
from fecam.core.prior import Prior
from fecam.core.statistics import ClassStatistics
from fecam.errors import InputError
from fecam.model_file.priors import insert_prior
from fecam.model_file.projections import insert_projection
from fecam.model_file.records import EncoderRecord
from fecam.model_file.settings import pack_settings
from fecam.model_file.snapshot import ClassRow, Snapshot, check_labels
from fecam.model_rows import MAX_TEXT, Layout, Matrices, Provenance, Row, file_checksum, pack_class
from fecam.results import Label

UNDO_STEPS = 20
"""Number of steps that can be undone; records that only older steps need are dropped."""
STEP_BITS = 24
"""A record id is the model version shifted by this, plus a position. Ids are never reused, so that
a reader of an older state never finds another record under an id."""


@dataclass
class WorkingCopy:
    """A changed classifier that is to be written, with the origin of its classes."""

    classifier: FeCAMClassifier
    content_hashes: dict[Label, bytes] = field(default_factory=dict)
    """Per class the sorted hashes of all its samples."""
    notes: dict[Label, str] = field(default_factory=dict)
    learned: dict[Label, str] = field(default_factory=dict)
    encoder: EncoderRecord | None = None
    rows: Mapping[Label, ClassRow] = field(default_factory=dict)
    """The rows of the file before the change."""
    needs_prior: bool = False
    """Update the prior first, so that readers need not compute it from all matrices."""


def now() -> str:
    """Return the current time as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_step(
    db: sqlite3.Connection,
    before: Snapshot | None,
    working: WorkingCopy,
    what: str,
    note: str = "",
    key: str = "",
    author: str = "",
) -> int | None:
    """Write the changes since ``before``, None for a new file; return the step number, if any."""
    _check_texts(note=note, key=key, author=author)
    time, version = now(), 1 if before is None else before.version + 1
    old_rows = before.rows if before else {}
    classes = working.classifier.state_.classes
    check_labels(classes)
    changes: dict[str, tuple[int | None, int | None]] = {}
    counts: dict[str, int] = {}
    checksums = {old.row.label: old.row.checksum for old in old_rows.values()}
    texts = {*map(json.dumps, classes)}  # True == 1, but their texts differ
    for old in old_rows.values():
        if old.row.label not in texts:
            changes[old.row.label] = old.record_id, None
            counts[old.row.label] = -old.row.n_samples
            del checksums[old.row.label]
    for row, matrices, replaced in _changed_rows(before, working, time, note):
        record_id = (version << STEP_BITS) + len(changes) + 1
        insert(db, record_id, row, matrices)
        changes[row.label] = replaced.record_id if replaced else None, record_id
        counts[row.label] = row.n_samples - (replaced.row.n_samples if replaced else 0)
        checksums[row.label] = row.checksum
    old_prior, prior = before and before.prior, _prior(before, working, version)
    projection_id = _projection_id(before, working, version)
    settings = _pack_file_settings(working, version, prior and prior[0], projection_id)
    old_settings = {
        name: text
        for name, text in (before.settings if before else {}).items()
        if name not in ("version_", "prior_", "fecam_") and settings[name] != text
    }
    if before is not None and not changes and not old_settings:
        return None
    if prior is not None and prior is not old_prior:
        insert_prior(db, *prior)
    if projection_id is not None and (before is None or before.projection_id != projection_id):
        insert_projection(db, projection_id, working.classifier.state_.transform.projection)
    step = _next_step(db)
    about = (step, time, what, note, key, json.dumps(counts))
    undo = (json.dumps(old_settings) if old_settings else None, old_prior and old_prior[0])
    values = (*about, None, *undo, author)
    db.execute(f"INSERT INTO steps VALUES ({', '.join('?' * len(values))})", values)
    for text, (old_id, new_id) in changes.items():
        set_current(db, text, new_id)
        if before is not None or what != "save":  # a first save cannot be undone
            db.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (step, text, old_id, new_id))
    write_settings(db, settings, checksums.values())
    return step


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        # Undecodable bytes become lone surrogates, which cannot be encoded again.
        if not isinstance(text, str) or text.encode(errors="ignore").decode() != text:
            raise InputError(f"the {name} {text!r} is not text. Write it in UTF-8.")
        if len(text) > MAX_TEXT:
            raise InputError(f"the {name} has {len(text)} characters. Keep it below {MAX_TEXT}.")


def _changed_rows(
    before: Snapshot | None, working: WorkingCopy, time: str, note: str
) -> Iterator[tuple[Row, Matrices, ClassRow | None]]:
    """Yield the classes that differ from a snapshot, each with the row that it replaces."""
    state, layout = working.classifier.state_, layout_of(working.classifier)
    same_layout = before is not None and layout == before.layout
    for key, stats in state.classes.items():
        label: Label = key  # type: ignore[assignment]
        task, old = state.tasks[key], None if before is None else before.rows.get(label)
        if old is not None and old.row.label != json.dumps(label):  # 1 instead of True
            old = None
        if same_layout and old is not None:
            if old.statistics is stats and old.row.task == task:
                continue
            row, _ = pack_class(key, stats, task, layout, old.provenance)
            if row.checksum == old.row.checksum:  # equal values in other objects
                continue
        learned = working.learned.get(label) or time
        label_note = working.notes.get(label) or note
        if old is not None:
            learned = min(learned, old.row.learned or learned)
            label_note = label_note or old.row.note
        hashes = working.content_hashes.get(label, b"")
        provenance = Provenance(learned, time, label_note, hashes)
        yield (*pack_class(key, stats, task, layout, provenance), old)


def layout_of(classifier: FeCAMClassifier) -> Layout:
    """Return what a classifier stores per class."""
    return Layout.of(classifier.state_, classifier.dtype)


def _scatter_size(stats: ClassStatistics) -> int:
    """Return an upper bound on the numbers of a scatter, without reading them from the file."""
    if stats.scatter is None:
        return 0
    width = stats.scatter.n_features
    sizes = {"diagonal": width, "low_rank": (stats.count - 1) * width}
    return sizes.get(stats.scatter.storage, width * (width + 1) // 2)


def _prior(before: Snapshot | None, working: WorkingCopy, version: int) -> tuple[int, Prior] | None:
    """Return the id and the prior of a working copy; an unchanged prior keeps its id.

    A prior up to date is left out if the matrices, from which a reader derives it again bit by bit,
    take less space: that of 1,280 features takes 6.6 MB.
    """
    classifier = working.classifier
    classes = classifier.state_.classes.values()
    if not classes:
        return None
    n_features = classifier.state_.n_features
    is_derivable = sum(map(_scatter_size, classes)) <= n_features * n_features // 2
    needs_prior = working.needs_prior and not is_derivable
    prior = classifier.current_prior() if needs_prior else classifier.prior_
    if prior is None or (is_derivable and prior.dof == sum(s.count - 1 for s in classes)):
        return None
    if before is not None and before.prior is not None and before.prior[1] is prior:
        return before.prior
    return version << STEP_BITS, prior


def _projection_id(before: Snapshot | None, working: WorkingCopy, version: int) -> int | None:
    """Return the id of the projection of a working copy; an unchanged one keeps its id."""
    transform = working.classifier.state_.transform
    if before is not None and transform.same_projection(before.classifier.state_.transform):
        return before.projection_id
    return None if transform.projection is None else version << STEP_BITS


def _pack_file_settings(
    working: WorkingCopy, version: int, prior_id: int | None, projection_id: int | None
) -> dict[str, str]:
    encoder = None if working.encoder is None else vars(working.encoder)
    about = {"encoder_": encoder, "version_": version}
    about |= {"prior_": prior_id, "projection_": projection_id}
    packed = pack_settings(working.classifier)
    return packed | {name: json.dumps(value) for name, value in about.items()}


def insert(db: sqlite3.Connection, record_id: int, row: Row, matrices: Matrices) -> None:
    """Write a record and its matrices."""
    placeholders = ", ".join("?" * (1 + len(row)))
    db.execute(f"INSERT INTO records VALUES ({placeholders})", (record_id, *row))
    db.execute("INSERT INTO matrices VALUES (?, ?, ?)", (record_id, *matrices))


def set_current(db: sqlite3.Connection, label: str, record_id: int | None) -> None:
    """Make a record the current one of a label; None removes the label."""
    if record_id is None:
        db.execute("DELETE FROM classes WHERE label = ?", (label,))
    else:
        db.execute("INSERT OR REPLACE INTO classes VALUES (?, ?)", (label, record_id))


def current_checksums(db: sqlite3.Connection) -> list[bytes]:
    """Return the checksums of the current records."""
    rows = db.execute(
        "SELECT records.checksum FROM classes JOIN records ON records.id = classes.record"
    )
    return [checksum for (checksum,) in rows.fetchall()]


def write_settings(
    db: sqlite3.Connection, settings: Mapping[str, str], rows: Iterable[bytes]
) -> None:
    """Write all settings, and the checksum over them and the rows."""
    signed = {**settings, "checksum_": json.dumps(file_checksum(settings, rows))}
    db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", signed.items())


def _next_step(db: sqlite3.Connection) -> int:
    (last,) = db.execute("SELECT max(number) FROM steps").fetchone()
    return int(last or 0) + 1
