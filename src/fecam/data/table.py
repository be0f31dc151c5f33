"""Tables of features, texts or paths of images, with a label for each row."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import enumerated, files_dataset, listed, positions
from fecam.data._listing import File
from fecam.data.catalogue import TABLE_SUFFIXES
from fecam.data.dataset import Dataset, fingerprint_of
from fecam.data.images import ImageArrays, Images
from fecam.data.table_columns import Options, Rows
from fecam.data.table_csv import read_csv, read_lines
from fecam.data.table_npz import read_npy, read_npz
from fecam.data.table_parquet import read_parquet
from fecam.errors import DatasetError
from fecam.validation import counted

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
}


def load_table(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    split: str | None = None,
    domain: str | None = None,
    delimiter: str | None = None,
    as_label: str | None = None,
    name: str | None = None,
) -> Dataset:
    """Return the rows of a ``.csv``, ``.tsv``, ``.parquet``, ``.npz``, ``.npy`` or ``.txt`` file.

    The columns determine the items: ``text``; ``path`` of images, relative to the folder of the
    table; ``embedding`` or ``features`` with a list in each row; otherwise all columns of numbers.
    ``label`` is the class; ``split`` (train, test or val) and ``domain`` are optional. An ``.npz``
    has the arrays ``X`` and ``y``, and optionally ``X_test`` and ``y_test`` or ``is_test``,
    ``domains`` and ``label_names``. A ``.npy`` of features and a ``.txt`` with one text per line
    have no labels, so they need ``as_label``, the class of all rows.

    Labels of ``.npz`` and ``.parquet`` files keep their type: strings, integers or booleans. Those
    of a ``.csv`` are integers if all of them are, without a plus sign or leading zeros.

    ``label``, ``text``, ``image``, ``split`` and ``domain`` name other columns or arrays,
    ``features`` the column of lists or the columns of numbers. Rows for validation are for testing
    if no others are, and left out otherwise. ``delimiter`` separates the cells of a ``.csv`` file.
    """
    table = existing_table(path)
    given = Options(label, text, image, features, split, domain, as_label is None)
    return dataset_of(table, _read(table, given, delimiter), name or table.stem, as_label)


def dataset_of(path: Path | str, rows: Rows, name: str, as_label: str | None = None) -> Dataset:
    """Return rows as a data set; ``as_label`` replaces their labels."""
    if as_label is not None:
        labels = [as_label] * len(rows.items)
        rows = replace(rows, labels=labels, label_names=None, label_kind="strings")
    elif rows.labels is None:
        raise DatasetError(
            f"{path} has no labels. Remedy: name the class of all rows with "
            "as_label (--as LABEL), or give a .csv or .npz with labels"
        )
    check_rows(path, rows)
    return _dataset(path, rows, name)


def check_rows(path: Path | str, rows: Rows) -> None:
    """Raise if there are no rows, or no features in them."""
    if not len(rows.items):
        raise DatasetError(f"{path} has no rows. Remedy: one row per item")
    if rows.kind == "features" and not rows.items.shape[1]:
        raise DatasetError(f"{path} has no features in its rows. Remedy: one number or more")


def table_items(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    delimiter: str | None = None,
) -> Rows:
    """Return all rows of a table; labels are optional. See `load_table`."""
    table = existing_table(path)
    given = Options(label, text, image, features, labeled=False)
    rows = _read(table, given, delimiter)
    check_rows(table, rows)
    if rows.kind == "images" and not isinstance(rows.items, np.ndarray):
        rows.items = [table.parent / str(item) for item in rows.items]
    return rows


def existing_table(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, or raise if there is none."""
    table = Path(path).expanduser()
    if table.is_file():
        return table
    problem = "is a folder" if table.exists() else "does not exist"
    raise DatasetError(f"{table} {problem}. Remedy: give the path of a table")


