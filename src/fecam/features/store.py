"""A cache of features on disk, by key.

A set of features is a folder named by its key. The process that holds its lock writes it under
another name and renames it when it is complete and on disk, so no reader finds an incomplete set.
An interrupted run resumes at its last checkpoint.
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
from fecam.files import sync, write_atomically

Rows = NDArray[np.float32]

DEFAULT_LIMIT = 20 * 10**9
"""Maximum bytes of a store without a limit of its own."""
CHECKPOINT_S = 5.0
"""Seconds between two checkpoints of a run."""
_FEATURES, _KEPT, _ABOUT, _PROGRESS = "features.npy", "kept.npy", "about.json", "progress.json"
_PARTIAL, _TRASH = ".partial-", ".trash-"


@dataclass(frozen=True)
class CacheEntry:
    """A set of features in a store, with its size and the time of its last use (Unix time)."""

    key: str
    about: Mapping[str, Any]
    bytes: int
    used: float


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """A complete set of features; ``kept`` has the index of the item of each row."""

    features: Rows
    kept: NDArray[np.int64]
    about: Mapping[str, Any]


class FeatureStore:
    """A folder of features; the least recently used are removed beyond a limit."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder() / "features"

    def find(self, key: str) -> StoredFeatures | None:
        """Return the features of a key, memory-mapped, or None."""
        path = self.folder / key
        try:
            about = json.loads((path / _ABOUT).read_text())
            kept = np.load(path / _KEPT, allow_pickle=False)
            features = np.load(path / _FEATURES, mmap_mode="r", allow_pickle=False)
            if len(kept) != len(features) or "skipped" not in about:
                raise ValueError("its files do not belong together")
            with suppress(OSError):  # a read-only cache can still be read
                os.utime(path / _ABOUT)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise FecamError(
                f"the cached features in {path} cannot be read ({error}). "
                f"Remedy: fecam cache remove {key}"
            ) from error
        return StoredFeatures(features, kept, about)

    @contextmanager
    def writer(
        self, key: str, count: int, width: int, about: Mapping[str, Any]
    ) -> Iterator[FeatureWriter | None]:
        """Lock a key and yield a writer; None if another process has written the features."""
        with _write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f".{key}.lock")
            lock.acquire()
        try:
            if self.find(key) is not None:
                yield None
                return
            if (self.folder / key).exists():  # one of its files was removed
                self._discard(self.folder / key)
            writer = FeatureWriter(self.folder / f"{_PARTIAL}{key}", count, width, about)
            try:
                yield writer
            except BaseException:
                with suppress(FecamError):  # the run resumes here
                    writer.save()
                raise
            else:
                if not writer.is_empty:
                    writer.finish(self.folder / key)
            finally:
                writer.close()
        finally:
            lock.release()

    def entries(self) -> list[CacheEntry]:
        """Return all readable sets of features, the most recently used first."""
        entries = []
        for path in self._folders():
            with suppress(OSError, ValueError):
                about = json.loads((path / _ABOUT).read_text())
                used = (path / _ABOUT).stat().st_mtime
                size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
                entries.append(CacheEntry(path.name, about, size, used))
        return sorted(entries, key=lambda entry: -entry.used)

    def _folders(self) -> list[Path]:
        """Return the folders of all sets, including damaged ones."""
        return [path for path in sorted(self.folder.glob("*/")) if not path.name.startswith(".")]

    def unfinished(self) -> list[Path]:
        """Return the folders of runs that were interrupted or are in progress."""
        return sorted(self.folder.glob(f"{_PARTIAL}*")) if self.folder.is_dir() else []

    def remove(self, key: str) -> None:
        """Remove a set; processes that have it open keep their copy."""
        keys = [path.name for path in self._folders()]
        if key not in keys:
            raise FecamError(
                f"no features with the key {key!r} in {self.folder}. "
                f"Available: {', '.join(keys) or 'none'}"
            )
        self._discard(self.folder / key)

    def clear(self) -> int:
        """Remove everything that no process is writing; return the number of complete sets."""
        folders = self._folders()
        for path in folders:
            self._discard(path)
        for partial in self.unfinished():
            lock = FileLock(self.folder / f".{partial.name.removeprefix(_PARTIAL)}.lock", timeout=0)
            with suppress(TimeoutError), lock:
                self._discard(partial)
        return len(folders)

    @property
    def limit(self) -> int:
        """Maximum bytes of the store."""
        try:
            return int((self.folder / "limit").read_text())
        except (OSError, ValueError):
            return DEFAULT_LIMIT

    @limit.setter
    def limit(self, value: int) -> None:
        with _write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "limit", str(value))

    def shrink(self, keep: str | None = None) -> list[CacheEntry]:
        """Remove and return the least recently used sets beyond the limit, except ``keep``."""
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        removed = []
        for entry in reversed(entries):
            if total <= self.limit:
                break
            if entry.key != keep:
                with suppress(FecamError):  # not permitted: try the next
                    self._discard(self.folder / entry.key)
                    removed.append(entry)
                    total -= entry.bytes
        return removed

    def _discard(self, path: Path) -> None:
        # Renamed first: a reader must not find a folder whose files disappear one by one.
        trash = self.folder / f"{_TRASH}{uuid.uuid4().hex}"
        with _write_errors(self.folder), suppress(FileNotFoundError):
            path.rename(trash)
        for folder in self.folder.glob(f"{_TRASH}*"):
            shutil.rmtree(folder, ignore_errors=True)


