"""Exhaustive squared distances from queries to all classes, in a few matrix products.

Classes are grouped by the form of their precisions; each group is one function of a block of
queries. Memory does not grow with the number of queries: they are processed in blocks, and so are
the classes where a temporary array would exceed a block.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from fecam.core.arrays import (
    Array,
    accumulation_dtype,
    contiguous,
    namespace,
    row_slices,
    to_backend_of,
    to_float64,
    zeros,
)
from fecam.core.covariance import apply_whitening
from fecam.core.precision import (
    BlockCholesky,
    DensePrecision,
    LowRankPrecision,
    Precision,
    low_rank_sq_norm,
)
from fecam.core.tuning import TUNING, SearchTuning

Distances = Callable[[Array], Array]
"""A function from a block of queries to squared distances, (queries, classes)."""


class Neighbors(NamedTuple):
    """The nearest classes of each query."""

    indices: Array
    """(n, k), nearest first."""
    distances: Array
    """(n, k), squared."""
    softmax_sum: Array
    """(n,): the sum of the softmax numerators of all classes, that of the nearest being 1."""


class ExhaustiveDistances:
    """All classes of a model, in their order, each query compared with each of them."""

    def __init__(
        self, precisions: Sequence[Precision], dtype: Any, tuning: SearchTuning = TUNING
    ) -> None:
        xp = namespace(precisions[0].center)
        centers = xp.stack([to_float64(precision.center) for precision in precisions], axis=0)
        # Far from zero, rounded coordinates lose the differences between classes: everything is
        # shifted by a central point before it is rounded.
        self.origin = coordinate_median(centers)
        self.centers = xp.astype(centers - self.origin, dtype)
        scales = xp.asarray([precision.scale for precision in precisions], device=device(centers))
        self.scales = xp.astype(scales, dtype)
        self.precisions = list(precisions)
        self._distances = grouped_distances(self.precisions, self.centers, tuning)
        self.block_rows = max(1, tuning.block_bytes // (8 * max(self.centers.shape)))

    def shift(self, queries: Array) -> Array:
        """Queries relative to the origin, in the precision of the model."""
        xp = namespace(queries)
        origin = xp.astype(self.origin, queries.dtype)
        return xp.astype(queries - origin, self.centers.dtype, copy=False)

    def blocks(self, queries: Array) -> Iterator[Array]:
        """The squared distances of one block of queries after another."""
        for rows in row_slices(queries.shape[0], self.block_rows):
            with np.errstate(over="ignore", invalid="ignore"):  # such distances are infinite
                distances = self._distances(self.shift(queries[rows, :]))
            yield distances

    def __call__(self, queries: Array) -> Array:
        """Squared distances, (queries, classes)."""
        blocks = list(self.blocks(queries))
        return blocks[0] if len(blocks) == 1 else namespace(queries).concat(blocks, axis=0)


def coordinate_median(centers: Array) -> Array:
    """The median of each coordinate: a central point that outliers do not move."""
    half = centers.shape[0] // 2
    if isinstance(centers, np.ndarray):  # the array API can only sort all of them
        return np.partition(centers, half, axis=0)[half, :]
    return namespace(centers).sort(centers, axis=0)[half, :]


def k_smallest(distances: Array, k: int) -> Array:
    """Columns of the ``k`` smallest distances per row, nearest first; ties by column.

    Distances that differ by rounding alone are ties: two equal columns of one matrix product need
    not come out equal. A tie starts at its smallest distance, so the order does not depend on
    ``k``.
    """
    xp, n_classes = namespace(distances), distances.shape[1]
    rounding = 1 + 32 * float(xp.finfo(distances.dtype).eps)
    if k == 1:
        tied = distances <= xp.min(distances, axis=1, keepdims=True) * rounding
        return xp.argmax(xp.astype(tied, xp.int8), axis=1)[:, None]
    order = xp.argsort(distances, axis=1, stable=True)
    ranked = xp.take_along_axis(distances, order, axis=1)
    limit, groups = ranked[:, 0] * rounding, [0 * order[:, 0]]
    for i in range(1, n_classes):
        is_larger = ranked[:, i] > limit
        if i >= k and bool(xp.all(is_larger)):
            break
        limit = xp.where(is_larger, ranked[:, i] * rounding, limit)
        groups.append(groups[-1] + xp.astype(is_larger, order.dtype))
    order = order[:, : len(groups)]
    by_group = xp.argsort(xp.stack(groups, axis=1) * n_classes + order, axis=1)
    return xp.take_along_axis(order, by_group, axis=1)[:, :k]


def group_runs(values: NDArray[Any]) -> Iterator[tuple[int, slice]]:
    """Each run of equal numbers: the number, and the slice that holds it.

    >>> list(group_runs(np.array([3, 3, 5])))
    [(3, slice(0, 2, None)), (5, slice(2, 3, None))]
    """
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    for start, end in pairwise([0, *starts.tolist(), len(values)] if len(values) else []):
        yield int(values[start]), slice(start, end)


def grouped_distances(
    precisions: Sequence[Precision], centers: Array, tuning: SearchTuning = TUNING
) -> Distances:
    """Squared distances to classes around ``centers``, in the coordinates of the queries."""
    xp, groups = namespace(centers), group_by_form(precisions)
    functions = [
        build([precisions[i] for i in members], xp.stack([centers[i, :] for i in members]), tuning)
        for (build, *_), members in groups.items()
    ]
    order = to_backend_of(np.argsort([i for members in groups.values() for i in members]), centers)
    # Scaled before they are rounded, as in a search: so the same ones overflow.
    exact = {"dtype": accumulation_dtype(centers), "device": device(centers)}
    scales = [
        xp.asarray([precisions[i].scale for i in members], **exact) for members in groups.values()
    ]

    def distances(queries: Array) -> Array:
        parts = [
            xp.astype(function(queries) * scale, queries.dtype)
            for function, scale in zip(functions, scales, strict=True)
        ]
        return parts[0] if len(parts) == 1 else xp.take(xp.concat(parts, axis=1), order, axis=1)

    return distances


def group_by_form(precisions: Sequence[Precision]) -> dict[tuple[Any, ...], list[int]]:
    """Positions of the precisions that one function evaluates together; the key starts with it."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, precision in enumerate(precisions):
        groups.setdefault(_group_key(precision), []).append(i)
    return groups


