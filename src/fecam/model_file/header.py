"""Checks of a file and its journal before SQLite opens them."""

import os
import struct
from pathlib import Path

from fecam.errors import ModelFileError
from fecam.model_file.descriptors import file_id, read_start
from fecam.model_rows import file_error

APPLICATION_ID = 0x4665434D  # "FeCM"
VERSION = 5
"""Version of the format. 1: raw means in float64, no low-rank scatters; 2: no history; 3: no
measured rows, no boolean labels, no projections; 4: no authors of steps."""
OLDEST_READ_IN_PLACE = 3
"""Files of older versions are upgraded in memory to be read."""

NOT_OURS = "Give the path of a file that FeCAMClassifier.save or `fecam learn` has written."
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


class NewerFormatError(ModelFileError):
    """A model file that a newer version of fecam has written."""


def check_header(path: Path) -> tuple[int, int]:
    """Return the size, with that of a write-ahead log, and the format version of a model file."""
    if file_id(path) is None:
        raise file_error("there is no such file.", "Check the path.")
    if not path.is_file():  # opening a pipe would block
        raise file_error("it is a folder or something else that is not a file.", NOT_OURS)
    log = wal_size(path)  # read before and after, because a checkpoint may happen in between
    header, size = read_start(path, 100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise file_error("it is not a model file, or only the beginning of one.", NOT_OURS)
    version, application = struct.unpack_from(">I4xI", header, 60)
    if application != APPLICATION_ID:
        raise file_error("it is a database of another program.", NOT_OURS)
    if version > VERSION:
        raise NewerFormatError(
            f"it has version {version} of the format; this fecam reads versions up to {VERSION}. "
            "Upgrade fecam to open it."
        )
    if version < 1 or header[18:20] not in (b"\1\1", b"\2\2"):  # 2 while in WAL mode
        raise file_error("its header is damaged.")
    page_size, pages = struct.unpack_from(">H10xI", header, 16)
    log = max(log, wal_size(path))
    if size < page_size * pages and not log and not journal_path(path).exists():
        raise file_error(f"it is cut off: {size} of {page_size * pages} bytes are left.")
    return size + log, version


def wal_size(path: Path) -> int:
    """Return the size in bytes of the write-ahead log beside a file."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except OSError:
        return 0


def journal_path(path: Path) -> Path:
    """Return the path of the rollback journal of a file."""
    return path.with_name(path.name + "-journal")


def check_journal(path: Path) -> None:
    """Reject a journal that names a super-journal, which SQLite might delete; ours never do."""
    journal = journal_path(path)
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
