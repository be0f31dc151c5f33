"""The public boundary: what users hand in, made into arrays that the maths can trust.

NumPy arrays, lists and data frames go through scikit-learn's own checks, arrays of other libraries
(torch, ...) through the same questions asked in the array API. Either way an error names the
argument, the offending value, where it stands and what to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from fecam.core.arrays import Array, detached, is_array, namespace, to_numpy
from fecam.core.transforms import Transform, outside_domain
from fecam.errors import InputError


def check_features(X: Any, *, name: str = "X") -> Array:
    """``X`` as a two-dimensional floating-point array without NaN and infinity."""
    if is_array(X):
        array = _check_foreign(detached(X), name)
    else:
        array = check_array(X, dtype=(np.float64, np.float32), ensure_all_finite=False)
    _check_finite(array, name)
    return array


def _check_foreign(X: Array, name: str) -> Array:
    xp = namespace(X)
    if getattr(X, "is_sparse", False):
        raise InputError(f"{name} is a sparse tensor. Use {name}.to_dense().")
    if X.ndim != 2:
        hint = " Use X[None, :] for a single sample." if X.ndim == 1 else ""
        raise InputError(
            f"{name} must have two dimensions (samples, features), "
            f"not shape {tuple(X.shape)}.{hint}"
        )
    if 0 in X.shape:
        raise InputError(
            f"{name} is empty: shape {tuple(X.shape)}. Give at least one sample and one feature."
        )
    if xp.isdtype(X.dtype, "complex floating"):
        raise InputError(f"Complex data not supported: {name} has dtype {X.dtype}.")
    if X.dtype in (xp.float32, xp.float64):
        return X
    return xp.astype(X, xp.float32)  # half precision and integers


def _check_finite(X: Array, name: str) -> None:
    xp = namespace(X)
    # One fast pass: a sum is finite only if every term is. Overflow sends us down the slow path,
    # which then finds nothing wrong.
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(X))):
            return
    bad = ~xp.isfinite(X)
    if not bool(xp.any(bad)):
        return
    row, column, value = _first(bad, X)
    kind = "NaN" if np.isnan(value) else "infinity"
    raise InputError(
        f"Input {name} contains {kind} ({value} at row {row}, column {column}; "
        f"{int(xp.sum(xp.astype(bad, xp.int64)))} such values in all). "
        "Remove these rows or repair the encoder that made them."
    )


def _first(mask: Array, X: Array) -> tuple[int, int, float]:
    row, column = np.argwhere(to_numpy(mask))[0]
    return int(row), int(column), float(X[int(row), int(column)])


def check_range(X: Array, transform: Transform, dtype: Any, *, name: str = "X") -> None:
    """Refuse features that the transform, or the precision of the model, cannot take."""
    xp = namespace(X)
    lowest, highest = xp.min(X), xp.max(X)
    power = transform.power
    if power is not None and bool(outside_domain(lowest, power)):
        row, column, value = _first(outside_domain(X, power), X)
        needs = "features above zero" if power <= 0 else "features that are not negative"
        raise InputError(
            f"{name} has {value:g} at row {row}, column {column}, but tukey={power:g} takes only "
            f"{needs}. Make a new model with tukey=None for such features."
        )
    limit = float(xp.finfo(dtype).max) ** 0.2  # squares of sums of squares still fit
    largest = max(float(highest), -float(lowest))
    if largest > limit:
        raise InputError(
            f"{name} has a value of size {largest:.3g}; in {str(dtype).split('.')[-1]} at most "
            f"{limit:.3g} can be worked with. Scale the features down, or make a new model with "
            "dtype='float64'."
        )


def check_labels(y: Any, n_rows: int, *, name: str = "y") -> np.ndarray[Any, Any]:
    """``y`` as a one-dimensional NumPy array of integers or of strings, one a row.

    Truth values become 0 and 1.
    """
    if y is None:
        raise InputError(
            f"This classifier requires {name} to be passed, but the target {name} is None."
        )
    if is_array(y):
        y = to_numpy(y)
    if isinstance(y, (list, tuple)):
        y = np.asarray(y, dtype=object) if _is_mixed(y) else np.asarray(y)
    labels: np.ndarray[Any, Any] = column_or_1d(y, warn=True)
    if labels.shape[0] != n_rows:
        raise InputError(
            f"{name} has {labels.shape[0]} labels but X has {n_rows} samples. Give one label a row."
        )
    if labels.dtype.kind == "O":
        labels = _unboxed(labels, name)
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise InputError(f"Input {name} contains NaN or infinity. Give every sample a label.")
    if labels.dtype.kind not in "iubU":  # of these no question is left, and asking takes long
        check_classification_targets(labels)
    if labels.dtype.kind in "fb":
        labels = labels.astype(np.int64)  # whole numbers, or the line above had refused them
    return labels


def _is_mixed(values: Any) -> bool:
    return len({isinstance(value, str) for value in values}) > 1


def _unboxed(labels: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Python objects as an array of one kind; NumPy alone would turn 1 and "a" into strings."""
    kinds = sorted({type(label).__name__ for label in labels})
    if all(isinstance(label, str) for label in labels):
        return labels.astype(str)
    if all(isinstance(label, (bool, int, np.integer, np.bool_)) for label in labels):
        return np.asarray(labels.tolist())
    raise InputError(
        f"{name} mixes labels of different kinds or of a kind that is no label: "
        f"{', '.join(kinds)}. Use integers or strings throughout."
    )


def kind_of(labels: np.ndarray[Any, Any]) -> str:
    """Whether labels are "strings" or "integers"."""
    return "strings" if labels.dtype.kind in "USO" else "integers"