def _group_key(precision: Precision) -> tuple[Any, ...]:
    """The function that builds a group, and all that its members must have in common."""
    if isinstance(precision, BlockCholesky):
        return _block_cholesky_group, id(precision.axes)
    if isinstance(precision, DensePrecision):
        return _shared_whitening_group, id(precision.whitening)
    rank = 1 << max(precision.rows.shape[0] - 1, 0).bit_length()  # rows are padded to this number
    build = _low_rank_group if precision.eigenvectors is None else _low_rank_prior_group
    shared = id(precision.eigenvectors), precision.signs is None, str(precision.rows.dtype)
    return build, rank, *shared


def _shared_whitening_group(
    precisions: list[DensePrecision], centers: Array, tuning: SearchTuning
) -> Distances:
    r"""Classes with one whitening: whiten once, then one product for all distances.

    :math:`\lVert a - b \rVert^2 = \lVert a \rVert^2 - 2 a b^T + \lVert b \rVert^2` cancels badly
    in single precision, so this part, which is cheap, runs in double precision.
    """
    whitening = precisions[0].whitening
    if len(precisions) == 1:
        return lambda queries: precisions[0].squared_mahalanobis(queries - centers)[:, None]
    b = to_float64(apply_whitening(centers, whitening))

    def distances(queries: Array) -> Array:
        xp = namespace(queries)
        a = to_float64(apply_whitening(queries, whitening))
        square = xp.sum(a * a, axis=1)[:, None] - 2 * (a @ b.T) + xp.sum(b * b, axis=1)[None, :]
        return xp.maximum(square, 0 * square)

    return distances


def _block_cholesky_group(
    precisions: list[BlockCholesky], centers: Array, tuning: SearchTuning
) -> Distances:
    """Classes in one basis: rotate the queries, then one product per class and column block."""
    xp = namespace(centers)
    axes = precisions[0].axes
    rotated_centers = xp.astype(to_float64(centers) @ to_float64(axes), centers.dtype)
    axes = xp.astype(axes, centers.dtype)

    def distances(queries: Array) -> Array:
        rotated = queries @ axes
        columns = [
            precision.rotated_sq_norm(rotated - rotated_centers[i, :])
            for i, precision in enumerate(precisions)
        ]
        return xp.stack(columns, axis=1)

    return distances


def _low_rank_group(
    precisions: list[LowRankPrecision], centers: Array, tuning: SearchTuning
) -> Distances:
    r"""Low-rank classes without a prior: a diagonal form minus a low-rank form."""
    xp = namespace(centers)
    roots = xp.stack([to_float64(p.std) * to_float64(p.weights) for p in precisions], axis=0)
    base = diagonal_form(roots, centers)
    rows = [p.rows * (p.std * p.weights) for p in precisions]
    low_rank = LowRankForm(rows, precisions, centers, tuning)

    def distances(queries: Array) -> Array:
        square = base(queries) - low_rank(queries)
        return xp.maximum(square, 0 * square)

    return distances


