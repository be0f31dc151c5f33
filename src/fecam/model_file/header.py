"""What is looked at of a file before SQLite sees it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from fecam.model_file.descriptors import beginning, identity
from fecam.model_rows import file_error

APPLICATION_ID = 0x4665434D  # "FeCM"
VERSION = 3
"""1 had no scatters of low rank, and raw means in double precision; 2 had one table for all."""

NOT_OURS = "Give the path of a file that FeCAMClassifier.save or `fecam learn` has written."
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def check_header(path: Path) -> tuple[int, int]:
    """The size and the version of a file that begins as ours do; no other is shown to SQLite.

    What is in a write-ahead log beside it counts.
    """
    if identity(path) is None:
        raise file_error("there is no such file.", "Check the path.")
    if not path.is_file():  # opening a pipe, say, would wait for ever
        raise file_error("it is a folder or something else that is not a file.", NOT_OURS)
    log = wal_size(path)  # before and after: meanwhile it may go into the file
    header, size = beginning(path, 100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise file_error("it is not a model file, or only the beginning of one.", NOT_OURS)
    version, application = struct.unpack_from(">I4xI", header, 60)
    if application != APPLICATION_ID:
        raise file_error("it is a database of another program.", NOT_OURS)
    if version > VERSION:
        known = f"this fecam knows versions up to {VERSION}."
        raise file_error(
            f"it has version {version} of the format; {known}", "Upgrade fecam to open it."
        )
    if version < 1 or header[18:20] not in (b"\1\1", b"\2\2"):  # 2 while there is a log beside it
        raise file_error("its header is damaged.")
    page_size, pages = struct.unpack_from(">H10xI", header, 16)
    log = max(log, wal_size(path))
    if size < page_size * pages and not log and not journal_of(path).exists():
        raise file_error(f"it is cut off: {size} of {page_size * pages} bytes are left.")
    return size + log, version


def wal_size(path: Path) -> int:
    """How much of a file is still in its write-ahead log."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except OSError:
        return 0


def is_newer(path: Path) -> bool:
    """Whether a file is a model that a newer version of this program wrote."""
    if identity(path) is None or not path.is_file():
        return False
    header, _ = beginning(path, 100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return False
    version, application = struct.unpack_from(">I4xI", header, 60)
    return bool(application == APPLICATION_ID and version > VERSION)


def journal_of(path: Path) -> Path:
    """Where SQLite writes what it would need to take back an unfinished change."""
    return path.with_name(path.name + "-journal")


def check_journal(path: Path) -> None:
    """Refuse a journal that names another file, which SQLite might delete; ours never do."""
    journal = journal_of(path)
    if not journal.is_file():
        return
    with journal.open("rb") as file:
        if file.seek(0, os.SEEK_END) >= 8:
            file.seek(-8, os.SEEK_END)
            if file.read(8) == _JOURNAL_MAGIC:
                raise file_error(
                    f"the journal beside it, {journal.name}, is not of this program.",
                    "Move that file away.",
                )
