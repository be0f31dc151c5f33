"""Rows of ``.csv`` and ``.tsv`` files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.table_columns import (
    Columns,
    Options,
    Rows,
    choose,
    fill_features,
    not_finite,
)
from fecam.errors import DatasetError

_BLOCK = 4096


def read_csv(path: Path, given: Options, delimiter: str | None) -> Rows:
    """Read a table with a line of column names and a line for each row."""
    mark = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(path, csv.reader(file, delimiter=mark, strict=True))
            _, header = next(lines, (0, []))
            if not header:
                raise DatasetError(f"{path} is empty. Remedy: a first line with column names")
            names = [name.strip() for name in header]
            if len(names) == 1 and delimiter is None and any(c in names[0] for c in ";\t|"):
                raise DatasetError(
                    f"{path} has one column, {names[0]!r}, with {mark!r} between columns. "
                    "Remedy: say what stands between them, such as delimiter=';'"
                )
            if not given.labelled and all(map(_is_number, names)):
                raise DatasetError(
                    f"{path} begins with a line of numbers, where the names of its columns should "
                    "be. Remedy: put a line of names before it"
                )
            columns = choose(path, names, given)
            return _rows(path, names, columns, lines)
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). "
            "Remedy: save it as UTF-8"
        ) from None


def _lines(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's first line and its cells; blank lines are passed over."""
    while True:
        number = reader.line_num + 1  # type: ignore[attr-defined]
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DatasetError(
                f"{path}, line {number}: {error}. Remedy: look at its quotation marks"
            ) from None
        if cells is None:
            return
        if cells:
            yield number, cells


def _rows(
    path: Path, names: list[str], columns: Columns, lines: Iterator[tuple[int, list[str]]]
) -> Rows:
    place = {name: at for at, name in enumerate(names)}
    labels: list[str] = []
    splits: list[str] = []
    domains: list[str] = []
    numbers: list[int] = []
    values: list[str] = []
    blocks: list[NDArray[np.float32]] = []
    while block := list(islice(lines, _BLOCK)):
        for number, cells in block:
            if len(cells) != len(names):
                raise DatasetError(
                    f"{path}, line {number}: {len(cells)} cells where the first line names "
                    f"{len(names)} columns. Remedy: correct this line"
                )
            labels.append(cells[place[columns.label]].strip() if columns.label is not None else "")
            splits.append(cells[place[columns.split]] if columns.split is not None else "")
            domains.append(cells[place[columns.domain]].strip() if columns.domain else "")
        numbers += [number for number, _ in block]
        if columns.kind == "features":
            blocks.append(_features(path, columns, place, block))
        else:
            values += [cells[place[columns.values[0]]] for _, cells in block]
    width = len(columns.values)
    items = np.concatenate(blocks) if blocks else np.empty((0, width), np.float32)
    return Rows(
        columns.kind,
        items if columns.kind == "features" else values,
        labels if columns.label is not None else None,
        lambda row: f"line {numbers[row]}",
        splits if columns.split is not None else None,
        domains if columns.domain is not None else None,
        notes=columns.notes(),
    )


def _features(
    path: Path, columns: Columns, place: dict[str, int], block: list[tuple[int, list[str]]]
) -> NDArray[np.float32]:
    at = [place[name] for name in columns.values]
    numbers = np.empty((len(block), len(at)), np.float64)
    for row, (number, cells) in enumerate(block):
        try:
            numbers[row] = [float(cells[column]) for column in at]
        except ValueError:
            bad = [name for name in columns.values if not _is_number(cells[place[name]])]
            raise DatasetError(
                f"{path}, line {number}: {cells[place[bad[0]]]!r} in column {bad[0]!r} is not a "
                f"number ({listed(bad)}). Remedy: correct it, or name the columns of numbers with "
                "features=[...]"
            ) from None
    target = np.empty(numbers.shape, np.float32)
    wrong = fill_features(target, numbers, 0)
    if wrong is not None:
        raise not_finite(path, f"line {block[wrong][0]}")
    return target


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
