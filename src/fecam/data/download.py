"""Downloads and archives: a file or folder is complete and verified, or it does not exist."""

import gzip
import hashlib
import http.client
import ipaddress
import lzma
import os
import secrets
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from fecam.errors import DatasetError

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the total, which is None if the server does not send it."""

MAX_BYTES = 1 << 38
"""Archives that unpack to more bytes are rejected."""
MAX_FILES = 5_000_000
"""Archives of more files are rejected."""
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError)
_MAX_PADDING = 1 << 26
_BLOCK = 1 << 18
_watcher: ContextVar[Progress | None] = ContextVar("watcher", default=None)


@contextmanager
def report_downloads(progress: Progress) -> Iterator[None]:
    """Report every download in this block to ``progress``."""
    token = _watcher.set(progress)
    try:
        yield
    finally:
        _watcher.reset(token)


def fetch(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    md5: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
) -> Path:
    """Download a file and return its path; an existing file is only verified.

    The file is written beside the target under another name, verified, then renamed. An interrupted
    download resumes if there is a checksum (in hexadecimal). The URL must be ``https``, or ``http``
    of this machine. ``timeout`` is in seconds without data; ``progress`` is called after each
    block, by default that of `report_downloads`.
    """
    target = Path(path).expanduser()
    checksums = {name: value for name, value in (("sha256", sha256), ("md5", md5)) if value}
    if target.exists():
        _verify(target, checksums, "Remedy: remove it, or give the path of another")
        return target
    remedy = f"Remedy: download it by hand and put the file at {target}"
    part = target.with_name(target.name + ".part")
    _check_address(url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Only one process may write the file; the lock ends with its process.
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=0):
            for attempt in range(1, attempts + 1):
                if not checksums:
                    part.unlink(missing_ok=True)  # it may be of another version of the file
                resumed = part.exists()
                try:
                    _receive(url, part, timeout, progress or _watcher.get())
                    _verify(part, checksums, remedy, url)
                    break
                except _Interrupted:
                    if attempt == attempts:
                        raise
                except DatasetError:
                    part.unlink(missing_ok=True)
                    if not resumed or attempt == attempts:  # else the old part may be the reason
                        raise
            part.replace(target)
    except Timeout:
        raise DatasetError(
            f"could not download {url}: another process is writing to {part}. Remedy: wait for it"
        ) from None
    except _Failed as failure:
        raise DatasetError(f"could not download {url}: {failure}. {remedy}") from None
    except OSError as error:
        raise DatasetError(
            f"could not download {url} to {target}: {error.strerror or error}. {remedy}"
        ) from None
    return target


class _Failed(Exception):
    """The reason why a download failed."""


class _Interrupted(_Failed):
    """A failure after which another attempt may succeed."""


def _receive(url: str, part: Path, timeout: float, progress: Progress | None) -> None:
    """Request the missing bytes of the part and append them."""
    size = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fecam", "Accept-Encoding": "identity"}
    if size:
        headers["Range"] = f"bytes={size}-"
    request = urllib.request.Request(url, headers=headers)
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(request, timeout=timeout) as response:
            start = _start(response)
            if start not in {0, size}:
                raise _Failed(f"the server sent bytes from {start} on, not from {size}")
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() else None
            _copy(response, part, start, total, progress)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and size:
                return  # there are no more bytes: the part may be complete
            kind = _Interrupted if error.code >= 500 or error.code == 429 else _Failed
            raise kind(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Interrupted(f"no connection: {error.reason}") from None
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _Interrupted(f"the connection broke: {error or type(error).__name__}") from None


def _start(response: Any) -> int:
    """Return the position in the file of the first byte of the response."""
    if response.status != 206:
        return 0
    span = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    if not span.isdecimal():
        raise _Failed("the server did not send the range of the response")
    return int(span)


def _copy(
    response: Any, part: Path, start: int, total: int | None, progress: Progress | None
) -> None:
    done = start
    with part.open("r+b" if part.exists() else "wb") as file:
        file.seek(start)
        file.truncate()
        while block := response.read(_BLOCK):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise _Interrupted(f"the response ended after {done} of {total} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to permitted addresses only."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    try:
        is_local = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_local = parts.hostname == "localhost"
    if parts.scheme == "https" or (parts.scheme == "http" and is_local):
        return
    raise DatasetError(
        f"{url!r} is not downloaded: only https is permitted. Remedy: give an https address, or "
        "download it by hand"
    )


def _verify(path: Path, checksums: dict[str, str], remedy: str, url: str | None = None) -> None:
    for algorithm, value in checksums.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
        if digest != value.lower():
            what = f"could not download {url}: the file" if url else str(path)
            raise DatasetError(f"{what} has the {algorithm} {digest}, not {value}. {remedy}")


def unpack(
    archive: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> Path:
    """Unpack a tar or zip archive, treated as hostile, into a new folder and return its path.

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
        members = _zip_members if zipfile.is_zipfile(source) else _tar_members
        _write_members(members(source), work, max_bytes, max_files)
        work.rename(target)
    except _Hostile as error:
        raise DatasetError(
            f"{source} is not unpacked: {error}. Remedy: get the archive from its publisher"
        ) from None
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


class _Hostile(Exception):
    """The reason why an archive is rejected."""


_Member = tuple[str, IO[bytes] | str | None]
"""The name of a member, and its content; the target of a link, or None for a folder."""


def _write_members(
    members: Iterable[_Member], folder: Path, max_bytes: int, max_files: int
) -> None:
    written: set[PurePosixPath] = set()
    total = 0
    for count, (name, content) in enumerate(members, 1):
        if count > max_files:
            raise _Hostile(f"{name!r} is one more than {max_files} files")
        relative = _relative(name, name)
        path = folder / relative
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        if isinstance(content, str):  # a link is written as a copy of its target
            linked = _relative(os.path.normpath(content), name)
            if linked not in written:
                raise _Hostile(f"{name!r} is a link to {content!r}, which is no earlier file")
            content = (folder / linked).open("rb")
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, path.open("wb") as file:
            while block := content.read(_BLOCK):
                total += len(block)
                if total > max_bytes:
                    raise _Hostile(f"{name!r} takes it over {max_bytes} bytes")
                file.write(block)
        written.add(relative)


def _relative(path: str, name: str) -> PurePosixPath:
    """Return the path inside the folder, or raise if it leads out of it."""
    relative = PurePosixPath(path)
    odd = relative.is_absolute() or ".." in relative.parts or "\\" in path or "\0" in path
    if odd or ":" in relative.parts[:1]:
        raise _Hostile(f"{name!r} leads out of the folder")
    return relative


def _tar_members(source: Path) -> Iterator[_Member]:
    with tarfile.open(source) as archive:
        for member in archive:
            if member.isdir():
                yield member.name, None
            elif member.isfile():
                yield member.name, archive.extractfile(member)
            elif member.islnk():
                yield member.name, member.linkname
            elif member.issym():
                yield member.name, os.path.join(os.path.dirname(member.name), member.linkname)
            else:
                raise _Hostile(f"{member.name!r} is a device")
        # The checksum of a compressed file is verified when its end is read, after some zeros.
        assert archive.fileobj is not None
        for _ in range(_MAX_PADDING // _BLOCK):
            if not archive.fileobj.read(_BLOCK):
                break


def _zip_members(source: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _Hostile(f"{member.filename!r} is a link")
            yield member.filename, None if member.is_dir() else archive.open(member)
