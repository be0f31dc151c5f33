"""The kind of items that a user passes, and features as an array."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Kind
from fecam.data.images import IMAGE_SUFFIXES
from fecam.errors import InputError


def as_sequence(items: Any) -> Any:
    """Return the items, or raise if they are a single item."""
    if isinstance(items, (str, bytes, os.PathLike)) or not hasattr(items, "__len__"):
        raise InputError(f"items must be a list, not {type(items).__name__}; write [item] for one.")
    return items


def kind_of(items: Any) -> Kind:
    """Return the kind of the items, by the first: numbers are features, paths are images."""
    items = as_sequence(items)
    first: Any = items[0] if len(items) else None
    if isinstance(first, str) and Path(first).suffix.lower() not in IMAGE_SUFFIXES:
        return "texts"
    if isinstance(first, (str, bytes, os.PathLike)) or hasattr(first, "getbands"):
        return "images"
    shape = np.shape(first) if not hasattr(first, "shape") else tuple(first.shape)
    return "images" if len(shape) >= 2 else "features"


def as_rows(items: Any, width: int | None) -> NDArray[Any]:
    """Return features as a two-dimensional array of floats."""
    items = items.detach().cpu().numpy() if hasattr(items, "detach") else items
    is_double = getattr(items, "dtype", None) == np.float64
    try:
        rows = np.asarray(items, np.float64 if is_double else np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "this model has no encoder, so items must be rows of numbers. Encode them as you did "
            "for learning."
        ) from None
    if rows.ndim != 2 or (width is not None and rows.shape[1] != width):
        columns = "" if width is None else f" with {width} columns"
        raise InputError(
            f"features of shape {rows.shape} must be a 2-D array{columns}. "
            "Encode items as you did for learning."
        )
    return rows
