"""The ``.fecam`` file: all that a model was taught, in one SQLite database.

It holds text, numbers and little-endian arrays, so reading one never runs code of its author. A
file is taken for hostile all the same: its header is looked at before SQLite sees it, its schema
must be ours to the letter, and no array is read before its length is known to be right. Each class
carries a checksum, and one more binds the classes and the settings together.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.knowledge import Knowledge
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import Transform
from fecam.errors import ModelFileError, SettingsError
from fecam.model_rows import (
    LABELS,
    LONGEST_TEXT,
    RESTORE,
    Layout,
    Row,
    file_checksum,
    flaw,
    pack_class,
    parsed,
    unpack_class,
)
from fecam.settings import read_metric

APPLICATION_ID = 0x4665434D  # "FeCM"
VERSION = 2  # 1 had no scatters of low rank, and raw means in double precision
LARGEST_WIDTH = 10_000_000

_PARAMETERS = tuple(FeCAMClassifier().get_params())
# As in scikit-learn, what was found while learning ends with an underscore.
_FOUND = ("tukey_", "unit_", "form_", "n_features_in_", "feature_names_in_", "fecam_", "checksum_")
_NOT_OURS = "Give the path of a file that FeCAMClassifier.save has written."

TABLES = {
    "settings": "CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT)",
    # The checksum comes before the arrays: behind them it could only be read through them.
    "classes": "CREATE TABLE classes(label TEXT PRIMARY KEY, count INTEGER, visits INTEGER, "
    "task INTEGER, sampled_count INTEGER, sampled_sum REAL, sampled_squares REAL, checksum BLOB, "
    "raw_mean BLOB, mean BLOB, scatter BLOB, averaged BLOB)",
}
_SCHEMA = {("table", name, sql) for name, sql in TABLES.items()} | {
    ("index", f"sqlite_autoindex_{name}_1", None) for name in TABLES
}


def save(classifier: FeCAMClassifier, path: str | os.PathLike[str]) -> None:
    """Write all that a classifier was taught to a file, in place of an older one.

    A save that fails leaves the older file as it was. Labels are stored as whole numbers or
    strings, so ``True`` and ``False`` come back as 1 and 0.
    """
    known = classifier.refresh().knowledge_
    classifier._metric()  # settings that could not be loaded are not saved either
    try:
        with _replacing(Path(os.path.realpath(path))) as temporary:
            _write(temporary, classifier, known)
    except ModelFileError as error:
        raise ModelFileError(f"{path} was not written: {error}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        raise ModelFileError(
            f"{path} was not written: {error}. A file that was there before is as it was. Check "
            "that the folder exists, may be written to and has room, then save again."
        ) from error


def load(path: str | os.PathLike[str]) -> FeCAMClassifier:
    """Open a ``.fecam`` file as a classifier that holds NumPy arrays and can go on learning.

    >>> import tempfile
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clf.save(folder + "/pets.fecam")
    ...     load(folder + "/pets.fecam").predict([[0.1, 0.9]]).tolist()
    ['cat']
    """
    try:
        size = _check_header(Path(path))
        with closing(_open(Path(path), size)) as db:
            return _read(db, size)
    except (ModelFileError, SettingsError) as error:
        remedy = f" {RESTORE}" if isinstance(error, SettingsError) else ""
        raise ModelFileError(f"{path} cannot be loaded: {error}{remedy}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        raise ModelFileError(
            f"{path} cannot be loaded: {error}. Unless it may not be read, or is just being "
            f"written by another program, it is damaged. {RESTORE}"
        ) from None


# ---------------------------------------------------------------------- settings


def pack_settings(classifier: FeCAMClassifier, known: Knowledge) -> dict[str, str]:
    """The parameters of a classifier and what it found while learning, each as JSON."""
    from fecam import __version__  # the package is still being imported while this module is

    parameters = classifier.get_params()
    names = getattr(classifier, "feature_names_in_", None)
    values = {name: parameters[name] for name in _PARAMETERS} | {
        "tukey_": known.transform.power,
        "unit_": known.transform.unit,
        "form_": known.form,
        "n_features_in_": known.width,
        "feature_names_in_": None if names is None else list(names),
        "fecam_": __version__,
    }
    return {name: json.dumps(value, default=_plain) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """What JSON cannot write: an array, or a number of another library."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else float(value)


