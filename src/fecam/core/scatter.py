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

from fecam.core.arrays import Array, eye, like, namespace, row_slices, wide

Shape = Literal["rows", "triangle", "diagonal"]

RANK_SHARE = 4
"""Rows are kept up to a rank of the width divided by this; beyond, the triangle is as good."""
BLOCK_ROWS = 16384
"""Rows in one product; longer sums are added up in double precision block by block."""


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """One symmetric, positive semidefinite matrix."""

    numbers: Array
    """Rows, an upper triangle row by row, or only the diagonal."""
    shape: Shape
    width: int

    def with_numbers(self, numbers: Array) -> Scatter:
        """A scatter of the same shape; always a plain one, wherever this one's numbers lie."""
        return Scatter(numbers, self.shape, self.width)


def most_rows(width: int) -> int:
    """The highest rank that is kept as rows."""
    return width // RANK_SHARE


def scatter_of_rows(rows: Array, mean: Array, dtype: Any, *, only_diagonal: bool) -> Scatter:
    """The scatter of rows around their mean, kept in ``dtype``."""
    xp = namespace(rows)
    n, width = rows.shape
    # Centred in the finer of the two precisions, multiplied in that of the model.
    finest = xp.result_type(rows.dtype, dtype)
    centre = xp.astype(mean, finest)

    def centred(some: slice) -> Array:
        block = xp.astype(rows[some, :], finest, copy=False) - centre
        return xp.astype(block, dtype, copy=False)

    if n - 1 <= most_rows(width) and not only_diagonal:
        return _from_rows(centred(slice(0, n)), n - 1, dtype)
    total = None
    for some in row_slices(n, BLOCK_ROWS):
        block = centred(some)
        part = xp.sum(block * block, axis=0) if only_diagonal else block.T @ block
        total = part if total is None else wide(total) + part
    total = xp.astype(total, dtype, copy=False)
    return Scatter(total, "diagonal", width) if only_diagonal else _triangle(total)


def dense(scatter: Scatter) -> Array:
    """The whole matrix, out of rows in double precision; of a diagonal one only the diagonal."""
    numbers, width = scatter.numbers, scatter.width
    if scatter.shape == "diagonal":
        return numbers
    if scatter.shape == "rows":
        return wide(numbers).T @ wide(numbers)
    xp = namespace(numbers)
    return xp.reshape(xp.take(numbers, like(_unpacking(width), numbers), axis=0), (width, width))


def variances_of(scatter: Scatter) -> Array:
    """The diagonal of the matrix."""
    numbers = scatter.numbers
    if scatter.shape == "rows":
        return namespace(numbers).sum(numbers * numbers, axis=0)
    if scatter.shape == "triangle":
        return namespace(numbers).take(
            numbers, like(diagonal_places(scatter.width), numbers), axis=0
        )
    return numbers


def seen_along(scatter: Scatter, axes: Array) -> Array:
    r""":math:`A^T S A` for some axes :math:`A`, in double precision."""
    if scatter.shape == "rows":
        rows = wide(scatter.numbers) @ axes
        return rows.T @ rows
    return axes.T @ (wide(dense(scatter)) @ axes)


def add(a: Scatter, b: Scatter, step: Array | None = None) -> Scatter:
    """The sum of two scatters and, if given, of a step times itself."""
    xp = namespace(a.numbers)
    if a.shape == "rows" and b.shape == "rows":
        parts = [a.numbers, b.numbers]
        if step is not None:
            parts.append(xp.astype(step, a.numbers.dtype)[None, :])
        rows = xp.concat(parts, axis=0)
        if rows.shape[0] <= most_rows(a.width):
            return _from_rows(rows, rows.shape[0], a.numbers.dtype)
        return _triangle(rows.T @ rows)
    numbers = packed_numbers(a) + packed_numbers(b)
    return Scatter(numbers if step is None else numbers + _outer(step, a, xp), *_kind(a))


def subtract(whole: Scatter, part: Scatter, step: Array) -> Scatter:
    """What is left of a scatter when another and a step times itself are taken out."""
    xp = namespace(whole.numbers)
    if whole.shape != "rows":
        numbers = whole.numbers - packed_numbers(part) - _outer(step, whole, xp)
        return whole.with_numbers(numbers)
    # All that can be taken out lies in the space of these rows; there the matrices are small.
    rows = wide(whole.numbers)
    length = xp.sqrt(xp.sum(rows * rows, axis=1))
    axes = rows / xp.where(length > 0, length, xp.ones_like(length))[:, None]
    taken = xp.concat([wide(root_of(part)), wide(step)[None, :]], axis=0) @ axes.T
    values, vectors = xp.linalg.eigh(eye(rows.shape[0], rows) * length**2 - taken.T @ taken)
    left = xp.sqrt(xp.maximum(values, 0 * values))
    numbers = xp.astype((left[:, None] * vectors.T) @ axes, whole.numbers.dtype)
    return _from_rows(numbers, numbers.shape[0], whole.numbers.dtype)


