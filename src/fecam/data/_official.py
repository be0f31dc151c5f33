"""What the loaders of public sets share: finding the files, naming the classes, counting."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fecam.data._files import files_dataset, listed, positions, readable, split_off
from fecam.data._listing import File, SkippedFiles, list_images, natural_key, subfolders
from fecam.data.dataset import Dataset
from fecam.data.download import fetch, unpack
from fecam.data.paths import data_folder
from fecam.errors import DatasetError

WNID = "n" + "[0-9]" * 8
"""How the folders of ImageNet's classes are called, as a pattern for file names."""


@dataclass(frozen=True)
class Release:
    """A release in which a set is published."""

    inner: str
    """The folder that its archive unpacks to."""
    needed: tuple[str, ...]
    """Patterns of what lies in that folder."""
    url: str = ""
    """Of the archive; empty if it cannot be fetched."""
    md5: str = ""

    @property
    def archive(self) -> str:
        """The file name of the archive."""
        return self.url.rsplit("/", 1)[-1]

    def missing(self, folder: Path) -> list[str]:
        """What a folder lacks of it."""
        return [one for one in self.needed if next(folder.glob(one), None) is None]


@dataclass(frozen=True)
class Row:
    """An image of a set, and what is known about it."""

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
    """Return the folder of a set and the release it has there.

    The root may be that folder, the folder around it, the archive, or the folder with the archive
    in it, which is then verified and unpacked beside itself.

    Args:
        name: Of the set, for messages and for its usual place.
        root: Where to look; None for the usual place.
        releases: That it may have. The first is the one to download.
        download: Fetch it, if it is not there.
        page: Where a person finds it.
    """
    place = data_folder() / name if root is None else Path(root).expanduser()
    by_hand = f"get it from {page} and unpack it into {place}, or name its folder as root (--root)"
    if place.is_file():
        release = next((release for release in releases if release.archive == place.name), None)
        if release is None:
            known = [release.archive for release in releases if release.url]
            raise DatasetError(
                f"{name}: {place} is a file, but not {listed(known) if known else 'a folder'}. "
                "Remedy: unpack it, and give its folder as root"
            )
        place = place.parent
        if _complete(place, [release]) is None:
            _unpack(place, release)
    found = _complete(place, releases)
    if found is None:
        release = next(
            (release for release in releases if release.url and (place / release.archive).exists()),
            None,
        )
        if release is None and download:
            release = releases[0]
            if not release.url:
                raise DatasetError(f"{name} cannot be downloaded by a program. Remedy: {by_hand}")
        if release is None:
            raise _absent(name, place, releases, by_hand)
        _unpack(place, release)
        found = _complete(place, releases)
    if found is None:
        raise _absent(name, place, releases, by_hand)
    return found


def _complete(place: Path, releases: Sequence[Release]) -> tuple[Path, Release] | None:
    for release in releases:
        for folder in (place, place / release.inner, place / release.inner / release.inner):
            if folder.is_dir() and not release.missing(folder):
                return folder, release
    return None


def _unpack(place: Path, release: Release) -> None:
    unpack(fetch(release.url, place / release.archive, md5=release.md5), place / release.inner)


def _absent(name: str, place: Path, releases: Sequence[Release], by_hand: str) -> DatasetError:
    # The release of which most is there is the one that was meant.
    folders = [
        (len(release.missing(folder)) / len(release.needed), at, folder, release)
        for at, release in enumerate(releases)
        for folder in (place, place / release.inner)
        if folder.is_dir()
    ]
    if not folders:
        what = f"{place} does not exist"
    else:
        _, _, folder, release = min(folders, key=lambda one: one[:2])
        what = f"{folder} lacks {listed(release.missing(folder))}"
    can = " download=True (--download on the command line), or" if releases[0].url else ""
    return DatasetError(f"{name}: {what}. Remedy:{can} {by_hand}")


def tree_rows(folder: Path, skipped: SkippedFiles, for_test: bool = False) -> list[Row]:
    """Return the images of a folder of class folders."""
    return [
        Row(file, one.name, for_test)
        for one in subfolders(folder, skipped)
        for file in list_images(one, skipped)
    ]


def split_rows(rows: Sequence[Row], share: float, seed: int) -> list[Row]:
    """Put a share of each class aside for testing, chosen by the names of the files alone."""
    names = [row.file.path.name for row in rows]
    is_test = split_off([row.label for row in rows], names, share, seed)
    return [replace(row, for_test=bool(flag)) for row, flag in zip(rows, is_test, strict=True)]


def files_by_name(folder: Path, skipped: SkippedFiles) -> dict[str, File]:
    """Return the images in a folder by their path from there."""
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder}. Remedy: unpack the whole archive")
    files = list_images(folder, skipped)
    return {file.path.relative_to(folder).as_posix(): file for file in files}


def refuse_missing(list_path: Path, folder: Path, missing: Sequence[str]) -> None:
    """Raise an error if there are files that a list names and a folder lacks."""
    if missing:
        raise DatasetError(
            f"{len(missing)} images that {list_path} names are not in {folder}: {listed(missing)}. "
            "Remedy: unpack the whole archive again"
        )


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}. Remedy: unpack it again") from None


def word_names(path: Path, keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the names in a file with a key and its words a line, and notes on what it lacks."""
    if not path.is_file():
        return {}, [f"the classes go by their numbers, for there is no {path.name}"]
    wanted = set(keys)
    pairs = (line.split(maxsplit=1) for line in read_lines(path))
    words = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0] in wanted}
    lacking = [key for key in keys if key not in words]
    return words, [f"{path.name} has no name for {listed(lacking)}"] if lacking else []


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

    Args:
        name: Of the set.
        root: The folder from which the paths are seen.
        rows: The images.
        keys: The labels of the rows, in the order of their numbers.
        words: What to call the classes instead.
        domains: The domains of the rows, in the order of their numbers.
        official: The true numbers of images for training, for testing, and of classes; a note says
            if those found differ.
        notes: What else was noticed.
    """
    if not rows:
        raise DatasetError(f"{name}: {root} holds no images. Remedy: unpack the whole archive")
    is_test = np.array([row.for_test for row in rows])
    found = (int((~is_test).sum()), int(is_test.sum()), len(keys))
    notes = list(notes)
    if official is not None and found != official:
        notes.append(
            "{} images for training, {} for testing, {} classes".format(*found)
            + "; the official set has {}, {} and {}".format(*official)
        )
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


def sorted_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of classes in natural order."""
    return sorted(keys, key=natural_key)


def _distinct(keys: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return the names of the classes; two that share a name have their key added."""
    names = [words.get(key, readable(key)) for key in keys]
    return [
        f"{name} ({key})" if names.count(name) > 1 else name
        for name, key in zip(names, keys, strict=True)
    ]