def unpack_settings(settings: Mapping[str, str]) -> tuple[FeCAMClassifier, Knowledge]:
    """A classifier with these settings, and the empty knowledge that it starts from."""
    values = {name: json.loads(text) for name, text in settings.items()}
    power, width, names = values["tukey_"], values["n_features_in_"], values["feature_names_in_"]
    is_right = {
        "tukey_": power is None or (type(power) in (int, float) and math.isfinite(power)),
        "unit_": isinstance(values["unit_"], bool),
        "form_": values["form_"] in ("full", "diagonal", "none"),
        "n_features_in_": type(width) is int and 1 <= width <= LARGEST_WIDTH,
        "feature_names_in_": names is None
        or (isinstance(names, list) and len(names) == width and {*map(type, names)} == {str}),
        "fecam_": isinstance(values["fecam_"], str),
    }
    for name in is_right:
        if not is_right[name]:
            raise flaw(f"the setting {name!r} cannot be {settings[name][:80]}.")
    parameters: dict[str, Any] = {name: values[name] for name in _PARAMETERS}
    for name, value in parameters.items():
        if isinstance(value, list):
            parameters[name] = tuple(value)
    read_metric(parameters)
    classifier = FeCAMClassifier(**parameters)
    classifier.n_features_in_ = width
    if names is not None:
        classifier.feature_names_in_ = np.asarray(names, dtype=object)
    transform = Transform(None if power is None else float(power), values["unit_"])
    anchor = np.zeros(0, dtype=classifier.dtype)
    return classifier, Knowledge(transform, values["form_"], width, anchor)


