"""Tar and zip archives, treated as hostile."""

from __future__ import annotations

import gzip
import lzma
import os
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from fecam.errors import DatasetError

MAX_BYTES = 1 << 38
"""Archives that unpack to more bytes are rejected."""
MAX_FILES = 5_000_000
"""Archives of more files are rejected."""

_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError)
_BLOCK = 1 << 18
_MAX_PADDING = 1 << 26


def unpack(
    archive: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> Path:
    """Unpack a tar or zip archive into a new folder and return its path.

    Names that lead out of the folder, links to anything but a file of the archive, devices, and
    more bytes or files than allowed are rejected. The folder appears when it is complete.
    """
    source, target = Path(archive).expanduser(), Path(folder).expanduser()
    if not source.is_file():
        raise DatasetError(f"no archive at {source}. Remedy: give the path of a .tar, .tgz or .zip")
    if target.exists():
        raise DatasetError(f"{target} exists already. Remedy: remove it, or unpack elsewhere")
    work = target.with_name(f"{target.name}.unpack-{secrets.token_hex(4)}")
    try:
        work.mkdir(parents=True)
        unpacking = _Unpacking(source, work, max_bytes, max_files)
        if zipfile.is_zipfile(source):
            _unpack_zip(source, unpacking)
        else:
            _unpack_tar(source, unpacking)
        work.rename(target)
    except DatasetError:
        raise
    except (*_DAMAGE, zlib.error, EOFError, ValueError) as error:
        raise DatasetError(
            f"{source} is damaged, or neither a tar nor a zip archive: {error}. "
            "Remedy: download it again"
        ) from None
    except (OSError, NotImplementedError, RuntimeError) as error:
        raise DatasetError(f"{source} cannot be unpacked into {target}: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


@dataclass
class _Unpacking:
    """The state of an unpacking: the folder and what was written."""

    source: Path
    folder: Path
    max_bytes: int
    max_files: int
    total: int = 0
    files: int = 0
    written: dict[PurePosixPath, Path] = field(default_factory=dict)

    def error(self, name: str, problem: str) -> DatasetError:
        return DatasetError(
            f"{self.source} is not unpacked: {name!r} {problem}. Remedy: get the archive from its "
            "publisher"
        )

    def relative(self, name: str) -> PurePosixPath:
        """Return the relative path of a member, or raise if it leads out of the folder."""
        path = PurePosixPath(name)
        odd = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
        if odd or ":" in path.parts[:1]:
            raise self.error(name, "leads out of the folder")
        return path

    def make_folder(self, name: str) -> None:
        self._count(name)
        (self.folder / self.relative(name)).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: IO[bytes]) -> None:
        self._count(name)
        relative = self.relative(name)
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while block := content.read(_BLOCK):
                self.total += len(block)
                if self.total > self.max_bytes:
                    raise self.error(name, f"takes it over {self.max_bytes} bytes")
                file.write(block)
        self.written[relative] = path

    def copy(self, name: str, linked: str) -> None:
        """Write a link as a copy of its target, which must be an earlier file of the archive."""
        try:
            with self.written[self.relative(os.path.normpath(linked))].open("rb") as file:
                self.write(name, file)
        except KeyError:
            raise self.error(name, f"is a link to {linked!r}, which is no earlier file") from None

    def _count(self, name: str) -> None:
        self.files += 1
        if self.files > self.max_files:
            raise self.error(name, f"is one more than {self.max_files} files")


def _unpack_tar(source: Path, unpacking: _Unpacking) -> None:
    with tarfile.open(source) as archive:
        for member in archive:
            name = member.name
            if member.isdir():
                unpacking.make_folder(name)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                with content:
                    unpacking.write(name, content)
            elif member.islnk():
                unpacking.copy(name, member.linkname)
            elif member.issym():
                unpacking.copy(name, os.path.join(os.path.dirname(name), member.linkname))
            else:
                raise unpacking.error(name, "is a device")
        # The checksum of a compressed file is verified when its end is read, after some zeros.
        assert archive.fileobj is not None
        for _ in range(_MAX_PADDING // _BLOCK):
            if not archive.fileobj.read(_BLOCK):
                break


def _unpack_zip(source: Path, unpacking: _Unpacking) -> None:
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                raise unpacking.error(member.filename, "is a link")
            if member.is_dir():
                unpacking.make_folder(member.filename)
            else:
                with archive.open(member) as content:
                    unpacking.write(member.filename, content)
