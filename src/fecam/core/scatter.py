r"""The scatter of a class in compact storage.

The scatter :math:`S = \sum_i (z_i - m)(z_i - m)^T` of few samples has a low rank. It is stored as
rows :math:`R` with :math:`R^T R = S`, one per rank; otherwise as the upper triangle of the matrix.
The rows are the eigenvectors of :math:`S` times the roots of its eigenvalues. They depend on
:math:`S` alone; the centered samples would be valid rows too, but a model must not store samples.
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
"""Rows are stored up to a rank of the number of features divided by this."""
BLOCK_ROWS = 16384
"""Rows per product; the sum over blocks has double precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """A symmetric positive semidefinite matrix."""

    data: Array
    """Rows, an upper triangle in row order, or the diagonal."""
    storage: Storage
    n_features: int

    def with_data(self, data: Array) -> Scatter:
        """Return a `Scatter` with other data in the same storage, also for a subclass."""
        return Scatter(data, self.storage, self.n_features)


def max_low_rank(n_features: int) -> int:
    """Return the highest rank that is stored as rows."""
    return n_features // RANK_SHARE


def scatter_of_rows(rows: Array, mean: Array, dtype: Any, *, only_diagonal: bool) -> Scatter:
    """Return the scatter of rows around their mean, stored in ``dtype``."""
    xp = namespace(rows)
    n, n_features = rows.shape
    # Rows are centered in the more precise of both dtypes, and multiplied in that of the model.
    precise = xp.result_type(rows.dtype, dtype)
    center = xp.astype(mean, precise)

    def centered(block: slice) -> Array:
        difference = xp.astype(rows[block, :], precise, copy=False) - center
        return xp.astype(difference, dtype, copy=False)

    if n - 1 <= max_low_rank(n_features) and not only_diagonal:
        return _from_rows(centered(slice(0, n)), n - 1, dtype)
    total = None
    for block in row_slices(n, BLOCK_ROWS):
        z = centered(block)
        product = xp.sum(z * z, axis=0) if only_diagonal else z.T @ z
        total = product if total is None else to_float64(total) + product
    total = xp.astype(total, dtype, copy=False)
    return Scatter(total, "diagonal", n_features) if only_diagonal else _pack(total)


def to_dense(scatter: Scatter) -> Array:
    """Return the matrix, with float64 for stored rows; the diagonal if only that is stored."""
    data, n_features = scatter.data, scatter.n_features
    if scatter.storage == "diagonal":
        return data
    if scatter.storage == "low_rank":
        return to_float64(data).T @ to_float64(data)
    xp = namespace(data)
    indices = to_backend_of(_matrix_indices(n_features), data)
    return xp.reshape(xp.take(data, indices, axis=0), (n_features, n_features))


def diagonal_of(scatter: Scatter) -> Array:
    """Return the diagonal of the matrix."""
    data = scatter.data
    if scatter.storage == "low_rank":
        return namespace(data).sum(data * data, axis=0)
    if scatter.storage == "packed":
        return namespace(data).take(
            data, to_backend_of(diagonal_indices(scatter.n_features), data), axis=0
        )
    return data


def project(scatter: Scatter, axes: Array) -> Array:
    r"""Return :math:`A^T S A` for axes :math:`A`, in double precision."""
    if scatter.storage == "low_rank":
        rows = to_float64(scatter.data) @ axes
        return rows.T @ rows
    return axes.T @ (to_float64(to_dense(scatter)) @ axes)


def projected(scatter: Scatter, axes: Array) -> Scatter:
    r"""Return the scatter of rows that were multiplied by axes :math:`A`: :math:`A^T S A`.

    Stored as if those rows had been summarized: a low rank as rows, otherwise as a triangle.
    """
    xp, dtype = namespace(scatter.data), scatter.data.dtype
    rank, n_features = scatter.data.shape[0], int(axes.shape[1])
    if scatter.storage == "low_rank" and rank <= max_low_rank(n_features):
        return _from_rows(to_float64(scatter.data) @ to_float64(axes), rank, dtype)
    return _pack(xp.astype(project(scatter, to_float64(axes)), dtype))


def add(a: Scatter, b: Scatter, step: Array | None = None) -> Scatter:
    """Return the sum of two scatters and, if given, of the outer product of a step."""
    xp = namespace(a.data)
    if a.storage == "low_rank" and b.storage == "low_rank":
        blocks = [a.data, b.data]
        if step is not None:
            blocks.append(xp.astype(step, a.data.dtype)[None, :])
        rows = xp.concat(blocks, axis=0)
        if rows.shape[0] <= max_low_rank(a.n_features):
            return _from_rows(rows, rows.shape[0], a.data.dtype)
        return _pack(rows.T @ rows)
    data = packed_data(a) + packed_data(b)
    return Scatter(data if step is None else data + _outer(step, a, xp), *_sum_storage(a))


def subtract(whole: Scatter, part: Scatter, step: Array) -> Scatter:
    """Return a scatter minus another one and the outer product of a step."""
    xp = namespace(whole.data)
    if whole.storage != "low_rank":
        data = whole.data - packed_data(part) - _outer(step, whole, xp)
        return whole.with_data(data)
    # The subtracted matrix lies in the span of these rows, so small matrices are sufficient.
    rows = to_float64(whole.data)
    length = xp.sqrt(xp.sum(rows * rows, axis=1))
    axes = rows / xp.where(length > 0, length, xp.ones_like(length))[:, None]
    removed = xp.concat([to_float64(sqrt_rows(part)), to_float64(step)[None, :]], axis=0) @ axes.T
    values, vectors = xp.linalg.eigh(eye(rows.shape[0], rows) * length**2 - removed.T @ removed)
    roots = xp.sqrt(xp.maximum(values, 0 * values))
    data = xp.astype((roots[:, None] * vectors.T) @ axes, whole.data.dtype)
    return _from_rows(data, data.shape[0], whole.data.dtype)


