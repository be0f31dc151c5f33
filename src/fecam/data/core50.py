"""CORe50: 50 household objects, filmed in 11 sessions under other light and in other places."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from fecam.data._files import listed
from fecam.data._listing import SkippedFiles, list_images, subfolders
from fecam.data._official import Release, Row, find, rows_dataset, sorted_keys
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

# The archive is served without encryption and without a checksum: not to be fetched by a program.
RELEASES = (Release("core50_128x128", ("s[0-9]*/o[0-9]*/",)),)

CATEGORIES = (
    *("plug adapter", "mobile phone", "scissors", "light bulb", "can"),
    *("glasses", "ball", "marker", "cup", "remote control"),
)
"""The objects o1 to o5 are plug adapters, o6 to o10 mobile phones, and so on."""

TEST_SESSIONS = (3, 7, 10)
_OBJECTS = 5
_PAGE = "https://vlomonaco.github.io/core50 (core50_128x128.zip)"


def load(
    root: Path | str | None = None,
    *,
    download: bool = False,
    categories: bool = False,
    test_sessions: Collection[int] = TEST_SESSIONS,
) -> Dataset:
    """Return CORe50 with its sessions as domains; three of them are for testing.

    Args:
        root: The folder ``core50_128x128`` with ``s1/o1/*.png`` and so on, or the folder around it.
        download: It may not be fetched by a program; True says how to get it.
        categories: Label the 10 categories instead of the 50 objects.
        test_sessions: The sessions for testing; the official ones if not given.
    """
    folder, _ = find("core50", root, RELEASES, download, _PAGE)
    sessions = sorted_keys(one.name for one in subfolders(folder) if _number("s", one.name))
    wanted = {f"s{number}" for number in test_sessions}
    strange = sorted(wanted - {f"s{number}" for number in range(1, 12)})
    if strange:
        raise DatasetError(f"core50: no sessions {listed(strange)}. Remedy: give some of 1 to 11")
    skipped = SkippedFiles()
    rows = []
    for session in sessions:
        for thing in subfolders(folder / session, skipped):
            name = _name(thing, categories)
            files = list_images(thing, skipped)
            rows += [Row(file, name, session in wanted, session) for file in files]
    present = {row.label for row in rows}
    names = CATEGORIES if categories else [_object(at) for at in range(50)]
    return rows_dataset(
        "core50",
        folder,
        rows,
        [name for name in names if name in present],
        domains=sessions,
        official=(119_894, 44_972, len(names)),
        notes=skipped.notes(),
    )


def _number(letter: str, name: str) -> int:
    """Return the number in a name such as s10; 0 if it is none."""
    match = re.fullmatch(rf"{letter}([0-9]{{1,3}})", name)
    return int(match[1]) if match else 0


def _object(at: int) -> str:
    return f"{CATEGORIES[at // _OBJECTS]} {at % _OBJECTS + 1}"


def _name(folder: Path, categories: bool) -> str:
    number = _number("o", folder.name)
    if not 1 <= number <= _OBJECTS * len(CATEGORIES):
        raise DatasetError(f"core50: {folder} is no object from o1 to o50. Remedy: take it out")
    return CATEGORIES[(number - 1) // _OBJECTS] if categories else _object(number - 1)
