"""The lines of a ``.txt`` file, a text each, which says nothing of labels."""

from __future__ import annotations

from pathlib import Path

from fecam.data.table_columns import Rows
from fecam.errors import DatasetError


def read_lines(path: Path) -> Rows:
    """Read the lines that hold more than white space."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            found = [(at, line.strip()) for at, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). "
            "Remedy: save it as UTF-8"
        ) from None
    return Rows("texts", [line for _, line in found], None, lambda row: f"line {found[row][0]}")