def times(scatter: Scatter, factor: float) -> Scatter:
    """A multiple of a scatter."""
    by = factor**0.5 if scatter.shape == "rows" else factor
    return scatter.with_numbers(scatter.numbers * by)


def without(scatter: Scatter, keep: Array) -> Scatter:
    """The scatter with the features that are not kept set to zero."""
    numbers = scatter.numbers
    keep = namespace(numbers).astype(keep, numbers.dtype)
    if scatter.shape == "triangle":
        return scatter.with_numbers(numbers * packed_matrix(keep[:, None] * keep[None, :]))
    return scatter.with_numbers(numbers * keep)


def total(scatters: Iterable[Scatter]) -> Array:
    """The sum of many scatters, as a whole matrix or a diagonal, in double precision."""
    packed, rows, waiting = None, None, []
    for one in scatters:
        if one.shape == "rows":
            waiting.append(one.numbers)
            if sum(some.shape[0] for some in waiting) > 4 * one.width:
                rows, waiting = _summed(rows, waiting), []
        elif packed is None:
            packed = _kind(one), wide(one.numbers) + 0.0
        else:
            packed[1][:] += one.numbers  # in place: this runs over every class
    rows = _summed(rows, waiting)
    if packed is None:
        if rows is None:
            raise ValueError("no class to pool")
        return rows
    whole = dense(Scatter(packed[1], *packed[0]))
    return whole if rows is None else whole + rows


def _summed(total: Array | None, waiting: list[Array]) -> Array | None:
    """One product for the rows of many classes."""
    if not waiting:
        return total
    rows = wide(namespace(waiting[0]).concat(waiting, axis=0))
    product = rows.T @ rows
    return product if total is None else total + product


def _from_rows(rows: Array, rank: int, dtype: Any) -> Scatter:
    """The canonical rows with the same scatter: orthogonal, longest first, signs fixed."""
    xp = namespace(rows)
    width = rows.shape[1]
    fine = wide(rows)
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
    return Scatter(xp.astype(turned, dtype), "rows", width)


def root_of(scatter: Scatter) -> Array:
    """Rows with this scatter, whatever its form."""
    if scatter.shape == "rows":
        return scatter.numbers
    xp = namespace(scatter.numbers)
    values, vectors = xp.linalg.eigh(wide(dense(scatter)))
    return xp.sqrt(xp.maximum(values, 0 * values))[:, None] * vectors.T


def _triangle(matrix: Array) -> Scatter:
    return Scatter(packed_matrix(matrix), "triangle", matrix.shape[0])


def packed_numbers(scatter: Scatter) -> Array:
    """The upper triangle row by row, also of a scatter that is kept as rows."""
    if scatter.shape != "rows":
        return scatter.numbers
    packed = packed_matrix(dense(scatter))
    return namespace(packed).astype(packed, scatter.numbers.dtype)


def packed_matrix(matrix: Array) -> Array:
    """The upper triangle of a matrix, row by row."""
    xp = namespace(matrix)
    return xp.take(xp.reshape(matrix, (-1,)), like(_packing(matrix.shape[0]), matrix), axis=0)


def _outer(step: Array, scatter: Scatter, xp: Any) -> Array:
    step = xp.astype(step, scatter.numbers.dtype)
    if scatter.shape == "diagonal":
        return step * step
    return packed_matrix(step[:, None] * step[None, :])


def _kind(a: Scatter) -> tuple[Shape, int]:
    return ("diagonal" if a.shape == "diagonal" else "triangle"), a.width


@lru_cache(maxsize=8)
def _packing(width: int) -> np.ndarray[Any, Any]:
    """Where each number of the triangle stands in the matrix."""
    rows, columns = np.triu_indices(width)
    return np.asarray(rows * width + columns, dtype=np.int64)


@lru_cache(maxsize=8)
def _unpacking(width: int) -> np.ndarray[Any, Any]:
    """Where each entry of the matrix stands in the triangle."""
    low = np.minimum.outer(np.arange(width), np.arange(width))
    high = np.maximum.outer(np.arange(width), np.arange(width))
    return np.ravel(low * width - low * (low - 1) // 2 + high - low)


@lru_cache(maxsize=8)
def diagonal_places(width: int) -> np.ndarray[Any, Any]:
    """Where the diagonal stands in the triangle."""
    at = np.arange(width)
    return np.asarray(at * width - at * (at - 1) // 2)
