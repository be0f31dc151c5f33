"""Rows of ``.csv``, ``.tsv`` and ``.txt`` files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.table_columns import FEATURES_OPTION, Columns, Options, Rows, as_features, choose
from fecam.errors import DatasetError

_BLOCK = 4096


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
    index = {name: i for i, name in enumerate(names)}
    is_vector = columns.kind == "features"
    kept = {columns.label, columns.split, columns.domain, *(() if is_vector else columns.values)}
    texts: dict[str, list[str]] = {name: [] for name in kept if name is not None}
    numbers: list[int] = []
    blocks: list[NDArray[np.float32]] = []
    while block := list(islice(lines, _BLOCK)):
        for number, cells in block:
            if len(cells) != len(names):
                raise DatasetError(
                    f"{path}, line {number}: {len(cells)} cells where the first line names "
                    f"{len(names)} columns. Remedy: correct this line"
                )
            for name, column in texts.items():
                cell = cells[index[name]]
                column.append(cell if name in columns.values else cell.strip())
        numbers += [number for number, _ in block]
        if is_vector:
            blocks.append(_features(path, columns, index, block))
    features = np.concatenate(blocks or [np.empty((0, len(columns.values)), np.float32)])
    return columns.rows(features if is_vector else None, texts, lambda row: f"line {numbers[row]}")


def _features(
    path: Path, columns: Columns, index: dict[str, int], block: list[tuple[int, list[str]]]
) -> NDArray[np.float32]:
    positions = [index[name] for name in columns.values]
    numbers = np.empty((len(block), len(positions)), np.float64)
    for row, (number, cells) in enumerate(block):
        try:
            numbers[row] = [float(cells[i]) for i in positions]
        except ValueError:
            bad = [name for name in columns.values if not _is_number(cells[index[name]])]
            raise DatasetError(
                f"{path}, line {number}: {cells[index[bad[0]]]!r} in column {bad[0]!r} is not a "
                f"number ({listed(bad)}). Remedy: correct it, or name the columns of numbers with "
                + FEATURES_OPTION
            ) from None
    return as_features(path, [numbers], lambda row: f"line {block[row][0]}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
