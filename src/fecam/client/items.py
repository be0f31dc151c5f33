"""Items as the service reads them: fields of a request."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.images import png
from fecam.data.items import as_rows, kind_of
from fecam.errors import InputError, ItemError


def as_field(items: Any) -> dict[str, Any]:
    """Return items under the name of their kind.

    >>> as_field(["a small bird"]), as_field([[1, 2]]), as_field([b"GIF"])
    ({'texts': ['a small bird']}, {'features': [[1.0, 2.0]]}, {'images': [b'GIF']})
    """
    kind = kind_of(items)
    if kind == "features":
        return {kind: rows_of(items).tolist()}
    return {kind: list(items) if kind == "texts" else list(map(_content, items))}


def rows_of(items: Any) -> NDArray[Any]:
    """Return rows of features; raise for NaN and infinity, which JSON does not have."""
    rows = as_rows(items, None)
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(f"row {row}, column {column} is {rows[row, column]}. Leave such rows out.")
    return rows


def _content(item: Any) -> bytes:
    """Return the bytes of an image, unchanged, because the service finds duplicates by them."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    if isinstance(item, (str, os.PathLike)):
        try:
            return Path(item).read_bytes()
        except OSError as error:
            raise ItemError(item, error.strerror or str(error)) from None
    return png(item)