# ---------------------------------------------------------------------- writing a file


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A new file beside the target, which takes its place if nothing goes wrong."""
    if target.exists() and not target.is_file():
        raise flaw("it is a folder or something else that is not a file.", "Give another path.")
    temporary = target.with_name(f".fecam-{token_hex(8)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if target.exists():
            shutil.copymode(target, temporary)
        yield temporary
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, target)
        with suppress(OSError):  # not every system lets a folder be opened
            _flush(target.parent, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path, flags: int) -> None:
    """Wait until a file, or the list of what a folder holds, is on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, classifier: FeCAMClassifier, known: Knowledge) -> None:
    layout = Layout(known.form, known.width, classifier.dtype)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # Small pages waste less at the end of a row, large ones are read faster.
        db.execute(f"PRAGMA page_size = {16384 if _is_bulky(known) else 1024}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("PRAGMA journal_mode = OFF")  # nobody sees this file before it is whole
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for sql in TABLES.values():
            db.execute(sql)
        checksums = {}
        for label, one in known.classes.items():
            row = pack_class(label, one, known.tasks[label], layout)
            values = (row.label, *row.numbers, row.checksum, *row.arrays)
            db.execute(f"INSERT INTO classes VALUES ({', '.join('?' * len(values))})", values)
            checksums[row.label] = row.checksum
        _check_kind([json.loads(text) for text in checksums])
        settings = pack_settings(classifier, known)
        settings["checksum_"] = json.dumps(file_checksum(settings, checksums))
        db.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
        db.execute("COMMIT")


def _is_bulky(known: Knowledge) -> bool:
    """Whether most classes take many small pages."""
    numbers = [
        math.prod(one.scatter.numbers.shape) for one in known.classes.values() if one.scatter
    ]
    return bool(sum(numbers) > 2**15 * len(numbers))


def _check_kind(labels: list[int | str]) -> None:
    """Refuse labels that would not come out of a NumPy array as they went in."""
    numbers = [label for label in labels if isinstance(label, int)] or [0]
    if len({*map(type, labels)}) > 1 or np.asarray(numbers).dtype.kind not in "iu":
        raise flaw("its labels are of mixed kinds, or numbers that are too large.", LABELS)


# ---------------------------------------------------------------------- reading a file


def _check_header(path: Path) -> int:
    """The size of a file that begins as ours do; no other is shown to SQLite."""
    if not path.exists():
        raise flaw("there is no such file.", "Check the path.")
    if not path.is_file():  # opening a pipe, say, would wait for ever
        raise flaw("it is a folder or something else that is not a file.", _NOT_OURS)
    with path.open("rb") as file:
        header, size = file.read(100), os.fstat(file.fileno()).st_size
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise flaw("it is not a model file, or only the beginning of one.", _NOT_OURS)
    version, application = struct.unpack_from(">I4xI", header, 60)
    if application != APPLICATION_ID:
        raise flaw("it is a database of another program.", _NOT_OURS)
    if version > VERSION:
        known = f"this fecam knows versions up to {VERSION}."
        raise flaw(f"it has version {version} of the format; {known}", "Upgrade fecam to open it.")
    if version < 1 or header[18:20] != b"\1\1":  # 2 is for a write-ahead log in files beside it
        raise flaw("its header is damaged.")
    page_size, pages = struct.unpack_from(">H10xI", header, 16)
    if size < page_size * pages:
        raise flaw(f"it is cut off: {size} of {page_size * pages} bytes are left.")
    return size


def _open(path: Path, size: int) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    # No honest file takes that many steps; one whose pages point at each other would never end.
    db.set_progress_handler(lambda: 1, min(1_000_000 + size, 2**31 - 1))
    return db


def _read(db: sqlite3.Connection, size: int) -> FeCAMClassifier:
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("BEGIN")  # one view of the file, even if it is being written to
    _check_schema(db)
    settings = _read_settings(db)
    checksum = settings.pop("checksum_")
    classifier, empty = unpack_settings(settings)
    layout = Layout(empty.form, empty.width, classifier.dtype)
    classes: dict[Any, ClassStatistics] = {}
    tasks: dict[Any, int] = {}
    checksums: dict[str, bytes] = {}
    for row in _read_rows(db, layout, size):
        label, one, task = unpack_class(row, layout)
        if label in classes:
            raise flaw(f"class {row.label} comes twice.")
        classes[label], tasks[label], checksums[row.label] = one, task, row.checksum
    _check_kind(list(classes))
    if json.dumps(file_checksum(settings, checksums)) != checksum:
        raise flaw("a setting was changed or a class was lost: the checksum does not match.")
    known = replace(empty, classes=dict(sorted(classes.items())), tasks=dict(sorted(tasks.items())))
    classifier._hold(known)._metric()
    return classifier


def _check_schema(db: sqlite3.Connection) -> None:
    found = set(db.execute("SELECT type, name, sql FROM sqlite_master LIMIT 9"))
    for kind, name, _ in found ^ _SCHEMA:
        raise flaw(f"its {kind} {str(name)[:80]!r} is missing, or not part of a model.", _NOT_OURS)


def _read_settings(db: sqlite3.Connection) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in db.execute("SELECT name, value FROM settings NOT INDEXED"):
        if name not in _PARAMETERS and name not in _FOUND:
            what = f"it has a setting {str(name)[:80]!r} that is not known here."
            raise flaw(what, "Upgrade fecam to open it.")
        longest = math.inf if name == "feature_names_in_" else LONGEST_TEXT
        parsed(f"setting {name!r}", value, longest=longest)
        if name in settings:
            raise flaw(f"the setting {name!r} comes twice.")
        settings[name] = value
    for name in (*_PARAMETERS, *_FOUND):
        if name not in settings:
            raise flaw(f"the setting {name!r} is missing.")
    return settings


def _read_rows(db: sqlite3.Connection, layout: Layout, size: int) -> Iterator[Row]:
    """The rows of all classes; an array of a wrong length comes as one byte, unread."""
    mean, row = 8 * layout.width, layout.row_bytes
    scatter = f"= {layout.scatter_bytes}"
    if layout.form == "full":
        few = f"length({{0}}) <= {layout.most_row_bytes} AND length({{0}}) % {row} = 0"
        scatter += f" OR ({few})"
    due = {
        "checksum": "= 16",
        "raw_mean": f"IN ({row}, {mean})",
        "mean": f"= {mean}",
        "scatter": scatter,
        "averaged": scatter,
    }
    blobs = ", ".join(
        f"CASE WHEN typeof({name}) = 'blob' AND (length({name}) {length.format(name)}) THEN {name} "
        f"WHEN {name} IS NOT NULL THEN x'00' END"
        for name, length in due.items()
    )
    numbers = "count, visits, task, sampled_count, sampled_sum, sampled_squares"
    total = 0
    for values in db.execute(f"SELECT label, {numbers}, {blobs} FROM classes NOT INDEXED"):
        yield Row(values[0], values[1:7], values[7], values[8:])
        total += sum(len(array) for array in values[8:] if array is not None)
        if total > size:  # rows that share their pages would fill the memory from a small file
            raise flaw("it claims to hold more than its size allows.")
