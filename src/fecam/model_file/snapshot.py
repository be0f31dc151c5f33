"""What a file holds at one moment, as a classifier.

A snapshot never changes. The next one takes over whatever is still the same, the very objects, so
that factors that were derived from them stay good: reading what another program wrote costs only
what it changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.errors import SettingsError
from fecam.model_file.lazy_matrices import LazyMatrixStore, fetch
from fecam.model_file.priors import read_prior
from fecam.model_file.records import EncoderRecord
from fecam.model_file.settings import read_settings, unpack_settings
from fecam.model_rows import (
    LABEL_RULE,
    MAX_TEXT,
    Layout,
    Provenance,
    Row,
    check_matrices,
    file_checksum,
    file_error,
    unpack_class,
)
from fecam.results import ClassRecord, Label

COLUMNS = (
    *("label", "count", "visits", "task", "sampled_count", "sampled_sum", "sampled_squares"),
    *("scatter_bytes", "averaged_bytes", "taught", "changed", "note"),
    *("matrices", "checksum", "raw_mean", "mean", "marks"),
)
"""Of the table of records, after the number."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassRow:
    """One class as the file holds it."""

    number: int
    row: Row
    statistics: ClassStatistics
    task: int

    @property
    def provenance(self) -> Provenance:
        """When and of what it was taught."""
        taught, changed, note = self.row.texts
        return Provenance(taught, changed, note, self.row.arrays[2])


