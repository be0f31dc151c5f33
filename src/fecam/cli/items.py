"""What a person hands to a command: data sets to learn from, items to be judged."""

from __future__ import annotations

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
from fecam.data.catalogue import TABLES, check_options
from fecam.data.image_list import load_files
from fecam.data.table import table_items
from fecam.errors import DatasetError, FecamError, InputError, ItemError

STDIN = "-"
LONGEST_LINE = 1 << 20
"""Of the standard input, in bytes: what never ends must not fill the memory."""

NamedItem = tuple[str, Any]
"""What an item is called, and the item, or why it cannot be read (`ItemError`)."""


# -- to learn from ---------------------------------------------------------------------------------


def load_labeled(
    paths: Sequence[str],
    as_label: str | None,
    root: Path | None,
    download: bool,
    options: Sequence[str] | None,
) -> list[Dataset]:
    """The data sets of paths and names; with a label, the loose images among them are one."""
    loose = [path for path in paths if is_image(path)]
    if as_label is None and loose:
        raise InputError(
            f"{loose[0]} is an image, and nothing says what it shows. Remedy: --as LABEL, or a "
            "folder with a folder for each class"
        )
    found = [load_files(loose, as_label)] if as_label is not None and loose else []
    found += [
        load_dataset(path, root, download, options, as_label)
        for path in dict.fromkeys(paths)
        if not is_image(path)
    ]
    kinds = {one.kind: one.name for one in found}
    if len(kinds) > 1:
        held = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        raise InputError(f"these are {held}, but a model learns one kind. Remedy: one kind a model")
    return found


def check_width(what: object, rows: Any, width: int) -> None:
    """Refuse features of another width than a model has."""
    if rows.shape[1] != width:
        raise InputError(
            f"{what} has {rows.shape[1]} features a row, but this model was taught {width}. "
            "Remedy: features of the encoder that it was taught with"
        )


# -- to be judged ----------------------------------------------------------------------------------


def iter_items(
    paths: Sequence[str], kind: str, width: int, *, texts: bool, options: Mapping[str, Any]
) -> Iterator[Iterable[NamedItem]]:
    """Items in bursts: all that can be had now, without waiting for more of the standard input.

    With ``texts`` the arguments, or the lines of the standard input, are texts themselves.
    """
    if texts and kind != "texts":
        raise InputError(f"--text: this model was taught {kind}, not texts. Remedy: leave it out")
    for path in [] if texts else paths:
        if path != STDIN:
            _refuse(path, kind)
    for is_stdin, some in groupby(paths, key=lambda path: path == STDIN):
        if not is_stdin:
            yield chain.from_iterable(
                [(path, path)] if texts else _of_path(path, kind, width, options) for path in some
            )
            continue
        for lines in _read_available(sys.stdin.buffer):
            if kind == "features":
                yield [_numbers(at, line, width) for at, line in lines]
            elif texts:
                yield [_text(at, line) for at, line in lines]
            else:
                yield _named_in(lines, kind, width, options)


def _refuse(path: str, kind: str) -> None:
    """Say at once what cannot be judged; an image that is not there is one unreadable item."""
    place = os.path.expanduser(path)
    if kind == "images" and (os.path.isdir(place) or not path.lower().endswith(TABLES)):
        return
    if os.path.isdir(place) or not path.lower().endswith(TABLES):
        what = "is a folder" if os.path.isdir(place) else "is no table by its name"
        raise InputError(
            f"{path} {what}, but this model was taught {kind}. Remedy: a file that ends in one of "
            f"{', '.join(TABLES)}{', or --text' if kind == 'texts' else ''}"
        )
    if not os.path.exists(place):
        raise InputError(f"{path} does not exist. Remedy: give the path of a file")


def _of_path(path: str, kind: str, width: int, options: Mapping[str, Any]) -> Iterator[NamedItem]:
    place = Path(path).expanduser()
    if kind == "images" and place.is_dir():
        none = True
        for file in iter_images(place):
            none = False
            yield str(file.path), file.path
        if none:
            raise DatasetError(f"{path} holds no images. Remedy: a folder with images in it")
    elif path.lower().endswith(TABLES):
        yield from _of_table(place, kind, width, options)
    else:
        yield path, place


def _of_table(path: Path, kind: str, width: int, options: Mapping[str, Any]) -> Iterator[NamedItem]:
    found = table_items(path, **check_options(str(path), table_items, options))
    if found.kind != kind:
        raise InputError(f"{path} holds {found.kind}, but this model was taught {kind}")
    if kind == "features":
        check_width(path, found.items, width)
    for at, item in enumerate(found.items):
        name = str(item) if isinstance(item, Path) else f"{path} {found.where(at)}"
        yield name, item


def _named_in(
    lines: Iterable[tuple[int, bytes]], kind: str, width: int, options: Mapping[str, Any]
) -> Iterator[NamedItem]:
    """The items of paths that somebody else wrote: a bad one harms no other."""
    for _, line in lines:
        path = os.fsdecode(line)
        try:
            _refuse(path, kind)
            yield from _of_path(path, kind, width, options)
        except FecamError as error:
            yield path, ItemError(path, str(error))


def _text(at: int, line: bytes) -> NamedItem:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"line {at}", ItemError(f"line {at}", f"not UTF-8 text ({error.reason})")
    return text, text


def _numbers(at: int, line: bytes, width: int) -> NamedItem:
    name = f"line {at}"
    cells = line.decode(errors="replace").split(",")
    try:
        row = [float(cell) for cell in cells]
    except ValueError as error:
        return name, ItemError(name, str(error))
    if len(row) != width:
        return name, ItemError(name, f"{len(row)} numbers, where the model has {width} features")
    if not all(math.isfinite(number) and abs(number) < 3e38 for number in row):
        return name, ItemError(name, "a number is NaN, infinite or too large for 32 bits")
    return name, np.asarray(row, np.float32)


def _read_available(source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Lines that are not blank, numbered from 1: as many at a time as have come."""
    rest, number = b"", 0
    while True:
        # One read gives what a pipe holds: who waits for an answer before the next line gets one.
        chunk: bytes = source.read1(1 << 16)  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        if len(rest) > LONGEST_LINE:
            raise InputError(
                f"line {number + 1} of the standard input has more than {LONGEST_LINE:,} bytes. "
                "Remedy: one path, text or row a line"
            )
        found = [(number + at, line.strip(b"\r")) for at, line in enumerate(lines, 1)]
        number += len(lines)
        if found := [(at, line) for at, line in found if line.strip()]:
            yield found
        if not chunk:
            return