class FeatureWriter:
    """Writes a set of features in order; ``done`` items are processed, ``skipped`` are unreadable.

    It writes to a file, not to mapped memory: a full disk then raises an error instead of ending
    the process.
    """

    def __init__(self, partial: Path, count: int, width: int, about: Mapping[str, Any]) -> None:
        self._folder, self._about = partial, dict(about)
        self.count, self.width = count, width
        self.done = 0
        self.skipped: list[tuple[int, str]] = []
        self._saved_at = time.monotonic()
        with _write_errors(partial.parent):
            if not self._resume():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                np.lib.format.open_memmap(
                    partial / _FEATURES, "w+", np.dtype(np.float32), (count, width)
                )
            self._offset = self._mapped().offset
            self._file = (partial / _FEATURES).open("r+b")

    def _resume(self) -> bool:
        """Continue from the checkpoint of an earlier run, if it fits."""
        try:
            state = json.loads((self._folder / _PROGRESS).read_text())
            done = int(state["done"])
            skipped = [(int(row), str(reason)) for row, reason in state["skipped"]]
            shape = self._mapped().shape
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if shape != (self.count, self.width) or not 0 <= done <= self.count:
            return False
        self.done, self.skipped = done, skipped
        return True

    @property
    def is_empty(self) -> bool:
        """Whether no item can be read; then there is no set to complete."""
        return len(self.skipped) == self.count

    def add(self, features: Rows, end: int, skipped: list[tuple[int, str]]) -> None:
        """Append the features of the items up to ``end``, except those skipped."""
        row = self.done - len(self.skipped)
        with _write_errors(self._folder.parent):
            self._file.seek(self._offset + 4 * row * self.width)
            self._file.write(np.ascontiguousarray(features, np.float32).data)
        self.skipped += skipped
        self.done = end
        if time.monotonic() - self._saved_at > CHECKPOINT_S:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, after the features before it are on disk."""
        state = {"done": self.done, "skipped": self.skipped}
        with _write_errors(self._folder.parent):
            self._flush()
            write_atomically(self._folder / _PROGRESS, json.dumps(state))
        self._saved_at = time.monotonic()

    def close(self) -> None:
        """Close the file; errors of writing were raised before."""
        with suppress(OSError):
            self._file.close()

    def finish(self, path: Path) -> None:
        """Complete the set and move it to where readers find it."""
        with _write_errors(path.parent):
            self._flush()
            kept = np.delete(np.arange(self.count), [row for row, _ in self.skipped])
            if self.skipped:
                compact = self._folder / f"whole-{_FEATURES}"
                np.save(compact, self._mapped()[: len(kept)])
                os.replace(compact, self._folder / _FEATURES)
            np.save(self._folder / _KEPT, kept)
            about = {**self._about, "skipped": self.skipped, "made": time.time()}
            write_atomically(self._folder / _ABOUT, json.dumps(about))
            (self._folder / _PROGRESS).unlink(missing_ok=True)
            for name in (_FEATURES, _KEPT, _ABOUT, "."):
                _sync(self._folder / name)
            self._folder.rename(path)
            _sync(path.parent)

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _mapped(self) -> np.memmap[Any, np.dtype[np.float32]]:
        rows: np.memmap[Any, Any] = np.lib.format.open_memmap(self._folder / _FEATURES, "r")
        return rows


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        raise FecamError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}). "
            "Remedy: free some space there, or set FECAM_CACHE to another folder"
        ) from error


def _sync(path: Path) -> None:
    with suppress(OSError):  # some systems cannot open a folder
        sync(path)
