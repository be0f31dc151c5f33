"""Features on disk: complete or not there, found by what they were made of.

A set of features is a folder named by its key. It is filled under another name by whoever holds its
lock, and renamed when it is complete and on disk; so no reader ever meets half of one, and a run
that was killed is taken up where it last said how far it had come.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fecam.data.paths import cache_folder
from fecam.errors import FecamError

Rows = NDArray[np.float32]

DEFAULT_LIMIT = 20 * 10**9
"""Bytes that a store may take, unless it was told otherwise."""
_FEATURES, _KEPT, _ABOUT, _PROGRESS = "features.npy", "kept.npy", "about.json", "progress.json"
_PARTIAL, _TRASH = ".partial-", ".trash-"


@dataclass(frozen=True)
class Entry:
    """One set of features in a store."""

    key: str
    about: Mapping[str, Any]
    bytes: int
    used: float
    """When it was last read, in seconds since 1970."""


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """Features that are complete, mapped into memory."""

    features: Rows
    kept: NDArray[np.int64]
    """The items they belong to: all but those that could not be read."""
    about: Mapping[str, Any]


class FeatureStore:
    """A folder of features, the least recently used of which make room for new ones."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder() / "features"

    def find(self, key: str) -> StoredFeatures | None:
        """The features of this key, if they are there."""
        place = self.folder / key
        try:
            about = json.loads((place / _ABOUT).read_text())
            kept = np.load(place / _KEPT, allow_pickle=False)
            features = np.load(place / _FEATURES, mmap_mode="r", allow_pickle=False)
            if len(kept) != len(features) or "skipped" not in about:
                raise ValueError("its files do not belong together")
            with suppress(OSError):  # a cache that may only be read is of use, too
                os.utime(place / _ABOUT)
        except (FileNotFoundError, NotADirectoryError):
            return None  # never made, or removed meanwhile
        except (OSError, ValueError, TypeError) as error:
            raise FecamError(
                f"the cached features in {place} cannot be read ({error}). "
                f"Remedy: fecam cache remove {key}"
            ) from error
        return StoredFeatures(features, kept, about)

    @contextmanager
    def filling(
        self, key: str, count: int, width: int, about: Mapping[str, Any]
    ) -> Iterator[FeatureWriter | None]:
        """Room for features, held against all others; None if somebody else made them meanwhile."""
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f".{key}.lock")
            lock.acquire()
        try:
            if self.find(key) is not None:
                yield None
                return
            if (self.folder / key).exists():  # somebody took a file out of it
                self._discard(self.folder / key)
            partial = self.folder / f"{_PARTIAL}{key}"
            filling = FeatureWriter(partial, count, width, about)
            try:
                yield filling
            except BaseException:
                with suppress(FecamError):  # a run that was interrupted loses nothing
                    filling.save()
                raise
            else:
                filling.finish(self.folder / key)
            finally:
                filling.close()
        finally:
            lock.release()

    def entries(self) -> list[Entry]:
        """All sets of features, the most recently used first."""
        found = []
        for place in self._places():
            with suppress(OSError, ValueError):
                about = json.loads((place / _ABOUT).read_text())
                used = (place / _ABOUT).stat().st_mtime
                found.append(Entry(place.name, about, _bytes_of(place), used))
        return sorted(found, key=lambda one: -one.used)

    def _places(self) -> list[Path]:
        """The folders of all sets, damaged ones among them."""
        return [one for one in sorted(self.folder.glob("*/")) if not one.name.startswith(".")]

    def unfinished(self) -> list[Path]:
        """What runs left that were ended before they were done, or that are still going on."""
        return sorted(self.folder.glob(f"{_PARTIAL}*")) if self.folder.is_dir() else []

    def remove(self, key: str) -> None:
        """Remove one set; readers that have it open keep what they have."""
        keys = [one.name for one in self._places()]
        if key not in keys:
            known = ", ".join(keys) or "none at all"
            raise FecamError(
                f"no features with the key {key!r} in {self.folder}; there are {known}"
            )
        self._discard(self.folder / key)

    def clear(self) -> int:
        """Remove everything that no run is writing; how many sets were removed."""
        places = self._places()
        for one in places:
            self._discard(one)
        for partial in self.unfinished():
            lock = FileLock(self.folder / f".{partial.name.removeprefix(_PARTIAL)}.lock", timeout=0)
            with suppress(TimeoutError), lock:
                self._discard(partial)
        return len(places)

    @property
    def limit(self) -> int:
        """How many bytes the store may take."""
        try:
            return int((self.folder / "limit").read_text())
        except (OSError, ValueError):
            return DEFAULT_LIMIT

    @limit.setter
    def limit(self, value: int) -> None:
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(self.folder / "limit", str(value).encode())

    def shrink(self, keep: str | None = None) -> list[Entry]:
        """Remove what was not used for longest until the rest is within the limit."""
        entries = self.entries()
        total = sum(one.bytes for one in entries)
        removed = []
        for one in reversed(entries):
            if total <= self.limit:
                break
            if one.key != keep:
                with suppress(FecamError):  # another's: the next one may go
                    self._discard(self.folder / one.key)
                    removed.append(one)
                    total -= one.bytes
        return removed

    def _discard(self, place: Path) -> None:
        # Renamed first: a reader must not meet a folder from which files disappear one by one.
        trash = self.folder / f"{_TRASH}{uuid.uuid4().hex}"
        with _writing(self.folder), suppress(FileNotFoundError):  # gone already
            place.rename(trash)
        for one in self.folder.glob(f"{_TRASH}*"):
            shutil.rmtree(one, ignore_errors=True)


