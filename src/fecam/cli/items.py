"""Inputs of the commands: data sets to learn from, items to predict."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fecam.cli.data import load_dataset
from fecam.data import Dataset
from fecam.data._listing import is_image, iter_images
from fecam.data.catalogue import TABLE_SUFFIXES, check_options
from fecam.data.folder import load_files
from fecam.data.table import table_items
from fecam.errors import DatasetError, FecamError, InputError, ItemError
from fecam.validation import counted

STDIN = "-"
MAX_LINE = 1 << 20
"""Longest line of standard input in bytes; bounds the memory."""

NamedItem = tuple[str, Any]
"""Name of an item, and the item, or the `ItemError` that explains why it cannot be read."""


# -- data sets -------------------------------------------------------------------------------------


def load_labeled(
    paths: Sequence[str],
    as_label: str | None,
    root: Path | None,
    download: bool,
    options: Sequence[str] | None,
) -> list[Dataset]:
    """Return the data sets of paths and names; with a label, single images form one data set."""
    images = [path for path in paths if is_image(path)]
    if as_label is None and images:
        raise InputError(
            f"{images[0]} is an image without a label. Remedy: --as LABEL, or a folder with one "
            "subfolder per class"
        )
    data = [load_files(images, as_label)] if as_label is not None and images else []
    data += [
        load_dataset(path, root, download, options, as_label)
        for path in dict.fromkeys(paths)
        if not is_image(path)
    ]
    kinds = {dataset.kind: dataset.name for dataset in data}
    if len(kinds) > 1:
        listed = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise InputError(
            f"the data are {listed}, but a model learns one kind. Remedy: one model per kind"
        )
    return data


def check_n_features(name: object, rows: Any, n_features: int) -> None:
    """Raise if rows have another number of features than the model."""
    if rows.shape[1] != n_features:
        raise InputError(
            f"{name} has {counted(rows.shape[1], 'feature')} per row, but the model has "
            f"{n_features}. "
            "Remedy: use the same encoder"
        )


# -- items to predict ------------------------------------------------------------------------------


def iter_items(
    paths: Sequence[str], kind: str, width: int, *, texts: bool, options: Mapping[str, Any]
) -> Iterator[Iterable[NamedItem]]:
    """Yield groups of items, or with ``texts`` of texts; of standard input all available lines."""
    if texts and kind != "texts":
        raise InputError(
            f"--text: this model was learned from {kind}, not texts. Remedy: omit --text"
        )
    for path in [] if texts else paths:
        if path != STDIN:
            _check_path(path, kind)
    for is_stdin, group in groupby(paths, key=lambda path: path == STDIN):
        if not is_stdin:
            yield chain.from_iterable(
                [(path, path)] if texts else _of_path(path, kind, width, options) for path in group
            )
            continue
        for lines in _read_available(sys.stdin.buffer):
            if kind == "features":
                yield [_parse_row(number, line, width) for number, line in lines]
            elif texts:
                yield [_decode_text(number, line) for number, line in lines]
            else:
                yield _named_in(lines, kind, width, options)


def _check_path(path: str, kind: str) -> None:
    """Raise for a path of the wrong kind; a missing image is only an unreadable item."""
    is_folder = os.path.isdir(os.path.expanduser(path))
    if is_folder or not path.lower().endswith(TABLE_SUFFIXES):
        if kind == "images":
            return
        what = "is a folder" if is_folder else "is not a table"
        raise InputError(
            f"{path} {what}, but this model was learned from {kind}. Remedy: a file that ends in "
            f"one of {', '.join(TABLE_SUFFIXES)}{', or --text' if kind == 'texts' else ''}"
        )
    if not os.path.exists(os.path.expanduser(path)):
        raise InputError(f"{path} does not exist. Remedy: give the path of a file")


def _of_path(path: str, kind: str, width: int, options: Mapping[str, Any]) -> Iterator[NamedItem]:
    expanded = Path(path).expanduser()
    if kind == "images" and expanded.is_dir():
        empty = True
        for file in iter_images(expanded):
            empty = False
            yield str(file.path), file.path
        if empty:
            raise DatasetError(f"{path} has no images. Remedy: a folder with images in it")
    elif path.lower().endswith(TABLE_SUFFIXES):
        yield from _of_table(expanded, kind, width, options)
    else:
        yield path, expanded


def _of_table(path: Path, kind: str, width: int, options: Mapping[str, Any]) -> Iterator[NamedItem]:
    table = table_items(path, **check_options(str(path), table_items, options))
    if table.kind != kind:
        raise InputError(f"{path} has {table.kind}, but this model was learned from {kind}")
    if kind == "features":
        check_n_features(path, table.items, width)
    for i, item in enumerate(table.items):
        yield str(item) if isinstance(item, Path) else f"{path} {table.where(i)}", item


def _named_in(
    lines: Iterable[tuple[int, bytes]], kind: str, width: int, options: Mapping[str, Any]
) -> Iterator[NamedItem]:
    """Yield the items of paths read from standard input; a bad path is an unreadable item."""
    for _, line in lines:
        path = os.fsdecode(line)
        try:
            _check_path(path, kind)
            yield from _of_path(path, kind, width, options)
        except FecamError as error:
            yield path, ItemError(path, str(error))


def _decode_text(number: int, line: bytes) -> NamedItem:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"line {number}", ItemError(f"line {number}", f"not UTF-8 text ({error.reason})")
    return text, text


def _parse_row(number: int, line: bytes, width: int) -> NamedItem:
    name = f"line {number}"
    try:
        row = [float(cell) for cell in line.decode(errors="replace").split(",")]
    except ValueError as error:
        return name, ItemError(name, str(error))
    if len(row) != width:
        return name, ItemError(
            name, f"{counted(len(row), 'number')}, but the model has {counted(width, 'feature')}"
        )
    if not all(math.isfinite(value) and abs(value) < 3e38 for value in row):
        return name, ItemError(name, "a number is NaN, infinite or too large for 32 bits")
    return name, np.asarray(row, np.float32)


def _read_available(source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yield groups of non-blank lines, numbered from 1: all that are available without waiting."""
    rest, number = b"", 0
    while True:
        # One read returns what the pipe holds, so a program that writes one line gets its answer.
        chunk: bytes = source.read1(1 << 16)  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        if len(rest) > MAX_LINE:
            raise InputError(
                f"line {number + 1} of standard input has more than {MAX_LINE:,} bytes. "
                "Remedy: one path, text or row per line"
            )
        numbered = [(i, line.strip(b"\r")) for i, line in enumerate(lines, number + 1)]
        number += len(lines)
        if group := [(i, line) for i, line in numbered if line.strip()]:
            yield group
        if not chunk:
            return
