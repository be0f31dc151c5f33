"""What lies in a folder: its images, in an order that is the same on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fecam.data.images import IMAGE_SUFFIXES
from fecam.errors import DatasetError

_HIDDEN = re.compile(r"\.|__MACOSX$")


@dataclass(frozen=True)
class File:
    """An image file, and what tells whether it has changed."""

    path: Path
    size: int = -1
    modified: int = -1
    """In nanoseconds; -1, as is the size, if there is no such file."""

    @classmethod
    def at(cls, path: Path) -> File:
        """Return the file of this path, be it there or not."""
        try:
            found = path.stat()
        except OSError:
            return cls(path)
        return cls(path, found.st_size, found.st_mtime_ns)

    @property
    def is_there(self) -> bool:
        """Whether it was found on disk."""
        return self.size >= 0


@dataclass
class SkippedFiles:
    """How much was passed over, and why."""

    hidden: int = 0
    others: int = 0
    loops: int = 0
    loose: int = 0

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each reason there was."""
        reasons = (
            (self.hidden, "hidden files or folders left out"),
            (self.others, "files left out that are no images by their name"),
            (self.loops, "links left out that lead back into a folder already read"),
            (self.loose, "images left out that lie in no class folder"),
        )
        return tuple(f"{count} {reason}" for count, reason in reasons if count)


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Sort key by which ``item2`` comes before ``item10``, and capitals count last.

    >>> sorted(["b10", "b9", "A1"], key=natural_key)
    ['A1', 'b9', 'b10']
    """
    # Digits are compared by length, then as text: as numbers, but of any length.
    pieces: list[str | tuple[int, str]] = list(re.split(r"([0-9]+)", name.casefold()))
    for at in range(1, len(pieces), 2):
        digits = str(pieces[at]).lstrip("0")
        pieces[at] = (len(digits), digits)
    return pieces, name


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in natural order; whole numbers as numbers.

    >>> sorted_names(["2", "10", "-1", "2"]), sorted_names(["cat", "ant"])
    (('-1', '2', '10'), ('ant', 'cat'))
    """
    distinct = set(names)
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct, key=natural_key))


def existing_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path of a folder, or raise an error that says what is there instead."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    found = "is a file, not a folder" if folder.exists() else "does not exist"
    raise DatasetError(f"{what}: {folder} {found}. Remedy: give the path of a folder")


def subfolders(folder: Path, skipped: SkippedFiles | None = None) -> list[Path]:
    """Return the folders in a folder, without hidden ones; loose files are counted."""
    skipped = SkippedFiles() if skipped is None else skipped
    found = []
    for entry in _entries(folder):
        if _HIDDEN.match(entry.name):
            skipped.hidden += 1
        elif _is(entry.is_dir):
            found.append(folder / entry.name)
        elif is_image(entry.name):
            skipped.loose += 1
        else:
            skipped.others += 1
    return found


def list_images(folder: Path, skipped: SkippedFiles | None = None) -> list[File]:
    """Return the images in a folder and the folders in it, in natural order."""
    return list(iter_images(folder, skipped))


def iter_images(folder: Path, skipped: SkippedFiles | None = None) -> Iterable[File]:
    """Yield the images in a folder and the folders in it, one folder at a time."""
    skipped = SkippedFiles() if skipped is None else skipped
    # Each folder is read once, by whatever links it is reached, and those above it never: no loops.
    seen = {_identity(above) for above in (folder, *folder.absolute().parents)}
    return _walk(folder, seen, skipped)


def _walk(folder: Path, seen: set[tuple[int, int]], skipped: SkippedFiles) -> Iterable[File]:
    for entry in _entries(folder):
        path = folder / entry.name
        if _HIDDEN.match(entry.name):
            skipped.hidden += 1
        elif _is(entry.is_dir):
            identity = _identity(path)
            if identity in seen:
                skipped.loops += 1
            else:
                seen.add(identity)
                yield from _walk(path, seen, skipped)
        elif is_image(entry.name) and _is(entry.is_file):  # Not a pipe, nor a link to nothing.
            found = entry.stat()
            yield File(path, found.st_size, found.st_mtime_ns)
        else:
            skipped.others += 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: natural_key(entry.name))
    except OSError as error:
        raise DatasetError(
            f"the folder {folder} cannot be read: {error.strerror}. Remedy: look at its permissions"
        ) from None


def _is(what: Callable[[], bool]) -> bool:
    """Whether an entry is a folder, or a file; a link that leads to itself is neither."""
    try:
        return what()
    except OSError:
        return False


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
