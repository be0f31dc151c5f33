"""What the maths needs of an array library beyond the array API standard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import array_api_compat as compat
import numpy as np

Array = Any
"""An array of NumPy, torch or any other library that follows the array API standard."""


def namespace(x: Array) -> Any:
    """The array library that ``x`` belongs to, as an array-API namespace."""
    return compat.array_namespace(x)


def is_array(x: object) -> bool:
    """Whether ``x`` is an array of a library other than NumPy that we can compute with."""
    return bool(compat.is_array_api_obj(x)) and not compat.is_numpy_array(x)


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """A NumPy copy or view of ``x``, wherever it lives."""
    if compat.is_torch_array(x):
        return np.asarray(x.detach().cpu())
    return np.asarray(x)


def detached(x: Array) -> Array:
    """``x`` without the history that torch keeps for gradients: it holds on to the samples."""
    return x.detach() if compat.is_torch_array(x) else x


def to_backend_of(x: Array, other: Array) -> Array:
    """``x`` as an array of the library and on the device of ``other``; its dtype is kept."""
    if type(x) is type(other) and compat.device(x) == compat.device(other):
        return x
    xp = namespace(other)
    plain = np.ascontiguousarray(to_numpy(x))
    if not plain.flags.writeable and compat.is_torch_array(other):
        plain = plain.copy()  # torch shares the memory it is given and has no read-only tensors
    return xp.asarray(plain, device=compat.device(other))


def is_cpu(x: Array) -> bool:
    """Whether an array lies where NumPy can look at it without a copy."""
    return compat.is_numpy_array(x) or (compat.is_torch_array(x) and str(x.device) == "cpu")


def accumulation_dtype(x: Array) -> Any:
    """The dtype for long sums: float64, except on devices that have none (Apple's GPUs)."""
    xp = namespace(x)
    return xp.float32 if "mps" in str(compat.device(x)) else xp.float64


def to_float64(x: Array) -> Array:
    """``x`` in the precision of long sums."""
    return namespace(x).astype(x, accumulation_dtype(x), copy=False)


def eye(size: int, like_this: Array) -> Array:
    """The identity matrix, of the library, device and dtype of an array."""
    xp = namespace(like_this)
    return xp.eye(size, dtype=like_this.dtype, device=compat.device(like_this))


def zeros(shape: tuple[int, ...], like_this: Array) -> Array:
    """Zeros, of the library, device and dtype of an array."""
    xp = namespace(like_this)
    return xp.zeros(shape, dtype=like_this.dtype, device=compat.device(like_this))


def contiguous(x: Array) -> Array:
    """The same, its rows one after another in memory, where products gain from that."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x


def row_slices(n_rows: int, step: int) -> Iterator[slice]:
    """Return slices that cut rows into blocks; none exceeds the end, as the standard requires."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def diagonal(matrix: Array) -> Array:
    """The diagonal of a matrix (or of each matrix in a stack)."""
    return namespace(matrix).linalg.diagonal(matrix)


def add_to_diagonal(matrix: Array, value: Array) -> Array:
    """A new matrix with ``value`` (a number or a vector) added to the diagonal."""
    xp = namespace(matrix)
    result = xp.asarray(matrix, copy=True)
    if compat.is_numpy_array(result):
        result.flat[:: result.shape[-1] + 1] += value
    elif compat.is_torch_array(result):
        result.diagonal().add_(value)
    else:  # the standard has no view of a diagonal
        result = result + eye(result.shape[-1], result) * value
    return result


def cholesky(matrix: Array) -> Array | None:
    """The lower Cholesky factor of a symmetric matrix, or None where it has none."""
    try:
        return namespace(matrix).linalg.cholesky(matrix)
    except (np.linalg.LinAlgError, RuntimeError):  # torch raises a RuntimeError of its own
        return None


def invert_lower_triangle(lower: Array) -> Array:
    """The inverse of a lower triangular matrix.

    The array API has no triangular solver, and the general one costs several times as much. Torch
    has its own; for all others the matrix is halved until it is small, which leaves the work to
    products. (SciPy has one too, but brings its own copy of BLAS, whose threads then fight those
    of NumPy: each call of the one slows down the next of the other.)
    """
    if compat.is_torch_array(lower):
        from torch.linalg import solve_triangular  # already imported: the tensor came from it

        return solve_triangular(lower, eye(lower.shape[-1], lower), upper=False)
    inverse = zeros(lower.shape, lower)
    _fill_inverse(lower, inverse, 0, lower.shape[-1])
    return inverse


def _fill_inverse(lower: Array, inverse: Array, start: int, stop: int) -> None:
    """Invert the triangle of rows and columns from start to stop, in the place of the result."""
    if stop - start <= 64:
        block = slice(start, stop)
        identity = eye(stop - start, lower)
        inverse[block, block] = namespace(lower).linalg.solve(lower[block, block], identity)
        return
    half = (start + stop) // 2
    _fill_inverse(lower, inverse, start, half)
    _fill_inverse(lower, inverse, half, stop)
    first, last = slice(start, half), slice(half, stop)
    product = lower[last, first] @ inverse[first, first]
    inverse[last, first] = -(inverse[last, last] @ product)
