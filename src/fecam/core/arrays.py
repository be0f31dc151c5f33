"""Array functions that the array API standard does not have."""

from collections.abc import Iterator
from typing import Any

import array_api_compat as compat
import array_api_compat.numpy as numpy_compat
import numpy as np

from fecam.errors import InputError, MissingPackageError

Array = Any
"""An array of NumPy, torch or any other library that follows the array API standard."""


def namespace(x: Array) -> Any:
    """Return the array API namespace of the library of ``x``."""
    # The general lookup takes as long as a small product, and happens several times per product.
    return numpy_compat if type(x) is np.ndarray else compat.array_namespace(x)


def is_array(x: object) -> bool:
    """Return whether ``x`` is an array of a supported library other than NumPy."""
    return bool(compat.is_array_api_obj(x)) and not compat.is_numpy_array(x)


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """Return ``x`` as a NumPy array, a view if possible."""
    if compat.is_torch_array(x):
        return np.asarray(x.detach().cpu())
    return np.asarray(x)


def detached(x: Array) -> Array:
    """Return ``x`` without torch's graph of gradients, which would keep the samples in memory."""
    return x.detach() if compat.is_torch_array(x) else x


def to_backend_of(x: Array, other: Array) -> Array:
    """Return ``x`` as an array of the library and device of ``other``, with the dtype of ``x``.

    Numbers in double precision are rounded for a device that has none.
    """
    if type(x) is type(other) and compat.device(x) == compat.device(other):
        return x
    xp = namespace(other)
    data = np.ascontiguousarray(to_numpy(x))
    if data.dtype == np.float64 and accumulation_dtype(other) == xp.float32:
        data = data.astype(np.float32)
    if not data.flags.writeable and compat.is_torch_array(other):
        data = data.copy()  # torch shares the memory and has no read-only tensors
    return xp.asarray(data, device=compat.device(other))


def empty_on(device: Any, like: Array) -> Array:
    """Return an empty tensor on a device of torch; "cpu" keeps NumPy arrays as they are."""
    if device == "cpu" and compat.is_numpy_array(like):
        return like
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingPackageError(f"the device {device!r}", "torch", "images") from None
    try:
        return torch.empty(0, device=torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"the device {str(device)!r} cannot be used: {reason}. Use 'cpu', a device of this "
            "machine such as 'cuda', or an array on the device."
        ) from None


def is_cpu(x: Array) -> bool:
    """Return whether NumPy can read the array without a copy."""
    return compat.is_numpy_array(x) or (compat.is_torch_array(x) and str(x.device) == "cpu")


def accumulation_dtype(x: Array) -> Any:
    """Return the dtype for long sums: float64, or float32 on Apple's GPUs, which have no other."""
    xp = namespace(x)
    is_narrow = type(x) is not np.ndarray and "mps" in str(compat.device(x))
    return xp.float32 if is_narrow else xp.float64


def to_float64(x: Array) -> Array:
    """Return ``x`` in the dtype for long sums."""
    return namespace(x).astype(x, accumulation_dtype(x), copy=False)


def eye(size: int, like: Array) -> Array:
    """Return the identity matrix in the library, device and dtype of ``like``."""
    return namespace(like).eye(size, dtype=like.dtype, device=compat.device(like))


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros in the library, device and dtype of ``like``."""
    return namespace(like).zeros(shape, dtype=like.dtype, device=compat.device(like))


def contiguous(x: Array) -> Array:
    """Return a NumPy array in C order, for faster products; other arrays unchanged."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x


def row_slices(n_rows: int, step: int) -> Iterator[slice]:
    """Yield slices of at most ``step`` rows; none exceeds the end, as the standard requires."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def diagonal(matrix: Array) -> Array:
    """Return the diagonal of a matrix, or of each matrix in a stack."""
    return namespace(matrix).linalg.diagonal(matrix)


def add_to_diagonal(matrix: Array, value: Array) -> Array:
    """Return a new matrix with ``value`` (a number or a vector) added to the diagonal."""
    xp = namespace(matrix)
    result = xp.asarray(matrix, copy=True)
    if compat.is_numpy_array(result):
        result.flat[:: result.shape[-1] + 1] += value
    elif compat.is_torch_array(result):
        result.diagonal().add_(value)
    else:  # the standard has no view of a diagonal
        result = result + eye(result.shape[-1], result) * value
    return result


def cholesky_and_inverse(matrix: Array) -> tuple[Array, Array] | None:
    """Return the lower Cholesky factor and its inverse; None if ``matrix`` is not definite.

    The array API has no triangular solver. Torch has one. For other libraries the matrix is halved
    recursively, so that most work is in products, which takes less time than the two routines of
    LAPACK. SciPy is not used: its wheel has its own BLAS, whose threads compete with NumPy's.
    """
    try:
        if compat.is_torch_array(matrix):
            from torch.linalg import solve_triangular  # torch is already imported

            lower = namespace(matrix).linalg.cholesky(matrix)
            return lower, solve_triangular(lower, eye(lower.shape[-1], lower), upper=False)
        lower, inverse = zeros(matrix.shape, matrix), zeros(matrix.shape, matrix)
        _factorize(namespace(matrix).asarray(matrix, copy=True), lower, inverse)
    except (np.linalg.LinAlgError, RuntimeError):  # torch raises a RuntimeError
        return None
    return lower, inverse


def _factorize(matrix: Array, lower: Array, inverse: Array) -> None:
    """Fill a Cholesky factor and its inverse, which are zero; the matrix is overwritten."""
    size = matrix.shape[0]
    if size <= 64:
        lower[...] = namespace(matrix).linalg.cholesky(matrix)
        inverse[...] = namespace(matrix).linalg.inv(lower)
        return
    first, last = slice(0, size // 2), slice(size // 2, size)
    _factorize(matrix[first, first], lower[first, first], inverse[first, first])
    lower[last, first] = matrix[last, first] @ inverse[first, first].T
    matrix[last, last] -= lower[last, first] @ lower[last, first].T
    _factorize(matrix[last, last], lower[last, last], inverse[last, last])
    inverse[last, first] = -(inverse[last, last] @ (lower[last, first] @ inverse[first, first]))