class LowRankForm:
    r""":math:`\sum_i \pm (h_{ci}^T (x - p_c))^2` for each class :math:`c` of a group."""

    def __init__(
        self,
        rows: list[Array],
        precisions: list[LowRankPrecision],
        centers: Array,
        tuning: SearchTuning = TUNING,
    ) -> None:
        padded, self._signs = _padded_rows(rows, precisions)
        xp, (self.n_classes, self.rank, n_features) = namespace(centers), padded.shape
        self._bias = (padded @ xp.astype(centers, padded.dtype)[:, :, None])[:, :, 0]
        self._columns = contiguous(xp.reshape(padded, (-1, n_features)).T)
        # Temporary arrays of a few megabytes stay in the cache and are not returned to the system.
        self._block_size = tuning.block_bytes // 64

    def __call__(self, queries: Array) -> Array:
        """The forms of all classes, (queries, classes)."""
        step = max(1, self._block_size // max(queries.shape[0] * self.rank, 1))
        parts = [self.of(queries, classes) for classes in row_slices(self.n_classes, step)]
        return parts[0] if len(parts) == 1 else namespace(queries).concat(parts, axis=1)

    def of(self, queries: Array, classes: slice) -> Array:
        """The forms of some classes."""
        xp, bias = namespace(queries), self._bias[classes, :]
        columns = self._columns[:, classes.start * self.rank : classes.stop * self.rank]
        projected = xp.astype(queries, columns.dtype, copy=False) @ columns
        projected = xp.reshape(projected, (queries.shape[0], *bias.shape))
        projected -= bias
        signed = projected if self._signs is None else projected * self._signs[classes, :]
        return to_float64(xp.vecdot(projected, signed))


def diagonal_form(roots: Array, centers: Array) -> Distances:
    r""":math:`\sum_j (r_{cj} (x_j - c_j))^2` for each class :math:`c`, in double precision."""
    xp = namespace(centers)
    weights = to_float64(roots) ** 2
    linear = -2 * weights * to_float64(centers)
    constant = xp.sum(weights * to_float64(centers) ** 2, axis=1)

    def distances(queries: Array) -> Array:
        x = to_float64(queries)
        terms = (x * x) @ weights.T + constant
        square = terms + x @ linear.T
        # Rounding noise becomes zero, so that equal classes tie.
        return xp.where(square > 64 * xp.finfo(terms.dtype).eps * terms, square, 0 * square)

    return distances


def _low_rank_prior_group(
    precisions: list[LowRankPrecision], centers: Array, tuning: SearchTuning
) -> Distances:
    """Low-rank classes with a prior, through the eigenvectors that they share."""
    xp = namespace(centers)
    n_classes, n_features = centers.shape
    std = xp.stack([p.std for p in precisions], axis=0)
    weights = xp.stack([p.weights for p in precisions], axis=0)
    rows, signs = _padded_rows([p.rows for p in precisions], precisions)
    vectors = precisions[0].eigenvectors

    def to_classes(queries: Array, classes: slice) -> Array:
        u = (queries[None, :, :] - centers[classes, None, :]) * std[classes, None, :]
        u = xp.reshape(xp.reshape(u, (-1, n_features)) @ vectors, u.shape)
        u = u * weights[classes, None, :]
        signs_of_classes = None if signs is None else signs[classes, None, :]
        return low_rank_sq_norm(u, rows[classes, :, :], signs_of_classes)

    def distances(queries: Array) -> Array:
        step = max(1, tuning.block_bytes // (8 * queries.shape[0] * n_features))
        parts = [to_classes(queries, classes) for classes in row_slices(n_classes, step)]
        return xp.concat(parts, axis=0).T

    return distances


def _padded_rows(
    rows: list[Array], precisions: list[LowRankPrecision]
) -> tuple[Array, Array | None]:
    """Rows and signs of classes, stacked, with zeros up to the largest rank.

    Either all classes of a group have signs or none.
    """
    xp = namespace(rows[0])
    rank = max(matrix.shape[0] for matrix in rows)

    def stacked(arrays: list[Array]) -> Array:
        padding = [zeros((rank - x.shape[0], *x.shape[1:]), x) for x in arrays]
        padded = [xp.concat(pair, axis=0) for pair in zip(arrays, padding, strict=True)]
        return xp.stack(padded, axis=0)

    signs = [p.signs for p in precisions if p.signs is not None]
    return stacked(rows), stacked(signs) if signs else None