class FeatureWriter:
    """A set of features on its way, from the first item to the last.

    It is written as a file and not through mapped memory: a full disk is then an error that can be
    told, and not the end of the process.
    """

    def __init__(self, partial: Path, count: int, width: int, about: Mapping[str, Any]) -> None:
        self._folder, self._about = partial, dict(about)
        self.count, self.width = count, width
        self.done = 0
        """How many items have been dealt with."""
        self.skipped: list[tuple[int, str]] = []
        """Items that could not be read, and why."""
        self._said = time.monotonic()
        with _writing(partial.parent):
            if not self._take_up():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                np.lib.format.open_memmap(
                    partial / _FEATURES, "w+", np.dtype(np.float32), (count, width)
                )
            self._start = _mapped(partial).offset
            self._file = (partial / _FEATURES).open("r+b")

    def _take_up(self) -> bool:
        """Go on with what an earlier run left, if it fits."""
        try:
            state = json.loads((self._folder / _PROGRESS).read_text())
            rows = _mapped(self._folder)
            done, skipped = (
                int(state["done"]),
                [(int(at), str(why)) for at, why in state["skipped"]],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if rows.shape != (self.count, self.width) or not 0 <= done <= self.count:
            return False
        self.done, self.skipped = done, skipped
        return True

    def add(
        self, features: Rows, kept: list[int], upto: int, skipped: list[tuple[int, str]]
    ) -> None:
        """The features of some more items; with them all items before ``upto`` are dealt with."""
        at = self.done - len(self.skipped)
        with _writing(self._folder.parent):
            self._file.seek(self._start + 4 * at * self.width)
            self._file.write(np.ascontiguousarray(features, np.float32).data)
        self.skipped += skipped
        self.done = upto
        if time.monotonic() - self._said > 5:
            self.save()

    def save(self) -> None:
        """Say how far it has come, once that is on disk."""
        state = {"done": self.done, "skipped": self.skipped}
        with _writing(self._folder.parent):
            self._flush()
            _write_whole(self._folder / _PROGRESS, json.dumps(state).encode())
        self._said = time.monotonic()

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):  # what could not be written was told before
            self._file.close()

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self, place: Path) -> None:
        """Put it all where readers look for it."""
        with _writing(place.parent):
            self._finish(place)

    def _finish(self, place: Path) -> None:
        left_out = {at for at, _ in self.skipped}
        kept = np.asarray([at for at in range(self.count) if at not in left_out], dtype=np.int64)
        self._flush()
        if left_out:
            whole = self._folder / f"whole-{_FEATURES}"
            np.save(whole, _mapped(self._folder)[: len(kept)])
            os.replace(whole, self._folder / _FEATURES)
        np.save(self._folder / _KEPT, kept)
        about = {**self._about, "skipped": self.skipped, "made": time.time()}
        _write_whole(self._folder / _ABOUT, json.dumps(about).encode())
        (self._folder / _PROGRESS).unlink(missing_ok=True)
        for name in (_FEATURES, _KEPT, _ABOUT):
            _sync(self._folder / name)
        _sync(self._folder)
        self._folder.rename(place)
        _sync(place.parent)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """What the system will not write becomes an error that names the place and the remedy."""
    try:
        yield
    except OSError as error:
        raise FecamError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}). "
            "Remedy: make room there, or set FECAM_CACHE to another folder"
        ) from error


def _mapped(folder: Path) -> np.memmap[Any, np.dtype[np.float32]]:
    rows: np.memmap[Any, np.dtype[np.float32]] = np.lib.format.open_memmap(folder / _FEATURES, "r")
    return rows


def _write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that a reader sees the old one or the new one."""
    unfinished = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with suppress(OSError):  # not every system lets a folder be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
