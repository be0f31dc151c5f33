"""Files from the network: whole and verified, or not there at all."""

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
"""Called with the bytes that are there and the bytes there will be, if the server says so."""

_BLOCK = 1 << 18
_watcher: ContextVar[Progress | None] = ContextVar("watcher", default=None)


@contextmanager
def report_downloads(progress: Progress) -> Iterator[None]:
    """Have ``progress`` called by every download in this block, whichever loader starts it."""
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
    """Download a file and return its path; one that is there already is verified and kept.

    It is written beside the target under another name, verified, then renamed: no half file is
    ever found under the target's name. A download that broke off goes on where it stopped, later
    too if there is a checksum to tell whether the pieces fit.

    Args:
        url: Of ``https``; ``http`` is taken only from this machine.
        path: Where the file shall be.
        sha256: What it must hash to, in hexadecimal.
        md5: As ``sha256``, for files published with that.
        progress: Called after each block; by default, what `report_downloads` was given.
        timeout: Seconds without an answer after which to give up.
        attempts: How often to try.
    """
    target = Path(path).expanduser()
    wanted = {name: value for name, value in (("sha256", sha256), ("md5", md5)) if value}
    if target.exists():
        _verify(target, wanted, "Remedy: remove it, or give the path of another")
        return target
    remedy = f"Remedy: download it by hand and put the file at {target}"
    part = target.with_name(target.name + ".part")
    _refuse_address(url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two processes must not write to one file; the lock ends with the process that has it.
        with FileLock(target.with_name(f".{target.name}.lock"), timeout=0):
            _fetch_part(
                _Source(url, timeout, progress or _watcher.get()), part, wanted, attempts, remedy
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
    """Why a file could not be had."""


@dataclass
class _Source:
    url: str
    timeout: float
    progress: Progress | None
    etag: str | None = None
    """Of the first answer: a file that changed in between must not be put together of two."""


def _fetch_part(
    source: _Source, part: Path, wanted: dict[str, str], attempts: int, remedy: str
) -> None:
    """Fill the part until it is whole and right."""
    for attempt in range(attempts):
        if not wanted and source.etag is None:
            part.unlink(missing_ok=True)  # Nothing would tell whether an old piece fits.
        resumed = part.exists()
        try:
            _receive(source, part)
        except _BrokenOff as failure:
            if isinstance(failure, _NothingMore) and wanted:
                pass  # All of it may be here already: the checksum knows.
            elif attempt + 1 == attempts:
                raise
            else:
                continue
        try:
            _verify(part, wanted, remedy, source.url)
        except DatasetError:
            part.unlink()
            # An old piece of another version of the file: once more, from its beginning.
            if not resumed or attempt + 1 == attempts:
                raise
            continue
        return


class _BrokenOff(_Failed):
    """Worth another attempt."""


class _NothingMore(_BrokenOff):
    """The server has no bytes after those that are here."""


def _receive(source: _Source, part: Path) -> None:
    """Ask for what is missing of the part and append it."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fecam", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers |= {"If-Range": source.etag} if source.etag else {}
    request = urllib.request.Request(source.url, headers=headers)
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(request, timeout=source.timeout) as answer:
            # Strong tags only: a weak one promises no equal bytes.
            tag = answer.headers.get("ETag", "")
            source.etag = tag if tag.startswith('"') else None
            begins = _begins(answer)
            if begins not in {0, have}:
                raise _Failed(f"the server sent bytes from {begins} on, not from {have}")
            length = answer.headers.get("Content-Length", "")
            total = begins + int(length) if length.isdecimal() else None
            _copy_answer(answer, part, begins, total, source.progress)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                source.etag = None
                raise _NothingMore("the server has no more of it than is here") from None
            kind = _BrokenOff if error.code >= 500 or error.code == 429 else _Failed
            raise kind(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _BrokenOff(f"no connection: {error.reason}") from None
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _BrokenOff(f"the connection broke: {error or type(error).__name__}") from None


def _begins(answer: Any) -> int:
    """Return the byte of the file that the answer begins with."""
    if answer.status != 206:
        return 0
    span = answer.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    if not span.isdecimal():
        raise _Failed("the server did not say which part of the file it sent")
    return int(span)


def _copy_answer(
    answer: Any, part: Path, begins: int, total: int | None, progress: Progress | None
) -> None:
    done = begins
    with part.open("r+b" if part.exists() else "wb") as file:
        file.seek(begins)
        file.truncate()
        while block := answer.read(_BLOCK):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise _BrokenOff(f"the answer ended after {done} of {total} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never to an address that would not have been taken itself."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        _refuse_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_address(url: str) -> None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        return
    raise DatasetError(
        f"{url!r} is not fetched: only https is. Remedy: give an https address, or download it by "
        "hand"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verify(path: Path, wanted: dict[str, str], remedy: str, url: str | None = None) -> None:
    for algorithm, value in wanted.items():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != value.lower():
            what = f"could not download {url}: what came" if url else str(path)
            raise DatasetError(f"{what} has the {algorithm} {found}, not {value}. {remedy}")
