"""Pickles of containers and numeric arrays, read without calling other code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.errors import DatasetError


def read_pickle(path: Path) -> Any:
    """Return the content of a pickle: containers, strings, numbers and arrays."""
    try:
        with path.open("rb") as file:
            # Files of Python 2, whose strings are bytes.
            return _Arrays(file, encoding="bytes").load()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from None
    # A damaged or hostile pickle can raise any error.
    except Exception as error:
        raise DatasetError(
            f"{path} is not the pickle it should be: {error or type(error).__name__}. "
            "Remedy: get the archive from where it was published"
        ) from None


class _Arrays(pickle.Unpickler):
    """Resolves only the three names of a numeric array, each to a function of this module."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return _empty_array
        if module == "numpy" and name == "ndarray":
            return _NDARRAY
        if module == "numpy" and name == "dtype":
            return _dtype
        raise pickle.UnpicklingError(f"{module}.{name} is not permitted")


# Replaces the class, which a pickle could call with any size.
_NDARRAY = object()


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Return the array that the pickle then fills, whatever size it requests first."""
    return np.empty(0, np.int8)


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    code = code.decode() if isinstance(code, bytes) else code
    if not isinstance(code, str) or code[:1] not in "biuf" or len(code) > 2:
        raise pickle.UnpicklingError(f"an array of type {code!r} is not permitted")
    # Always a copy: the pickle sets its byte order, and numpy's own must not change.
    return np.dtype(code, copy=True)
