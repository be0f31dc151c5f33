"""The lists of samples that few-shot papers publish: a text file per session, a sample per line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError

PathLike = str | os.PathLike[str]


def read_shot_lists(data: Dataset, folder: PathLike) -> dict[int, list[int]]:
    """Return the rows that published lists name, by label.

    A line is the index of a training image in the official order, as for CIFAR-100, or the path of
    an image, of which only the file and its folder count.

    Parameters
    ----------
    data : Dataset
        The data set; its items are files if the lists have paths.
    folder : path
        A folder with a file ``session_2.txt`` and so on; its other ``.txt`` files are read too.

    Returns
    -------
    dict of int to list of int
        For ``few_shot(given=...)``; labels in the order of the lists.

    Raises
    ------
    SettingsError
        If there is no list, or it cannot be read.
    DatasetError
        If a line names no training row.
    """
    files = sorted(Path(folder).glob("*.txt"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise SettingsError(
            f"given={os.fspath(folder)!r} must be a folder with lists such as session_2.txt."
        )
    by_name = _rows_by_file_name(data)
    lists: dict[int, list[int]] = {}
    for path in files:
        try:
            lines = path.read_text("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} cannot be read: {error}. Remedy: get it again.") from None
        for number, line in enumerate(map(str.strip, lines), start=1):
            if line:
                row = _row_of(data, line, by_name, f"{path}, line {number}")
                lists.setdefault(int(data.labels[row]), []).append(row)
    return lists


def _rows_by_file_name(data: Dataset) -> Mapping[str, list[tuple[str, int]]]:
    """Return the folder and the row of each training image, by file name."""
    paths: Sequence[Path] = getattr(data.items, "paths", ())
    rows: dict[str, list[tuple[str, int]]] = {}
    for row in data.train.tolist() if paths else ():
        rows.setdefault(paths[row].name, []).append((paths[row].parent.name, row))
    return rows


def _row_of(
    data: Dataset, line: str, by_name: Mapping[str, list[tuple[str, int]]], where: str
) -> int:
    if line.isdecimal():
        if int(line) < len(data.train):
            return int(data.train[int(line)])
        raise DatasetError(
            f"{where}: {line} is not a training row of {data.name!r}, which has {len(data.train)}. "
            "Remedy: use the lists of this data set"
        )
    path = PurePosixPath(line)
    rows = by_name.get(path.name, [])
    if len(rows) > 1:
        rows = [(folder, row) for folder, row in rows if folder == path.parent.name]
    if len(rows) != 1:
        raise DatasetError(
            f"{where}: {line!r} is not one training image of {data.name!r}. Remedy: use the lists "
            "of this data set, whose items are files"
        )
    return rows[0][1]