def _read(path: Path, given: Options, delimiter: str | None) -> Rows:
    match path.suffix.lower():
        case ".npz":
            rows = read_npz(path, given)
        case ".parquet":
            rows = read_parquet(path, given)
        case ".csv" | ".tsv":
            rows = read_csv(path, given, delimiter)
        case ".npy":
            rows = read_npy(path)
        case ".txt":
            rows = read_lines(path)
        case suffix:
            raise DatasetError(
                f"{path} ends in {suffix!r}, which is not the suffix of a table. "
                f"Remedy: give one of {listed(TABLE_SUFFIXES)}"
            )
    return rows


def _dataset(path: Path | str, rows: Rows, name: str) -> Dataset:
    labels, label_names = _labels(path, rows, rows.labels or ())
    notes = list(rows.notes)
    is_test, keep = _test_rows(path, rows, notes)
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
    if rows.domains is not None:
        _check_filled(path, rows, rows.domains, "domain")
        domains, domain_names = enumerated(rows.domains)
    is_array = isinstance(rows.items, np.ndarray)
    options: dict[str, Any] = {"is_test": is_test, "domains": domains, "domain_names": domain_names}
    if rows.kind == "images" and not is_array and not isinstance(rows.items[0], bytes):
        folder = Path(path).parent
        files = _files(folder, path, rows, notes)
        data = files_dataset(name, folder, files, labels, label_names, notes=notes, **options)
    else:
        if rows.kind == "texts":
            _check_filled(path, rows, rows.items, "text")
        about = [*label_names, labels, is_test, *domain_names]
        about += [] if domains is None else [domains]
        fingerprint = fingerprint_of([*about, *([rows.items] if is_array else rows.items)])
        items: Any = rows.items
        if rows.kind == "images":
            items = ImageArrays(rows.items) if is_array else Images(rows.items)
        data = Dataset(
            name, rows.kind, items, labels, label_names, fingerprint, notes=tuple(notes), **options
        )
    data = replace(data, label_kind=rows.label_kind)
    return data if keep.all() else data.subset(keep)


def _labels(
    path: Path | str, rows: Rows, labels: Sequence[str]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    _check_filled(path, rows, labels, "label")
    if rows.label_names is None:
        return enumerated(labels)
    unexpected = sorted(set(labels) - set(rows.label_names))
    if unexpected:
        raise DatasetError(f"{path}: labels that 'label_names' lacks: {listed(unexpected)}")
    return positions(labels, rows.label_names), rows.label_names


def _test_rows(
    path: Path | str, rows: Rows, notes: list[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return a mask of the test rows and a mask of the rows to keep."""
    count = len(rows.items)
    if rows.splits is None:
        return np.zeros(count, bool), np.ones(count, bool)
    parts = np.array([_SPLITS.get(split.strip().casefold(), "") for split in rows.splits])
    unknown = np.flatnonzero(parts == "")
    if len(unknown):
        row = int(unknown[0])
        raise DatasetError(
            f"{path}, {rows.where(row)}: the split {rows.splits[row]!r} is none of train, test "
            "and val. Remedy: correct it, or name another column with split=... (--option "
            "split=COLUMN)"
        )
    validation = parts == "val"
    if not (parts == "test").any():
        return validation, np.ones(count, bool)
    if validation.any():
        notes.append(f"{counted(int(validation.sum()), 'row')} of the validation part left out")
    return parts == "test", ~validation


def _check_filled(path: Path | str, rows: Rows, values: Sequence[Any], what: str) -> None:
    for row, value in enumerate(values):
        if not str(value).strip():
            raise DatasetError(
                f"{path}, {rows.where(row)}: no {what}. Remedy: fill it in, or remove this row"
            )


def _files(folder: Path, path: Path | str, rows: Rows, notes: list[str]) -> list[File]:
    _check_filled(path, rows, rows.items, "path")
    files = [File.from_path(folder / str(item)) for item in rows.items]
    missing = [
        f"{file.path} ({rows.where(row)})" for row, file in enumerate(files) if not file.exists
    ]
    if len(missing) == len(files):
        raise DatasetError(
            f"{path}: no image of {counted(len(files), 'row')} exists, such as {missing[0]}. "
            f"Remedy: write the paths relative to {folder}"
        )
    if missing:
        notes.append(f"{counted(len(missing), 'missing image')}: {listed(missing)}")
    return files
