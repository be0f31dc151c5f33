r"""A class's scatter in the smallest form that holds it.

The scatter :math:`S = \sum_i (z_i - m)(z_i - m)^T` of few samples has a low rank, so it is kept as
that many rows :math:`R` with :math:`R^T R = S`; otherwise as its upper triangle, half of the
matrix. The rows are the eigenvectors of :math:`S` times the roots of its eigenvalues: they follow
from the scatter alone, so they hold what it holds and no more. The centred samples, which would
serve as well, would make a model a store of samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fecam.core.arrays import Array, eye, namespace, row_slices, to_backend_of, to_float64

Storage = Literal["low_rank", "packed", "diagonal"]

RANK_SHARE = 4
"""Rows are kept up to a rank of the width divided by this; beyond, the triangle is as good."""
BLOCK_ROWS = 16384
"""Rows in one product; longer sums are accumulated in double precision block by block."""


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """One symmetric, positive semidefinite matrix."""

    data: Array
    """Rows, an upper triangle row by row, or only the diagonal."""
    storage: Storage
    n_features: int

    def with_data(self, data: Array) -> Scatter:
        """A scatter of the same shape; always a plain one, wherever this one's numbers lie."""
        return Scatter(data, self.storage, self.n_features)


def max_low_rank(n_features: int) -> int:
    """The highest rank that is kept as rows."""
    return n_features // RANK_SHARE


def scatter_of_rows(rows: Array, mean: Array, dtype: Any, *, only_diagonal: bool) -> Scatter:
    """The scatter of rows around their mean, kept in ``dtype``."""
    xp = namespace(rows)
    n, n_features = rows.shape
    # Centred in the finer of the two precisions, multiplied in that of the model.
    finest = xp.result_type(rows.dtype, dtype)
    centre = xp.astype(mean, finest)

    def centred(some: slice) -> Array:
        block = xp.astype(rows[some, :], finest, copy=False) - centre
        return xp.astype(block, dtype, copy=False)

    if n - 1 <= max_low_rank(n_features) and not only_diagonal:
        return _from_rows(centred(slice(0, n)), n - 1, dtype)
    total = None
    for some in row_slices(n, BLOCK_ROWS):
        block = centred(some)
        part = xp.sum(block * block, axis=0) if only_diagonal else block.T @ block
        total = part if total is None else to_float64(total) + part
    total = xp.astype(total, dtype, copy=False)
    return Scatter(total, "diagonal", n_features) if only_diagonal else _triangle(total)


def to_dense(scatter: Scatter) -> Array:
    """The whole matrix, out of rows in double precision; of a diagonal one only the diagonal."""
    data, n_features = scatter.data, scatter.n_features
    if scatter.storage == "diagonal":
        return data
    if scatter.storage == "low_rank":
        return to_float64(data).T @ to_float64(data)
    xp = namespace(data)
    return xp.reshape(
        xp.take(data, to_backend_of(_unpacking(n_features), data), axis=0), (n_features, n_features)
    )


def diagonal_of(scatter: Scatter) -> Array:
    """The diagonal of the matrix."""
    data = scatter.data
    if scatter.storage == "low_rank":
        return namespace(data).sum(data * data, axis=0)
    if scatter.storage == "packed":
        return namespace(data).take(
            data, to_backend_of(diagonal_indices(scatter.n_features), data), axis=0
        )
    return data


def project(scatter: Scatter, axes: Array) -> Array:
    r""":math:`A^T S A` for some axes :math:`A`, in double precision."""
    if scatter.storage == "low_rank":
        rows = to_float64(scatter.data) @ axes
        return rows.T @ rows
    return axes.T @ (to_float64(to_dense(scatter)) @ axes)


def add(a: Scatter, b: Scatter, step: Array | None = None) -> Scatter:
    """The sum of two scatters and, if given, of a step times itself."""
    xp = namespace(a.data)
    if a.storage == "low_rank" and b.storage == "low_rank":
        parts = [a.data, b.data]
        if step is not None:
            parts.append(xp.astype(step, a.data.dtype)[None, :])
        rows = xp.concat(parts, axis=0)
        if rows.shape[0] <= max_low_rank(a.n_features):
            return _from_rows(rows, rows.shape[0], a.data.dtype)
        return _triangle(rows.T @ rows)
    data = packed_data(a) + packed_data(b)
    return Scatter(data if step is None else data + _outer(step, a, xp), *_kind(a))


def subtract(whole: Scatter, part: Scatter, step: Array) -> Scatter:
    """What is left of a scatter when another and a step times itself are taken out."""
    xp = namespace(whole.data)
    if whole.storage != "low_rank":
        data = whole.data - packed_data(part) - _outer(step, whole, xp)
        return whole.with_data(data)
    # All that can be taken out lies in the space of these rows; there the matrices are small.
    rows = to_float64(whole.data)
    length = xp.sqrt(xp.sum(rows * rows, axis=1))
    axes = rows / xp.where(length > 0, length, xp.ones_like(length))[:, None]
    taken = xp.concat([to_float64(sqrt_rows(part)), to_float64(step)[None, :]], axis=0) @ axes.T
    values, vectors = xp.linalg.eigh(eye(rows.shape[0], rows) * length**2 - taken.T @ taken)
    left = xp.sqrt(xp.maximum(values, 0 * values))
    data = xp.astype((left[:, None] * vectors.T) @ axes, whole.data.dtype)
    return _from_rows(data, data.shape[0], whole.data.dtype)


