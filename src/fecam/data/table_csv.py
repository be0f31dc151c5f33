"""Rows of ``.csv``, ``.tsv`` and ``.txt`` files."""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fecam.data._files import listed
from fecam.data.table_columns import FEATURES_OPTION, Columns, Options, Rows, as_features, choose
from fecam.errors import DatasetError
from fecam.labels import LabelKind

_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")


def read_lines(path: Path) -> Rows:
    """Read the lines of a text file that are not blank, without labels."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = [(number, line.strip()) for number, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None
    return Rows("texts", [line for _, line in lines], None, lambda row: f"line {lines[row][0]}")


def read_csv(path: Path, given: Options, delimiter: str | None) -> Rows:
    """Read a table with a line of column names and a line for each row."""
    separator = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(path, csv.reader(file, delimiter=separator, strict=True))
            _, header = next(lines, (0, []))
            if not header:
                raise DatasetError(f"{path} is empty. Remedy: a first line with column names")
            names = [name.strip() for name in header]
            if len(names) == 1 and delimiter is None and any(c in names[0] for c in ";\t|"):
                raise DatasetError(
                    f"{path} has one column, {names[0]!r}, with {separator!r} between columns. "
                    "Remedy: give the delimiter, such as delimiter=';'"
                )
            if not given.labeled and all(map(_is_number, names)):
                raise DatasetError(
                    f"{path} starts with a line of numbers instead of column names. Remedy: add a "
                    "first line with column names"
                )
            return _rows(path, names, choose(path, names, given), lines)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DatasetError:
    return DatasetError(
        f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Remedy: save it as UTF-8"
    )


def _lines(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line of each row and its cells, without blank lines."""
    while True:
        number = reader.line_num + 1  # type: ignore[attr-defined]
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DatasetError(
                f"{path}, line {number}: {error}. Remedy: check its quotation marks"
            ) from None
        if cells is None:
            return
        if cells:
            yield number, cells


def _rows(
    path: Path, names: list[str], columns: Columns, lines: Iterator[tuple[int, list[str]]]
) -> Rows:
    is_vector = columns.kind == "features"
    kept = columns.about if is_vector else [*columns.about, *columns.values]
    texts: dict[str, list[str]] = {name: [] for name in kept}
    numbers: list[int] = []
    vectors = [np.empty((0, len(columns.values)), np.float32)]

    def where(row: int) -> str:
        return f"line {numbers[row]}"

    for number, values in lines:
        if len(values) != len(names):
            raise DatasetError(
                f"{path}, line {number}: {len(values)} cells where the first line names "
                f"{len(names)} columns. Remedy: correct this line"
            )
        numbers.append(number)
        cells = dict(zip(names, values, strict=True))
        for name, column in texts.items():
            column.append(cells[name] if name in columns.values else cells[name].strip())
        if is_vector:
            try:
                vector = np.array([[float(cells[name]) for name in columns.values]])
            except ValueError:
                bad = [name for name in columns.values if not _is_number(cells[name])]
                raise DatasetError(
                    f"{path}, line {number}: {cells[bad[0]]!r} in column {bad[0]!r} is not a "
                    f"number ({listed(bad)}). Remedy: correct it, or name the columns of numbers "
                    f"with {FEATURES_OPTION}"
                ) from None
            with np.errstate(over="ignore"):
                vectors.append(vector.astype(np.float32))
    features = as_features(path, vectors, where) if is_vector else None
    return columns.rows(features, texts, where, _label_kind(texts.get(columns.label or "", ())))


def _label_kind(labels: Iterable[str]) -> LabelKind:
    """Return "integers" if all labels are, without a plus sign or leading zeros."""
    all_integers = all(map(_INTEGER.fullmatch, set(labels)))
    return "integers" if all_integers else "strings"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
