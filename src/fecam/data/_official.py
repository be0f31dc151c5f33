"""Shared code of the loaders of public data sets: locating files, class names, counts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fecam.data._files import files_dataset, listed, positions, readable, split_off
from fecam.data._listing import File, SkippedFiles, iter_images, natural_key, subfolders
from fecam.data.dataset import Dataset
from fecam.data.download import fetch, unpack
from fecam.data.paths import data_folder
from fecam.errors import DatasetError
from fecam.validation import counted

WNID = "n" + "[0-9]" * 8
"""Glob pattern of the class folders of ImageNet."""


@dataclass(frozen=True)
class Release:
    """A published version of a data set."""

    folder: str
    """Folder that its archive unpacks to."""
    required: tuple[str, ...]
    """Glob patterns of the content of that folder."""
    url: str = ""
    """URL of the archive; empty if it cannot be downloaded."""
    md5: str = ""

    @property
    def archive(self) -> str:
        """File name of the archive."""
        return self.url.rsplit("/", 1)[-1]

    def missing(self, folder: Path) -> list[str]:
        """Return the patterns without a match in a folder."""
        return [pattern for pattern in self.required if next(folder.glob(pattern), None) is None]


@dataclass(frozen=True)
class Row:
    """A labeled image of a data set."""

    file: File
    label: str
    for_test: bool
    domain: str = ""


def find(
    name: str,
    root: str | os.PathLike[str] | None,
    releases: Sequence[Release],
    download: bool,
    page: str,
) -> tuple[Path, Release]:
    """Return the folder of a data set and its release.

    ``root`` is that folder, its parent, the archive, or the folder with the archive, which is then
    verified and unpacked beside itself; None for the default folder. The first release is the one
    to download; ``page`` is where a person finds it.
    """
    path = data_folder() / name if root is None else Path(root).expanduser()
    by_hand = f"get it from {page} and unpack it into {path}, or name its folder as root (--root)"
    if path.is_file():
        archives = listed([release.archive for release in releases if release.url])
        releases = [release for release in releases if release.archive == path.name]
        if not releases:
            raise DatasetError(
                f"{name}: {path} is a file, but not {archives or 'a folder'}. Remedy: unpack it, "
                "and give its folder as root"
            )
        path = path.parent
    result = _complete(path, releases)
    if result is None:
        archived = (item for item in releases if item.url and (path / item.archive).exists())
        release = next(archived, releases[0] if download else None)
        if release is None:
            raise _absent(name, path, releases, by_hand)
        if not release.url:
            raise DatasetError(f"{name} cannot be downloaded by a program. Remedy: {by_hand}")
        archive = fetch(release.url, path / release.archive, md5=release.md5)
        unpack(archive, path / release.folder)
        result = _complete(path, releases)
    if result is None:
        raise _absent(name, path, releases, by_hand)
    return result


def _complete(path: Path, releases: Sequence[Release]) -> tuple[Path, Release] | None:
    for release in releases:
        inner = path / release.folder
        for folder in (path, inner, inner / release.folder):
            if folder.is_dir() and not release.missing(folder):
                return folder, release
    return None


def _absent(name: str, path: Path, releases: Sequence[Release], by_hand: str) -> DatasetError:
    # Of the existing folders, name the one that lacks the smallest share of a release.
    candidates = [
        (len(release.missing(folder)) / len(release.required), i, folder)
        for i, release in enumerate(releases)
        for folder in (path, path / release.folder)
        if folder.is_dir()
    ]
    if not candidates:
        problem = f"{path} does not exist"
    else:
        _, i, folder = min(candidates, key=lambda candidate: candidate[:2])
        problem = f"{folder} lacks {listed(releases[i].missing(folder))}"
    option = " download=True (--download), or" if releases[0].url else ""
    return DatasetError(f"{name}: {problem}. Remedy:{option} {by_hand}")


def tree_rows(folder: Path, skipped: SkippedFiles, for_test: bool = False) -> list[Row]:
    """Return the images of a folder of class folders."""
    return [
        Row(file, path.name, for_test)
        for path in subfolders(folder, skipped)
        for file in iter_images(path, skipped)
    ]


def split_rows(rows: Sequence[Row], share: float, seed: int) -> list[Row]:
    """Mark a share of each class for testing, chosen by the names of the files alone."""
    names = [row.file.path.name for row in rows]
    is_test = split_off([row.label for row in rows], names, share, seed)
    return [replace(row, for_test=bool(flag)) for row, flag in zip(rows, is_test, strict=True)]


def files_by_name(folder: Path, skipped: SkippedFiles) -> dict[str, File]:
    """Return the images in a folder by their relative path."""
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}. Remedy: unpack the whole archive")
    files = iter_images(folder, skipped)
    return {file.path.relative_to(folder).as_posix(): file for file in files}


def check_all_present(list_path: Path, folder: Path, missing: Sequence[str]) -> None:
    """Raise if files that a list names are missing from a folder."""
    if missing:
        raise DatasetError(
            f"{counted(len(missing), 'image')} of {list_path} not found in {folder}: "
            f"{listed(missing)}. "
            "Remedy: unpack the whole archive again"
        )


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}. Remedy: unpack it again") from None


def word_names(path: Path, keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the class names in a file of keys and words, and notes on missing ones."""
    if not path.is_file():
        return {}, [f"the classes are named by their keys, because there is no {path.name}"]
    wanted = set(keys)
    pairs = (line.split(maxsplit=1) for line in read_lines(path))
    words = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0] in wanted}
    missing = [key for key in keys if key not in words]
    return words, [f"{path.name} has no name for {listed(missing)}"] if missing else []


def rows_dataset(
    name: str,
    root: Path,
    rows: Sequence[Row],
    keys: Sequence[str],
    *,
    words: Mapping[str, str] | None = None,
    domains: Sequence[str] = (),
    official: tuple[int, int, int] | None = None,
    notes: Iterable[str] = (),
) -> Dataset:
    """Return the data set of these rows.

    ``keys`` and ``domains`` are the labels and domains of the rows in the order of their indices,
    ``words`` the class names to show instead of the keys. ``official`` has the published numbers of
    training images, test images and classes; a note reports a difference.
    """
    if not rows:
        raise DatasetError(f"{name}: {root} holds no images. Remedy: unpack the whole archive")
    is_test = np.array([row.for_test for row in rows])
    counts = (int((~is_test).sum()), int(is_test.sum()), len(keys))
    notes = [*notes, *note_sizes(counts, official or counts)]
    return files_dataset(
        name,
        root,
        [row.file for row in rows],
        positions([row.label for row in rows], keys),
        _distinct(keys, words or {}),
        is_test=is_test,
        domains=positions([row.domain for row in rows], domains) if domains else None,
        domain_names=domains,
        notes=notes,
    )


def note_sizes(counts: tuple[int, int, int], official: tuple[int, int, int]) -> list[str]:
    """Return a note if numbers of training images, test images and classes are not the official."""
    actual = "{} images for training, {} for testing, {} classes".format(*counts)
    expected = "the official set has {}, {} and {}".format(*official)
    return [] if counts == official else [f"{actual}; {expected}"]


def sorted_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of classes in natural order."""
    return sorted(keys, key=natural_key)


def _distinct(keys: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return the class names; the key is appended to a name that is not unique."""
    names = [words.get(key, readable(key)) for key in keys]
    return [
        f"{name} ({key})" if names.count(name) > 1 else name
        for name, key in zip(names, keys, strict=True)
    ]
