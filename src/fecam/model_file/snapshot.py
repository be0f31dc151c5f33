"""What a file holds at one moment, as a classifier.

A snapshot never changes. The next one reuses the objects of all classes that are unchanged, so that
factors derived from them stay valid: reading a change of another program costs only that change.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.compression import compressed
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.errors import SettingsError
from fecam.model_file.lazy_matrices import LazyMatrixStore, read_matrices
from fecam.model_file.priors import read_prior
from fecam.model_file.projections import read_projection
from fecam.model_file.records import EncoderRecord
from fecam.model_file.schema import user_version
from fecam.model_file.settings import (
    NEW_IN_4,
    read_settings,
    setting_names,
    unpack_encoder,
    unpack_settings,
)
from fecam.model_rows import (
    CALIBRATION_LENGTHS,
    LABEL_RULE,
    MAX_TEXT,
    Layout,
    Provenance,
    Row,
    file_checksum,
    file_error,
    unpack_class,
)
from fecam.results import ClassRecord, Label


@dataclass(frozen=True, slots=True, eq=False)
class ClassRow:
    """The current record of one class."""

    record_id: int
    row: Row
    statistics: ClassStatistics

    @property
    def provenance(self) -> Provenance:
        """Origin of the class."""
        row = self.row
        return Provenance(row.learned, row.changed, row.note, row.content_hashes)


def row_hashes(rows: Mapping[Label, ClassRow]) -> dict[Label, bytes]:
    """Return the content hashes of the samples per class."""
    return {label: class_row.row.content_hashes for label, class_row in rows.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The contents of a file at one moment."""

    settings: dict[str, str]
    classifier: FeCAMClassifier
    layout: Layout
    rows: dict[Label, ClassRow]
    prior: tuple[int, Prior] | None
    """The prior and its id."""
    checksum: str
    """The checksum over everything, which no other state shares."""

    @property
    def version(self) -> int:
        """Number of changes of the file."""
        return int(json.loads(self.settings["version_"]))

    @property
    def encoder(self) -> EncoderRecord | None:
        """The encoder of the features."""
        return unpack_encoder(self.settings["encoder_"], self.layout.n_features_in)

    @property
    def projection_id(self) -> int | None:
        """The id of the projection; None if the model is not compressed."""
        value: int | None = json.loads(self.settings["projection_"])
        return value

    @property
    def classes(self) -> list[ClassRecord]:
        """A description of each class."""
        pairs = ((label, class_row.row) for label, class_row in self.rows.items())
        return [
            ClassRecord(
                *(label, row.n_samples, row.n_batches, row.learned, row.changed, row.note),
                row.n_bytes + row.matrix_bytes,
            )
            for label, row in pairs
        ]


def read_snapshot(
    db: sqlite3.Connection,
    size: int,
    store: LazyMatrixStore | None,
    before: Snapshot | None = None,
    new_prior: Prior | None = None,
) -> Snapshot:
    """Return the contents of a file, with all matrices if there is no ``store``."""
    settings = read_settings(db, setting_names(user_version(db)))
    checksum = settings.pop("checksum_")
    try:
        classifier, empty = unpack_settings(settings)
    except SettingsError as error:
        raise file_error(str(error)) from None
    unpack_encoder(settings["encoder_"], empty.n_features)
    empty = _with_projection(db, settings, empty, classifier.dtype, before)
    layout = Layout.of(empty, classifier.dtype)
    unchanged = {}
    if before is not None and before.layout == layout:
        unchanged = {row.record_id: (label, row) for label, row in before.rows.items()}
    pairs = _read_classes(db, layout, size, store, unchanged)
    state = build_state(empty, ((label, r.statistics, r.row.task) for label, r in pairs))
    if json.dumps(file_checksum(settings, [r.row.checksum for _, r in pairs])) != checksum:
        raise file_error("a setting was changed or a class was lost: the checksum does not match.")
    settings = NEW_IN_4 | settings
    prior_id, prior = json.loads(settings["prior_"]), None
    if before is not None and before.prior is not None and before.prior[0] == prior_id:
        prior = before.prior
    elif prior_id is not None:
        prior = prior_id, new_prior or read_prior(db, prior_id, layout)
    try:
        previous = None if before is None else before.classifier
        in_use = new_prior if prior is None else prior[1]  # up to date if it is not in the file
        _ = classifier.set_state(state, prior=in_use, previous=previous).metric_
    except SettingsError as error:
        raise file_error(f"its settings do not fit its classes: {error}") from None
    rows = dict(sorted(pairs, key=itemgetter(0)))
    return Snapshot(settings, classifier, layout, rows, prior, checksum)