def scale(scatter: Scatter, factor: float) -> Scatter:
    """Return a multiple of a scatter."""
    factor = factor**0.5 if scatter.storage == "low_rank" else factor
    return scatter.with_data(scatter.data * factor)


def mask_features(scatter: Scatter, mask: Array) -> Scatter:
    """Return the scatter with zeros for features whose mask is false."""
    data = scatter.data
    mask = namespace(data).astype(mask, data.dtype)
    if scatter.storage == "packed":
        return scatter.with_data(data * packed_matrix(mask[:, None] * mask[None, :]))
    return scatter.with_data(data * mask)


def sum_scatters(scatters: Iterable[Scatter]) -> Array:
    """Return the sum of scatters as a matrix or a diagonal, in double precision."""
    packed, low_rank, blocks = None, None, []
    for scatter in scatters:
        if scatter.storage == "low_rank":
            blocks.append(scatter.data)
            if sum(block.shape[0] for block in blocks) > 4 * scatter.n_features:
                low_rank, blocks = _add_product(low_rank, blocks), []
        elif packed is None:
            packed = Scatter(to_float64(scatter.data) + 0.0, *_sum_storage(scatter))
        else:
            packed.data[:] += scatter.data  # in place: this runs over every class
    low_rank = _add_product(low_rank, blocks)
    if packed is None:
        if low_rank is None:
            raise ValueError("there is no class to pool")
        return low_rank
    return to_dense(packed) if low_rank is None else to_dense(packed) + low_rank


def _add_product(total: Array | None, blocks: list[Array]) -> Array | None:
    """Add the scatter of the rows of many classes, which is one product."""
    if not blocks:
        return total
    rows = to_float64(namespace(blocks[0]).concat(blocks, axis=0))
    product = rows.T @ rows
    return product if total is None else total + product


def _from_rows(rows: Array, rank: int, dtype: Any) -> Scatter:
    """Return the canonical rows with this scatter: orthogonal, longest first, fixed signs."""
    xp = namespace(rows)
    n_features = rows.shape[1]
    precise = to_float64(rows)
    values, vectors = xp.linalg.eigh(precise @ precise.T)
    values, vectors = xp.flip(values), xp.flip(vectors, axis=1)
    largest = float(values[0]) if rows.shape[0] else 0.0
    floor = largest * rows.shape[0] * float(xp.finfo(precise.dtype).eps)
    rank = min(rank, int(xp.sum(xp.astype(values > floor, xp.int64))))
    rotated = vectors[:, :rank].T @ precise
    if rank:
        lowest, highest = xp.min(rotated, axis=1), xp.max(rotated, axis=1)
        sign = xp.where(-lowest > highest, -xp.ones_like(highest), xp.ones_like(highest))
        rotated = rotated * sign[:, None]
    return Scatter(xp.astype(rotated, dtype), "low_rank", n_features)


def sqrt_rows(scatter: Scatter) -> Array:
    """Return rows with this scatter."""
    if scatter.storage == "low_rank":
        return scatter.data
    xp = namespace(scatter.data)
    values, vectors = xp.linalg.eigh(to_float64(to_dense(scatter)))
    return xp.sqrt(xp.maximum(values, 0 * values))[:, None] * vectors.T


def _pack(matrix: Array) -> Scatter:
    return Scatter(packed_matrix(matrix), "packed", matrix.shape[0])


def packed_data(scatter: Scatter) -> Array:
    """Return the packed upper triangle, or the diagonal if only that is stored."""
    if scatter.storage != "low_rank":
        return scatter.data
    packed = packed_matrix(to_dense(scatter))
    return namespace(packed).astype(packed, scatter.data.dtype)


def packed_matrix(matrix: Array) -> Array:
    """Return the upper triangle of a matrix in row order."""
    xp = namespace(matrix)
    return xp.take(
        xp.reshape(matrix, (-1,)), to_backend_of(_triangle_indices(matrix.shape[0]), matrix), axis=0
    )


def _outer(step: Array, scatter: Scatter, xp: Any) -> Array:
    step = xp.astype(step, scatter.data.dtype)
    if scatter.storage == "diagonal":
        return step * step
    return packed_matrix(step[:, None] * step[None, :])


def _sum_storage(a: Scatter) -> tuple[Storage, int]:
    """Return storage and number of features of a sum with this scatter."""
    return ("diagonal" if a.storage == "diagonal" else "packed"), a.n_features


@lru_cache(maxsize=8)
def _triangle_indices(n_features: int) -> np.ndarray[Any, Any]:
    """Return the index in the matrix of each entry of the triangle."""
    rows, columns = np.triu_indices(n_features)
    return np.asarray(rows * n_features + columns, dtype=np.int64)


@lru_cache(maxsize=8)
def _matrix_indices(n_features: int) -> np.ndarray[Any, Any]:
    """Return the index in the triangle of each entry of the matrix."""
    low = np.minimum.outer(np.arange(n_features), np.arange(n_features))
    high = np.maximum.outer(np.arange(n_features), np.arange(n_features))
    return np.ravel(low * n_features - low * (low - 1) // 2 + high - low)


@lru_cache(maxsize=8)
def diagonal_indices(n_features: int) -> np.ndarray[Any, Any]:
    """Return the indices of the diagonal in the triangle."""
    i = np.arange(n_features)
    return np.asarray(i * n_features - i * (i - 1) // 2)
