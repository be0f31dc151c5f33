"""Downloads: a file is complete and verified, or it does not exist."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from fecam.data.unpacking import unpack
from fecam.errors import DatasetError

__all__ = ["Progress", "fetch", "report_downloads", "unpack"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the total, which is None if the server does not send it."""

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
    download resumes: within this call, and in later ones if there is a checksum (in hexadecimal).
    The URL must be ``https``, or ``http`` of this machine. ``timeout`` is in seconds without data;
    ``progress`` is called after each block, by default that of `report_downloads`.
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
            _fetch_part(
                _Source(url, timeout, progress or _watcher.get()), part, checksums, attempts, remedy
            )
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


@dataclass
class _Source:
    url: str
    timeout: float
    progress: Progress | None
    etag: str | None = None
    """ETag of the first response: parts of two versions must not be joined."""


def _fetch_part(
    source: _Source, part: Path, checksums: dict[str, str], attempts: int, remedy: str
) -> None:
    """Download the part until it is complete and verified."""
    for attempt in range(attempts):
        if not checksums and source.etag is None:
            part.unlink(missing_ok=True)  # an old part cannot be verified
        resumed = part.exists()
        try:
            _receive(source, part)
        except _Interrupted as failure:
            if isinstance(failure, _RangeError) and checksums:
                pass  # the part may be complete: verify it
            elif attempt + 1 == attempts:
                raise
            else:
                continue
        try:
            _verify(part, checksums, remedy, source.url)
        except DatasetError:
            part.unlink()
            # The old part may be of another version of the file: start again.
            if not resumed or attempt + 1 == attempts:
                raise
            continue
        return


class _Interrupted(_Failed):
    """A failure after which another attempt may succeed."""


class _RangeError(_Interrupted):
    """The server has no bytes after those of the part."""


def _receive(source: _Source, part: Path) -> None:
    """Request the missing bytes of the part and append them."""
    size = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fecam", "Accept-Encoding": "identity"}
    if size:
        headers["Range"] = f"bytes={size}-"
        headers |= {"If-Range": source.etag} if source.etag else {}
    request = urllib.request.Request(source.url, headers=headers)
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(request, timeout=source.timeout) as response:
            # Strong tags only: a weak one does not guarantee equal bytes.
            tag = response.headers.get("ETag", "")
            source.etag = tag if tag.startswith('"') else None
            start = _start(response)
            if start not in {0, size}:
                raise _Failed(f"the server sent bytes from {start} on, not from {size}")
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() else None
            _copy(response, part, start, total, source.progress)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                source.etag = None
                raise _RangeError("the server has no more bytes than the part") from None
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
    host = parts.hostname or ""
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        return
    raise DatasetError(
        f"{url!r} is not downloaded: only https is permitted. Remedy: give an https address, or "
        "download it by hand"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verify(path: Path, checksums: dict[str, str], remedy: str, url: str | None = None) -> None:
    for algorithm, value in checksums.items():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
        if digest != value.lower():
            what = f"could not download {url}: the file" if url else str(path)
            raise DatasetError(f"{what} has the {algorithm} {digest}, not {value}. {remedy}")
