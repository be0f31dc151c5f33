"""The images of a folder, in an order that is the same on every machine."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fecam.data.images import IMAGE_SUFFIXES
from fecam.errors import DatasetError
from fecam.validation import counted

_HIDDEN = re.compile(r"\.|__MACOSX$")


@dataclass(frozen=True)
class File:
    """An image file with its size and time of modification (ns); -1 if it does not exist."""

    path: Path
    size: int = -1
    modified: int = -1

    @classmethod
    def from_path(cls, path: Path) -> File:
        """Return the file of a path, which need not exist."""
        try:
            status = path.stat()
        except OSError:
            return cls(path)
        return cls(path, status.st_size, status.st_mtime_ns)

    @property
    def exists(self) -> bool:
        """Whether the file was on disk."""
        return self.size >= 0


HIDDEN = "hidden file", "left out"
OTHERS = "file", "left out, not named as an image"
LOOPS = "link", "left out, back into a folder already read"
UNCLASSIFIED = "image", "left out, in no class folder"


class SkippedFiles(Counter[tuple[str, str]]):
    """Number of skipped files, by reason."""

    def notes(self) -> tuple[str, ...]:
        """Return a note for each reason."""
        return tuple(
            f"{counted(self[noun, reason], noun)} {reason}"
            for noun, reason in (HIDDEN, OTHERS, LOOPS, UNCLASSIFIED)
            if self[noun, reason]
        )


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Return a sort key by which ``item2`` comes before ``item10``; case is compared last.

    >>> sorted(["b10", "b9", "A1"], key=natural_key)
    ['A1', 'b9', 'b10']
    """
    # Digits are compared by length, then as text: as numbers, but of any length.
    pieces: list[str | tuple[int, str]] = list(re.split(r"([0-9]+)", name.casefold()))
    for i in range(1, len(pieces), 2):
        digits = str(pieces[i]).lstrip("0")
        pieces[i] = (len(digits), digits)
    return pieces, name


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in natural order; integers as numbers.

    >>> sorted_names(["2", "10", "-1", "2"]), sorted_names(["cat", "ant"])
    (('-1', '2', '10'), ('ant', 'cat'))
    """
    distinct = set(names)
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct, key=natural_key))


def existing_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path of a folder, or raise if it is none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    problem = "is a file, not a folder" if folder.exists() else "does not exist"
    raise DatasetError(f"{what}: {folder} {problem}. Remedy: give the path of a folder")


def subfolders(folder: Path, skipped: SkippedFiles | None = None) -> list[Path]:
    """Return the folders in a folder, without hidden ones; files are counted as skipped."""
    skipped = SkippedFiles() if skipped is None else skipped
    folders = []
    for entry in _entries(folder):
        if _HIDDEN.match(entry.name):
            skipped[HIDDEN] += 1
        elif _is(entry.is_dir):
            folders.append(folder / entry.name)
        else:
            skipped[UNCLASSIFIED if is_image(entry.name) else OTHERS] += 1
    return folders


def iter_images(folder: Path, skipped: SkippedFiles | None = None) -> Iterable[File]:
    """Yield the images in a folder and its subfolders, one folder at a time."""
    skipped = SkippedFiles() if skipped is None else skipped
    # Links cannot loop: each folder is read once, and its parents never.
    seen = {_identity(above) for above in (folder, *folder.absolute().parents)}
    return _walk(folder, seen, skipped)


def _walk(folder: Path, seen: set[tuple[int, int]], skipped: SkippedFiles) -> Iterable[File]:
    for entry in _entries(folder):
        path = folder / entry.name
        if _HIDDEN.match(entry.name):
            skipped[HIDDEN] += 1
        elif _is(entry.is_dir):
            identity = _identity(path)
            if identity in seen:
                skipped[LOOPS] += 1
            else:
                seen.add(identity)
                yield from _walk(path, seen, skipped)
        elif is_image(entry.name) and _is(entry.is_file):  # not a pipe or dangling link
            status = entry.stat()
            yield File(path, status.st_size, status.st_mtime_ns)
        else:
            skipped[OTHERS] += 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: natural_key(entry.name))
    except OSError as error:
        raise DatasetError(
            f"the folder {folder} cannot be read: {error.strerror}. Remedy: check its permissions"
        ) from None


def _is(check: Callable[[], bool]) -> bool:
    """Return whether an entry is a folder or a file; a link to itself is neither."""
    try:
        return check()
    except OSError:
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def is_image(name: str) -> bool:
    """Return whether a file name is that of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