def _with_projection(
    db: sqlite3.Connection,
    settings: Mapping[str, str],
    empty: ClassifierState,
    dtype: str,
    before: Snapshot | None,
) -> ClassifierState:
    """Return the empty state of a model that may be compressed."""
    projection_id = json.loads(settings.get("projection_", "null"))
    if projection_id is None:
        return empty
    if before is not None and before.projection_id == projection_id:
        return compressed(empty, before.classifier.state_.transform.projection)
    return compressed(empty, read_projection(db, projection_id, empty.n_features, dtype))


def build_state(
    empty: ClassifierState, classes: Iterable[tuple[Label, ClassStatistics, int]]
) -> ClassifierState:
    """Return a state with these classes, each a label, statistics and a task; sorted by label."""
    classes = list(classes)
    check_labels(label for label, _, _ in classes)
    classes.sort(key=itemgetter(0))
    return replace(
        empty,
        classes={label: stats for label, stats, _ in classes},
        tasks={label: task for label, _, task in classes},
    )


def _read_classes(
    db: sqlite3.Connection,
    layout: Layout,
    size: int,
    store: LazyMatrixStore | None,
    unchanged: dict[int, tuple[Label, ClassRow]],
) -> list[tuple[Label, ClassRow]]:
    """Return all classes with their labels; unchanged ones, given by record id, are not read."""
    pairs, new_ids = list[tuple[Label, ClassRow]](), None
    if unchanged:
        ids = [record_id for (record_id,) in db.execute("SELECT record FROM classes NOT INDEXED")]
        pairs = [unchanged[record_id] for record_id in ids if record_id in unchanged]
        new_ids = [record_id for record_id in ids if record_id not in unchanged]
    total = 0
    for record_id, row in read_rows(db, layout, new_ids):
        total += row.n_bytes + (0 if store else row.matrix_bytes)
        if total > size:  # rows that share pages could fill the memory from a small file
            raise file_error("it claims to hold more than its size allows.")
        read = store.lazy_matrices if store else partial(read_matrices, db)
        label, stats, _ = unpack_class(row, layout, partial(read, record_id, row, layout))
        pairs.append((label, ClassRow(record_id, row, stats)))
    return pairs


def read_rows(
    db: sqlite3.Connection, layout: Layout, record_ids: Sequence[int] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield id and row of all current records, or of some; blobs of a wrong length as ``x'00'``."""
    names = "label count visits task sampled_count sampled_sum sampled_squares"
    cells = [f"records.{name}" for name in f"{names} scatter_bytes averaged_bytes".split()]
    cells += [
        f"CASE WHEN length(records.{name}) <= {MAX_TEXT} THEN records.{name} END"
        for name in ("taught", "changed", "note")
    ]
    lengths = {
        "matrices": "= 16",
        "checksum": "= 16",
        "raw_mean": f"= {layout.raw_mean_bytes}",
        "mean": f"= {8 * layout.n_features}",
        "marks": "<= 8 * records.count",
        "calibration": f"<= {CALIBRATION_LENGTHS[-1]}",
    }
    cells += [
        f"CASE WHEN typeof(records.{name}) = 'blob' AND length(records.{name}) {length} "
        f"THEN records.{name} ELSE x'00' END"
        for name, length in lengths.items()
    ]
    sums = f"CASE WHEN records.calibration IS NOT NULL THEN {cells.pop()} END"
    cells.append(sums if user_version(db) >= 4 else "NULL")
    query = f"SELECT records.id, classes.label, {', '.join(cells)} FROM classes NOT INDEXED "
    query += "JOIN records ON records.id = classes.record"
    by_id = f"{query} WHERE records.id = ?"
    results = (
        [db.execute(query)]
        if record_ids is None
        else (db.execute(by_id, (record_id,)) for record_id in record_ids)
    )
    for record_id, label, *fields in chain.from_iterable(results):
        row = Row(*fields)
        if row.label != label:
            raise file_error(f"class {str(label)[:80]} points at the record of another.")
        yield record_id, row


def check_labels(labels: Iterable[Hashable]) -> None:
    """Reject duplicates, and labels that a NumPy array would change."""
    plain = list(labels)
    numbers = [label for label in plain if isinstance(label, int)] or [0]
    if len({*map(type, plain)}) > 1 or np.asarray(numbers).dtype.kind not in "iub":
        raise file_error(
            "its labels are of mixed kinds, or numbers that are too large.", LABEL_RULE
        )
    if len(set(plain)) < len(plain):
        label, _ = Counter(plain).most_common(1)[0]
        raise file_error(f"class {json.dumps(label)[:80]} comes twice.")
