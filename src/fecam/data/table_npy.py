"""Rows of features in a ``.npy`` file, which says nothing of labels."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError

import numpy as np

from fecam.data.table_columns import Rows, empty_features, fill_features, not_finite
from fecam.errors import DatasetError

_BLOCK = 4096


def read_npy(path: Path) -> Rows:
    """Read numbers (count, width); (width,) is one row."""
    try:
        # A map of the file: what the header declares has to be there, and no memory is asked for.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OverflowError, SyntaxError, TokenError, Warning) as error:
        raise DatasetError(
            f"{path} cannot be read as npy: {error}. Remedy: np.save(path, features)"
        ) from None
    if not isinstance(array, np.memmap) or array.dtype.kind not in "fiub" or array.ndim > 2:
        what = f"of type {array.dtype}, shape {array.shape}" if hasattr(array, "dtype") else "a zip"
        raise DatasetError(f"{path} is {what}. Remedy: np.save(path, features), one row an item")
    rows = np.atleast_2d(array)
    target = empty_features(path, *rows.shape)
    for start in range(0, len(rows), _BLOCK):
        wrong = fill_features(target, rows[start : start + _BLOCK], start)
        if wrong is not None:
            raise not_finite(path, f"row {wrong + 1}")
    return Rows("features", target, None, lambda row: f"row {row + 1}")
