"""Checks of features and labels that a user passes.

NumPy arrays, lists and data frames are checked by scikit-learn, arrays of other libraries (torch,
...) by the same conditions written in the array API. An error names the argument, the value, its
row and column, and a remedy.
"""

from typing import Any

import numpy as np
from array_api_compat import device
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from fecam.core.arrays import Array, detached, is_array, namespace, to_numpy
from fecam.core.transforms import Transform, outside_domain
from fecam.errors import InputError
from fecam.labels import LabelKind, kind_of_label
from fecam.validation import counted


def check_features(X: Any, *, name: str = "X") -> Array:
    """Return ``X`` as a two-dimensional float array, or raise if it has NaN or infinity."""
    if is_array(X):
        array = _check_array(detached(X), name)
    else:
        array = check_array(X, dtype=(np.float64, np.float32), ensure_all_finite=False)
    _check_finite(array, name)
    return array


def _check_array(X: Array, name: str) -> Array:
    """Return an array of another library than NumPy as float32 or float64."""
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
    # A sum is finite only if every term is. It may overflow, so each value is checked then.
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(X))):
            return
    invalid = ~xp.isfinite(X)
    if not bool(xp.any(invalid)):
        return
    row, column, value = _first(invalid, X)
    kind = "NaN" if np.isnan(value) else "infinity"
    raise InputError(
        f"Input {name} contains {kind} ({value} at row {row}, column {column}; "
        f"{int(xp.sum(xp.astype(invalid, xp.int64)))} such values in total). "
        "Remove these rows or fix the encoder that returned them."
    )


def _first(mask: Array, X: Array) -> tuple[int, int, float]:
    """Return row, column and value of the first entry for which the mask is true."""
    row, column = np.argwhere(to_numpy(mask))[0]
    return int(row), int(column), float(X[int(row), int(column)])


def single_row(x: Any, *, name: str = "x") -> Any:
    """Return one sample, a vector or a matrix with one row, as a matrix; check nothing else."""
    if not (is_array(x) or hasattr(x, "iloc")):
        x = np.asarray(x)
    if len(x.shape) == 1:
        x = np.asarray(x)[None, :] if hasattr(x, "iloc") else x[None, :]
    if len(x.shape) == 2 and x.shape[0] != 1:
        raise InputError(f"{name} has {x.shape[0]} rows. Give one sample, such as {name}[0].")
    return x


def check_range(X: Array, transform: Transform, dtype: Any, *, name: str = "X") -> None:
    """Raise if a feature is outside the domain of the transform or too large for the dtype."""
    xp = namespace(X)
    lowest, highest = xp.min(X), xp.max(X)
    power = transform.power
    if power is not None and bool(outside_domain(lowest, power)):
        row, column, value = _first(outside_domain(X, power), X)
        domain = "features above zero" if power <= 0 else "nonnegative features"
        raise InputError(
            f"{name} has {value:g} at row {row}, column {column}, but tukey={power:g} accepts "
            f"only {domain}. Create a new model with tukey=None for such features."
        )
    limit = float(xp.finfo(dtype).max) ** 0.2  # squares of sums of squares do not overflow
    largest = max(float(highest), -float(lowest))
    if largest > limit:
        raise InputError(
            f"{name} has a value of size {largest:.3g}, but {str(dtype).split('.')[-1]} allows at "
            f"most {limit:.3g}. Scale the features down, or create a new model with "
            "dtype='float64'."
        )


def check_labels(y: Any, n_rows: int, *, name: str = "y") -> np.ndarray[Any, Any]:
    """Return ``y`` as a one-dimensional NumPy array of booleans, integers or strings."""
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
            f"{name} has {counted(labels.shape[0], 'label')} but X has "
            f"{counted(n_rows, 'sample')}. Give one label per "
            "row."
        )
    if labels.dtype.kind == "O":
        labels = _from_objects(labels, name)
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise InputError(f"Input {name} contains NaN or infinity. Give every sample a label.")
    if labels.dtype.kind not in "iubU":  # integers and strings are valid: skip a slow check
        check_classification_targets(labels)
    if labels.dtype.kind == "f":
        labels = labels.astype(np.int64)  # floats are integers: others were rejected above
    return labels


def check_samples(X: Any, y: Any, sample_weight: Any = None) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return features and labels, with a row as often as its weight, a whole number, says."""
    array = check_features(X)
    labels = check_labels(y, array.shape[0])
    if sample_weight is None:
        return array, labels
    rows, xp = repeated_rows(sample_weight, array.shape[0]), namespace(array)
    return xp.take(array, xp.asarray(rows, device=device(array)), axis=0), labels[rows]


def repeated_rows(sample_weight: Any, n_rows: int) -> np.ndarray[Any, Any]:
    """Return row numbers, each as often as its weight, a whole number, says."""
    weights = to_numpy(sample_weight) if is_array(sample_weight) else np.asarray(sample_weight)
    if weights.shape != (n_rows,):
        raise InputError(
            f"sample_weight has the shape {weights.shape}, but X has {n_rows} samples. Give one "
            "weight per row."
        )
    is_bad = np.ones(n_rows, bool)
    if weights.dtype.kind in "biuf":
        is_bad = ~(np.isfinite(weights) & (weights >= 0) & (weights == np.floor(weights)))
    if is_bad.any():
        row = int(is_bad.argmax())
        bad = weights[row : row + 1].tolist()[0]
        raise InputError(
            f"sample_weight has {bad!r} at row {row}. A weight is the number of times "
            "that a sample counts: a whole number >= 0. Scale and round fractions."
        )
    if not weights.any():
        raise InputError("sample_weight is zero for all samples. Give at least one of them 1.")
    return np.repeat(np.arange(n_rows), weights.astype(np.int64))


def _is_mixed(values: Any) -> bool:
    types = {type(value): value for value in values}  # many values, few types
    return len({*map(kind_of_label, types.values())}) > 1


def _from_objects(labels: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Return Python objects as an array of one kind; NumPy would convert 1 and "a" to strings."""
    kinds = {*map(kind_of_label, labels)}
    if kinds == {"strings"}:
        return labels.astype(str)
    if len(kinds) == 1 and None not in kinds:
        return np.asarray(labels.tolist())
    types = sorted({type(label).__name__ for label in labels})
    raise InputError(
        f"{name} has labels of the types {', '.join(types)}. Use only booleans, only integers or "
        "only strings."
    )


def kind_of(labels: np.ndarray[Any, Any]) -> LabelKind:
    """Return the kind of the labels in an array."""
    if labels.dtype.kind in "USO":
        return "strings"
    return "booleans" if labels.dtype.kind == "b" else "integers"
