"""CORe50: 50 household objects in 11 sessions that differ in light and background."""

import re
from collections.abc import Collection
from pathlib import Path

from fecam.data._files import listed
from fecam.data._listing import SkippedFiles, iter_images, subfolders
from fecam.data._official import Release, Row, find, rows_dataset, sorted_keys
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

# Not downloaded by program: the archive has neither encryption nor a checksum.
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

    ``root`` is the folder ``core50_128x128`` with ``s1/o1/*.png`` and so on, or its parent. With
    ``categories`` the labels are the 10 categories instead of the 50 objects.
    """
    folder, _ = find("core50", root, RELEASES, download, _PAGE)
    folders = [path.name for path in subfolders(folder)]
    sessions = sorted_keys(name for name in folders if _number("s", name))
    wanted = {f"s{number}" for number in test_sessions}
    unexpected = sorted(wanted - {f"s{number}" for number in range(1, 12)})
    if unexpected:
        raise DatasetError(f"core50: no sessions {listed(unexpected)}. Remedy: give 1 to 11")
    skipped = SkippedFiles()
    rows = []
    for session in sessions:
        for path in subfolders(folder / session, skipped):
            name = _name(path, categories)
            files = iter_images(path, skipped)
            rows += [Row(file, name, session in wanted, session) for file in files]
    present = {row.label for row in rows}
    names = CATEGORIES if categories else [_object(i) for i in range(50)]
    keys = [name for name in names if name in present]
    sizes, notes = (119_894, 44_972, len(names)), skipped.notes()
    return rows_dataset("core50", folder, rows, keys, domains=sessions, official=sizes, notes=notes)


def _number(letter: str, name: str) -> int:
    """Return the number in a name such as s10; 0 if there is none."""
    match = re.fullmatch(rf"{letter}([0-9]{{1,3}})", name)
    return int(match[1]) if match else 0


def _object(index: int) -> str:
    return f"{CATEGORIES[index // _OBJECTS]} {index % _OBJECTS + 1}"


def _name(folder: Path, categories: bool) -> str:
    number = _number("o", folder.name)
    if not 1 <= number <= _OBJECTS * len(CATEGORIES):
        raise DatasetError(f"core50: {folder} is not an object from o1 to o50. Remedy: remove it")
    return CATEGORIES[(number - 1) // _OBJECTS] if categories else _object(number - 1)
