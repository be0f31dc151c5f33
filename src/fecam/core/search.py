"""From queries and factors to distances and the nearest class, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from array_api_compat import device

from fecam.core.arrays import Array, namespace, row_slices, wide
from fecam.core.factors import Factor, apply_whitening

BLOCK_BYTES = 64 * 2**20
"""What the largest temporary array of one block may take."""


def squared_distances(queries: Array, factors: Sequence[Factor], dtype: Any = None) -> Array:
    """The squared distance of each query (row) to each class (column).

    They are measured in ``dtype``, by default that of the queries. Before anything is rounded to
    it, queries and centres are shifted by one of the centres: far from zero, the rounding of their
    coordinates would drown the differences between them.
    """
    xp = namespace(queries)
    dtype = queries.dtype if dtype is None else dtype
    origin = xp.astype(factors[0].centre, queries.dtype)
    centres = xp.stack([factor.centre for factor in factors], axis=0)
    centres = xp.astype(centres - xp.astype(origin, centres.dtype), dtype)
    n, width = queries.shape
    blocks = [
        _measure(xp.astype(queries[some, :] - origin, dtype, copy=False), centres, factors)
        for some in row_slices(n, rows_a_block(width))
    ]
    return blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=0)


def rows_a_block(width: int) -> int:
    """How many rows of this width stay below `BLOCK_BYTES` in double precision."""
    return max(1, BLOCK_BYTES // (8 * width))


def _measure(queries: Array, centres: Array, factors: Sequence[Factor]) -> Array:
    xp = namespace(queries)
    first = factors[0].whitening
    if all(factor.whitening is first for factor in factors):
        return _measure_shared(queries, centres, factors)
    columns = []
    for position, factor in enumerate(factors):
        white = apply_whitening(queries - centres[position, :], factor.whitening)
        columns.append(factor.scale * xp.sum(white * white, axis=1))
    return xp.stack(columns, axis=1)


def _measure_shared(queries: Array, centres: Array, factors: Sequence[Factor]) -> Array:
    r"""All classes under one whitening: whiten once, then one product for all distances.

    :math:`\lVert a - b \rVert^2 = \lVert a \rVert^2 - 2 a b^T + \lVert b \rVert^2` cancels badly
    in single precision, so this part runs in double; it is the cheap one.
    """
    xp = namespace(queries)
    a = wide(apply_whitening(queries, factors[0].whitening))
    b = wide(apply_whitening(centres, factors[0].whitening))
    square = xp.sum(a * a, axis=1)[:, None] - 2 * (a @ b.T) + xp.sum(b * b, axis=1)[None, :]
    scales = xp.asarray([factor.scale for factor in factors], device=device(square))
    square = xp.maximum(square, 0 * square) * xp.astype(scales, square.dtype)
    return xp.astype(square, queries.dtype, copy=False)


def nearest(distances: Array, k: int) -> Array:
    """The columns of the ``k`` smallest distances of each row, nearest first; ties by column."""
    xp = namespace(distances)
    if k == 1:
        return xp.argmin(distances, axis=1)[:, None]
    return xp.argsort(distances, axis=1, stable=True)[:, :k]
