"""Items as the service reads them: JSON, or rows of features."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.images import png
from fecam.data.items import as_rows, kind_of
from fecam.errors import InputError, ItemError


def as_json(items: Any) -> dict[str, list[Any]]:
    """Return items as JSON, under the name of their kind.

    >>> as_json(["a small bird"]), as_json([[1, 2]]), as_json([b"GIF"])
    ({'texts': ['a small bird']}, {'features': [[1.0, 2.0]]}, {'images': ['R0lG']})
    """
    kind = kind_of(items)
    if kind == "features":
        return {kind: rows_of(items).tolist()}
    if kind == "texts":
        return {kind: list(items)}
    return {kind: [base64.b64encode(_content(item)).decode() for item in items]}


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