def scale(scatter: Scatter, factor: float) -> Scatter:
    """A multiple of a scatter."""
    by = factor**0.5 if scatter.storage == "low_rank" else factor
    return scatter.with_data(scatter.data * by)


def mask_features(scatter: Scatter, keep: Array) -> Scatter:
    """The scatter with the features that are not kept set to zero."""
    data = scatter.data
    keep = namespace(data).astype(keep, data.dtype)
    if scatter.storage == "packed":
        return scatter.with_data(data * packed_matrix(keep[:, None] * keep[None, :]))
    return scatter.with_data(data * keep)


def sum_scatters(scatters: Iterable[Scatter]) -> Array:
    """The sum of many scatters, as a whole matrix or a diagonal, in double precision."""
    packed, rows, waiting = None, None, []
    for one in scatters:
        if one.storage == "low_rank":
            waiting.append(one.data)
            if sum(some.shape[0] for some in waiting) > 4 * one.n_features:
                rows, waiting = _summed(rows, waiting), []
        elif packed is None:
            packed = _kind(one), to_float64(one.data) + 0.0
        else:
            packed[1][:] += one.data  # in place: this runs over every class
    rows = _summed(rows, waiting)
    if packed is None:
        if rows is None:
            raise ValueError("no class to pool")
        return rows
    whole = to_dense(Scatter(packed[1], *packed[0]))
    return whole if rows is None else whole + rows


def _summed(total: Array | None, waiting: list[Array]) -> Array | None:
    """One product for the rows of many classes."""
    if not waiting:
        return total
    rows = to_float64(namespace(waiting[0]).concat(waiting, axis=0))
    product = rows.T @ rows
    return product if total is None else total + product


def _from_rows(rows: Array, rank: int, dtype: Any) -> Scatter:
    """The canonical rows with the same scatter: orthogonal, longest first, signs fixed."""
    xp = namespace(rows)
    n_features = rows.shape[1]
    fine = to_float64(rows)
    values, vectors = xp.linalg.eigh(fine @ fine.T)
    values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
    largest = float(values[0]) if rows.shape[0] else 0.0
    floor = largest * rows.shape[0] * float(xp.finfo(fine.dtype).eps)
    rank = min(rank, int(xp.sum(xp.astype(values > floor, xp.int64))))
    turned = vectors[:, :rank].T @ fine
    if rank:
        lowest, highest = xp.min(turned, axis=1), xp.max(turned, axis=1)
        sign = xp.where(-lowest > highest, -xp.ones_like(highest), xp.ones_like(highest))
        turned = turned * sign[:, None]
    return Scatter(xp.astype(turned, dtype), "low_rank", n_features)


def sqrt_rows(scatter: Scatter) -> Array:
    """Rows with this scatter, whatever its form."""
    if scatter.storage == "low_rank":
        return scatter.data
    xp = namespace(scatter.data)
    values, vectors = xp.linalg.eigh(to_float64(to_dense(scatter)))
    return xp.sqrt(xp.maximum(values, 0 * values))[:, None] * vectors.T


def _triangle(matrix: Array) -> Scatter:
    return Scatter(packed_matrix(matrix), "packed", matrix.shape[0])


def packed_data(scatter: Scatter) -> Array:
    """The upper triangle row by row, also of a scatter that is kept as rows."""
    if scatter.storage != "low_rank":
        return scatter.data
    packed = packed_matrix(to_dense(scatter))
    return namespace(packed).astype(packed, scatter.data.dtype)


def packed_matrix(matrix: Array) -> Array:
    """The upper triangle of a matrix, row by row."""
    xp = namespace(matrix)
    return xp.take(
        xp.reshape(matrix, (-1,)), to_backend_of(_packing(matrix.shape[0]), matrix), axis=0
    )


def _outer(step: Array, scatter: Scatter, xp: Any) -> Array:
    step = xp.astype(step, scatter.data.dtype)
    if scatter.storage == "diagonal":
        return step * step
    return packed_matrix(step[:, None] * step[None, :])


def _kind(a: Scatter) -> tuple[Storage, int]:
    return ("diagonal" if a.storage == "diagonal" else "packed"), a.n_features


@lru_cache(maxsize=8)
def _packing(n_features: int) -> np.ndarray[Any, Any]:
    """Where each number of the triangle stands in the matrix."""
    rows, columns = np.triu_indices(n_features)
    return np.asarray(rows * n_features + columns, dtype=np.int64)


@lru_cache(maxsize=8)
def _unpacking(n_features: int) -> np.ndarray[Any, Any]:
    """Where each entry of the matrix stands in the triangle."""
    low = np.minimum.outer(np.arange(n_features), np.arange(n_features))
    high = np.maximum.outer(np.arange(n_features), np.arange(n_features))
    return np.ravel(low * n_features - low * (low - 1) // 2 + high - low)


@lru_cache(maxsize=8)
def diagonal_indices(n_features: int) -> np.ndarray[Any, Any]:
    """Where the diagonal stands in the triangle."""
    at = np.arange(n_features)
    return np.asarray(at * n_features - at * (at - 1) // 2)