class RowHashes(Mapping[Label, bytes]):
    """The marks of what each class was taught, looked up when asked for: classes may be many."""

    def __init__(self, rows: Mapping[Label, ClassRow]) -> None:
        self._rows = rows

    def __getitem__(self, label: Label) -> bytes:
        return self._rows[label].provenance.content_hashes

    def __iter__(self) -> Iterator[Label]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All that a file held at one moment."""

    settings: dict[str, str]
    classifier: FeCAMClassifier
    layout: Layout
    rows: dict[Label, ClassRow]
    prior: tuple[int, Prior] | None
    checksum: str
    """Of all of it, as the settings have it: no other state has the same."""

    @property
    def version(self) -> int:
        """How often the file had changed."""
        return int(json.loads(self.settings["version_"]))

    @property
    def encoder(self) -> EncoderRecord | None:
        """The encoder that the features come from."""
        return unpack_encoder(self.settings["encoder_"])

    @property
    def classes(self) -> list[ClassRecord]:
        """What is known about each class."""
        return [class_record(label, one.row) for label, one in self.rows.items()]


def class_record(label: Label, row: Row) -> ClassRecord:
    """What a row says about a class."""
    size = sum(length or 0 for length in row.lengths) + sum(map(len, row.arrays))
    taught, changed, note = row.texts
    return ClassRecord(label, row.numbers[0], row.numbers[1], taught, changed, note, size)


def unpack_encoder(text: str) -> EncoderRecord | None:
    """The encoder that the setting names."""
    value = json.loads(text)
    if value is None:
        return None
    try:
        record = EncoderRecord(**value)
    except TypeError:
        raise file_error(f"the setting 'encoder_' cannot be {text[:80]}.") from None
    texts = (record.name, record.fingerprint, record.kind)
    if not all(isinstance(one, str) for one in texts) or type(record.width) is not int:
        raise file_error(f"the setting 'encoder_' cannot be {text[:80]}.")
    return record


def read_snapshot(
    db: sqlite3.Connection,
    size: int,
    store: LazyMatrixStore | None,
    before: Snapshot | None = None,
    priors: dict[int, Prior] | None = None,
) -> Snapshot:
    """What the file holds now. Without a store all matrices are read at once.

    ``priors`` are known already, by their numbers.
    """
    settings = read_settings(db)
    checksum = settings.pop("checksum_")
    classifier, empty = _unpacked(settings)
    encoder = unpack_encoder(settings["encoder_"])
    if encoder is not None and encoder.width != empty.n_features:
        raise file_error(
            f"its encoder gives {encoder.width} features, its classes have {empty.n_features}."
        )
    layout = Layout(empty.scatter_kind, empty.n_features, classifier.dtype)
    known = {}
    if before is not None and before.layout == layout:
        known = {one.number: (label, one) for label, one in before.rows.items()}
    pairs = _read_class_rows(db, layout, size, store, known)
    rows = dict(pairs)
    if len(rows) < len(pairs):
        twice, _ = Counter(label for label, _ in pairs).most_common(1)[0]
        raise file_error(f"class {rows[twice].row.label} comes twice.")
    check_kind(list(rows))
    if json.dumps(file_checksum(settings, [o.row.checksum for o in rows.values()])) != checksum:
        raise file_error("a setting was changed or a class was lost: the checksum does not match.")
    rows = dict(sorted(rows.items(), key=lambda item: item[0]))
    state = replace(
        empty,
        classes={label: one.statistics for label, one in rows.items()},
        tasks={label: one.task for label, one in rows.items()},
    )
    prior = _prior(db, json.loads(settings["prior_"]), layout, before, priors or {})
    try:
        classifier.set_state(
            state,
            prior=None if prior is None else prior[1],
            previous=None if before is None else before.classifier,
        )
    except SettingsError as error:
        raise file_error(f"its settings do not fit its classes: {error}") from None
    return Snapshot(settings, classifier, layout, rows, prior, checksum)


def _unpacked(settings: dict[str, str]) -> tuple[FeCAMClassifier, ClassifierState]:
    try:
        return unpack_settings(settings)
    except SettingsError as error:
        raise file_error(str(error)) from None


def _prior(
    db: sqlite3.Connection,
    number: int | None,
    layout: Layout,
    before: Snapshot | None,
    known: dict[int, Prior],
) -> tuple[int, Prior] | None:
    if number is None:
        return None
    if before is not None and before.prior is not None and before.prior[0] == number:
        return before.prior
    return number, known.get(number) or read_prior(db, number, layout)


def _read_class_rows(
    db: sqlite3.Connection,
    layout: Layout,
    size: int,
    store: LazyMatrixStore | None,
    known: dict[int, tuple[Label, ClassRow]],
) -> list[tuple[Label, ClassRow]]:
    """All classes with their labels: those that are known already as they are, the others read."""
    pairs, rows = list[tuple[Label, ClassRow]](), None
    if known:
        numbers = [number for (number,) in db.execute("SELECT record FROM classes NOT INDEXED")]
        pairs = [known[number] for number in numbers if number in known]
        rows = [number for number in numbers if number not in known]
    total = 0
    for number, row in read_rows(db, layout, rows):
        total += sum(map(len, row.arrays)) + (0 if store else sum(x or 0 for x in row.lengths))
        if total > size:  # rows that share their pages would fill the memory from a small file
            raise file_error("it claims to hold more than its size allows.")
        if store is not None:
            scatter, averaged = store.stored(number, row, layout)
            label, statistics, task = unpack_class(row, layout, scatter, averaged)
        else:
            label, statistics, task = unpack_class(row, layout, None, None)
            scatter, averaged = check_matrices(row, fetch(db, number, row), layout)
            statistics = replace(statistics, scatter=scatter, domain_mean_covariance=averaged)
        pairs.append((label, ClassRow(number, row, statistics, task)))
    return pairs


def read_rows(
    db: sqlite3.Connection, layout: Layout, numbers: Sequence[int] | None = None
) -> Iterator[tuple[int, Row]]:
    """The rows of all classes, or of some records; what has a wrong length comes unread."""
    due = {
        "matrices": "= 16",
        "checksum": "= 16",
        "raw_mean": f"= {layout.row_bytes}",
        "mean": f"= {8 * layout.width}",
        "marks": "<= 8 * records.count",
    }
    cells = [f"records.{name}" for name in COLUMNS[: -len(due) - 3]]
    cells += [
        f"CASE WHEN length(records.{name}) <= {MAX_TEXT} THEN records.{name} END"
        for name in ("taught", "changed", "note")
    ]
    cells += [
        f"CASE WHEN typeof(records.{name}) = 'blob' AND length(records.{name}) {length} "
        f"THEN records.{name} ELSE x'00' END"
        for name, length in due.items()
    ]
    query = f"SELECT records.id, classes.label, {', '.join(cells)} FROM classes NOT INDEXED "
    query += "JOIN records ON records.id = classes.record"
    if numbers is None:
        yield from map(_row, db.execute(query))
        return
    for number in numbers:
        yield from map(_row, db.execute(f"{query} WHERE records.id = ?", (number,)))


def _row(values: tuple[Any, ...]) -> tuple[int, Row]:
    number, named, label, *rest = values
    if named != label:
        raise file_error(f"class {str(named)[:80]} points at the record of another.")
    matrices, checksum, *arrays = rest[11:]
    return number, Row(
        label,
        tuple(rest[:6]),
        tuple(rest[6:8]),
        tuple(rest[8:11]),
        tuple(arrays),
        matrices,
        checksum,
    )


def check_kind(labels: list[int | str]) -> None:
    """Refuse labels that would not come out of a NumPy array as they went in."""
    numbers = [label for label in labels if isinstance(label, int)] or [0]
    if len({*map(type, labels)}) > 1 or np.asarray(numbers).dtype.kind not in "iu":
        raise file_error(
            "its labels are of mixed kinds, or numbers that are too large.", LABEL_RULE
        )
