r"""Precision matrices of single classes, and the squared Mahalanobis distance each defines.

A class is stored in the cheapest of three forms:

`LowRankPrecision`
    A class of few samples. Shrinkage and the pooled prior keep its covariance a low-rank
    correction of a matrix that all classes share,

    .. math:: \Sigma = B + a\,R^T R + \beta\,1 1^T, \qquad B = b\,W + \alpha I

    with the rows :math:`R` of its scatter, :math:`\alpha = \gamma_1 V_1 - \gamma_2 V_2` and
    :math:`\beta = \gamma_2 V_2`. Normalization divides by the standard deviations :math:`\sigma`,
    so with :math:`y = \sigma \circ (x - c)` the Woodbury identity gives
    :math:`d^2 = y^T B^{-1} y - \lVert K y \rVert^2`, with one row of :math:`K` per sample. Without
    a prior :math:`B` is a multiple of the identity; with one it is diagonal in the eigenvectors of
    :math:`W`, which all classes share.
`BlockCholesky`
    A class of many samples among many classes: an upper triangular factor of the precision in a
    basis that all classes share. The squared distance is a sum of squares, one per coordinate, so
    that a prefix of the coordinates is a lower bound.
`DensePrecision`
    All others: a whitening matrix, a diagonal, or the identity.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import (
    Array,
    add_to_diagonal,
    cholesky_and_inverse,
    diagonal,
    eye,
    is_array,
    namespace,
    to_float64,
    to_numpy,
    zeros,
)
from fecam.core.covariance import (
    apply_whitening,
    inverse_cholesky,
    rounding_noise,
    scatter_of,
    shrinkage_terms,
)
from fecam.core.metric import Metric
from fecam.core.prior import PriorSpectrum
from fecam.core.statistics import ClassStatistics
from fecam.core.tuning import TUNING, SearchTuning


@dataclass(frozen=True, eq=False)
class DensePrecision:
    r"""A class whose squared distance is :math:`s\,\lVert (x - c)\,T \rVert^2`.

    :math:`T` is a whitening: a matrix with :math:`T T^T = \Sigma^{-1}`, a vector (a diagonal
    matrix), or None (the identity).
    """

    center: Array
    whitening: Array | None
    scale: float = 1.0

    def squared_mahalanobis(self, differences: Array) -> Array:
        """Squared distances of rows of differences from the center, without the scale."""
        white = apply_whitening(differences, self.whitening)
        return to_float64(namespace(white).sum(white * white, axis=-1))

    def apply(self, columns: Array) -> Array:
        r""":math:`\Sigma^{-1}` times columns."""
        if self.whitening is None:
            return columns
        whitening = to_float64(self.whitening)
        if whitening.ndim == 1:
            return whitening[:, None] ** 2 * columns
        return whitening @ (whitening.T @ columns)


@dataclass(frozen=True, eq=False)
class BlockCholesky:
    r"""A class in a shared orthogonal basis, where its precision has a triangular factor.

    With :math:`z` the difference in that basis, the squared distance is
    :math:`s\,(f\,\lVert z_{>m} \rVert^2 + \lVert z\,T \rVert^2)` with :math:`T` upper triangular.
    The *tail floor* :math:`f` is a part of the distance that every direction behind the first
    :math:`m` coordinates contributes, so that it can be bounded from the length of the tail alone.
    """

    center: Array
    blocks: tuple[Array, ...]
    """Blocks of columns of the triangle, without the zeros below it."""
    tail_floor: float
    axes: Array
    """The basis; a column per axis. The same object for all classes."""
    tail_mean: float
    """Mean precision of the coordinates behind the first block, the tail floor included."""
    scale: float = 1.0
    noise: float = 0.0
    """Rounding of the product with a later block, per unit of length of a query and a center, if
    the blocks are those of a marginal distribution; distances of the class are computed otherwise.
    """

    def squared_mahalanobis(self, differences: Array) -> Array:
        """Squared distances of rows of differences from the center, without the scale."""
        return self.rotated_sq_norm(
            differences @ namespace(differences).astype(self.axes, differences.dtype)
        )

    def rotated_sq_norm(self, rotated: Array) -> Array:
        """Squared distances of differences that are given in the shared basis."""
        square = self.first_block_terms(rotated)
        for block in self.blocks[1:]:
            white = rotated[..., : block.shape[0]] @ block
            square = square + to_float64(namespace(white).vecdot(white, white))
        return square

    def first_block_terms(self, rotated: Array) -> Array:
        """What the first block and the tail floor contribute to squared distances."""
        xp, end = namespace(rotated), self.blocks[0].shape[0]
        white, tail = rotated[..., :end] @ self.blocks[0], rotated[..., end:]
        tail_sq = to_float64(xp.vecdot(tail, tail))
        return self.tail_floor * tail_sq + to_float64(xp.vecdot(white, white))

    def apply(self, columns: Array) -> Array:
        r""":math:`\Sigma^{-1}` times columns."""
        axes = to_float64(self.axes)
        rotated = axes.T @ columns
        product = self.tail_floor * rotated
        product[: self.blocks[0].shape[0], :] = 0
        for block in map(to_float64, self.blocks):
            end = block.shape[0]
            product[:end, :] += block @ (block.T @ rotated[:end, :])
        return axes @ product

    @cached_property
    def first_block_precision(self) -> NDArray[Any]:
        """Marginal precision of the first block of coordinates, without the tail floor."""
        first = to_numpy(self.blocks[0]).astype(np.float64)
        return np.asarray(first @ first.T)


@dataclass(frozen=True, eq=False)
class LowRankPrecision:
    r"""A class of few samples, by Woodbury's identity.

    With :math:`u = w \circ ((\sigma \circ (x - c))\,Q)` the squared distance is
    :math:`s\,(\lVert u \rVert^2 - \sum_i \pm (k_i^T u)^2)`; without a prior there is no :math:`Q`.
    """

    center: Array
    std: Array
    weights: Array
    rows: Array
    signs: Array | None
    """-1 for a row whose square is added instead; None if there is no such row."""
    eigenvectors: Array | None
    """Those of the prior; the same object for all classes."""
    scale: float = 1.0

    def squared_mahalanobis(self, differences: Array) -> Array:
        """Squared distances of rows of differences from the center, without the scale."""
        return low_rank_sq_norm(self.whiten(differences), self.rows, self.signs)

    def whiten(self, differences: Array) -> Array:
        """The vectors :math:`u`: differences whitened by the part that is not of low rank."""
        u = namespace(differences).astype(differences, self.std.dtype, copy=False)
        if self.eigenvectors is None:
            return u * (self.std * self.weights)
        return ((u * self.std) @ self.eigenvectors) * self.weights

    @cached_property
    def rows_in_features(self) -> Array:
        """With a prior, the rows in the coordinates of the features."""
        assert self.eigenvectors is not None
        return ((self.rows * self.weights) @ self.eigenvectors.T) * self.std

    def marginal(self, axes: NDArray[Any], size: int) -> BlockCholesky:
        """The marginal distribution along the first axes, in two blocks of ``size``.

        For a class without a prior, on NumPy.
        """
        scaled = axes[:, : 2 * size] / (self.std.astype(np.float64) * self.weights)[:, None]
        rows = self.rows.astype(np.float64)
        signs = np.ones(len(rows)) if self.signs is None else self.signs
        along = rows @ scaled
        covariance = scaled.T @ scaled
        covariance += along.T @ np.linalg.solve(np.diag(signs) - rows @ rows.T, along)
        factors = cholesky_and_inverse((covariance + covariance.T) / 2)
        # A bound of zero where tiny features overflowed.
        triangle = np.zeros_like(covariance) if factors is None else factors[1].T
        second = triangle[:, size:].astype(self.rows.dtype)
        noise = 4 * float(np.finfo(second.dtype).eps * np.linalg.norm(second)) * len(second) ** 0.5
        tail = self.squared_mahalanobis(axes[:, size:].T)
        return BlockCholesky(
            self.center,
            (triangle[:size, :size], second),
            tail_floor=0.0,
            axes=axes,
            tail_mean=float(np.sum(tail)) / max(len(tail), 1),
            noise=noise,
        )

    @cached_property
    def low_rank_share(self) -> float:
        r"""The largest share of :math:`\lVert u \rVert^2` that the low-rank part can subtract."""
        rows = to_numpy(self.rows).astype(np.float64)
        if self.signs is not None:
            rows = rows[to_numpy(self.signs) > 0]
        if not len(rows):
            return 0.0
        return min(float(np.linalg.eigvalsh(rows @ rows.T)[-1]), 1.0)


Precision = DensePrecision | BlockCholesky | LowRankPrecision


def low_rank_sq_norm(u: Array, rows: Array, signs: Array | None) -> Array:
    r""":math:`\lVert u \rVert^2 - \sum_i \pm (k_i^T u)^2` of each vector, at least zero.

    ``rows`` may be a stack, one matrix per class, and ``u`` a stack of vectors per class.
    """
    xp = namespace(u)
    projected = u @ xp.matrix_transpose(rows)
    signed = projected if signs is None else projected * signs
    square = to_float64(xp.vecdot(u, u)) - to_float64(xp.vecdot(projected, signed))
    return xp.maximum(square, 0 * square)


def shared_basis(within: Array, centers: Array) -> Array:
    """Principal axes, as columns, of samples with these class centers and this covariance."""
    xp = namespace(within)
    apart = centers - xp.mean(centers, axis=0)
    _, vectors = xp.linalg.eigh(within + apart.T @ apart / centers.shape[0])
    return xp.asarray(xp.flip(vectors, axis=1), copy=True)


def block_ends(n_features: int, tuning: SearchTuning = TUNING) -> list[int]:
    """Ends of the column blocks of a triangle; each block is a step of the search."""
    ends = [max(min(tuning.first_block, n_features // 4), 1)]
    while ends[-1] < n_features:
        ends.append(min(math.ceil(ends[-1] * tuning.block_growth), n_features))
    return ends


def block_cholesky(
    covariance: Array,
    center: Array,
    axes: Array,
    dtype: object,
    scale: float = 1.0,
    tuning: SearchTuning = TUNING,
) -> BlockCholesky | None:
    """Factorize a class in a shared basis; None if its matrix is numerically singular."""
    xp = namespace(covariance)
    noise = rounding_noise(covariance, float(xp.finfo(dtype).eps))
    max_precision = tuning.max_single_gain / float(xp.max(diagonal(covariance)))
    with np.errstate(over="ignore"):  # of tiny features
        inverse = inverse_cholesky(xp.astype(covariance, dtype), noise)
        square = math.inf if inverse is None else float(xp.sum(inverse * inverse))
    if not square < max_precision * covariance.shape[0]:
        inverse = inverse_cholesky(covariance, noise)  # in double precision
    if inverse is None:
        return None
    white = inverse @ xp.astype(axes, inverse.dtype, copy=False)
    ends = block_ends(covariance.shape[0], tuning)
    factor = _separate_tail_floor(white.T @ white, covariance, axes, ends[0], tuning)
    if factor is None:
        return None
    floor, triangle = factor[0], xp.astype(factor[1], dtype, copy=False)
    blocks = tuple(
        xp.asarray(triangle[:end, start:end], copy=True)
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )
    tail = triangle[ends[0] :, ends[0] :]
    tail_mean = floor + float(xp.sum(to_float64(tail) ** 2)) / max(tail.shape[0], 1)
    return BlockCholesky(center, blocks, floor, axes, tail_mean, scale)


def _separate_tail_floor(
    precision: Array, covariance: Array, axes: Array, start: int, tuning: SearchTuning
) -> tuple[float, Array] | None:
    """Tail floor of the coordinates from ``start`` on, and the triangle of the remainder.

    The precision is given in the shared basis, the covariance is not. None if it is singular.
    """
    xp = namespace(precision)
    tail = axes[:, start:]
    if tail.shape[1] == 0:
        floors = [0.0]
    else:
        direction = xp.ones_like(tail[0, :])
        for _ in range(9):  # power iteration: the direction of largest variance
            direction = tail.T @ (covariance @ (tail @ direction))
            variance = float(xp.linalg.vector_norm(direction))
            direction = direction / variance
        floors = [tuning.tail_floor_share / variance, 0.0]
    mask = xp.concat([zeros((start,), tail), xp.ones_like(tail[0, :])])
    for floor in floors:  # the first may be too high
        remainder = add_to_diagonal(precision, -floor * mask)
        # From the last coordinate backwards.
        factors = cholesky_and_inverse(xp.asarray(xp.flip(remainder), copy=True))
        if factors is not None:
            return floor, xp.flip(factors[0])
    return None


def is_low_rank(statistics: ClassStatistics, metric: Metric) -> bool:
    """Whether a class is stored as few rows and the metric keeps its covariance so."""
    if metric.covariance != "class" or metric.off_diagonal != "all":
        return False
    averaged = statistics.domain_mean_covariance if metric.average_domains else None
    scatter = statistics.scatter if averaged is None else averaged
    return scatter is not None and scatter.storage == "low_rank"  # without reading its data


def low_rank_precision(
    statistics: ClassStatistics,
    metric: Metric,
    spectrum: PriorSpectrum | None,
    center: Array,
    dtype: object,
    *,
    scale: float = 1.0,
    fallback_variance: float = 1.0,
    tuning: SearchTuning = TUNING,
) -> LowRankPrecision | None:
    """The precision of a low-rank class; None where Woodbury's identity is inaccurate."""
    rows = to_float64(scatter_of(statistics, average_domains=metric.average_domains).data)
    xp = namespace(rows)
    n_features = rows.shape[1]
    pseudo_count = 0.0 if spectrum is None else spectrum.prior.pseudo_count
    own = 1 / ((statistics.count - 1 + pseudo_count) or 1)
    shared = pseudo_count * own if spectrum is not None else 0.0
    rows = rows * own**0.5
    variance = xp.sum(rows * rows, axis=0)
    if spectrum is not None:
        variance = variance + shared * spectrum.variances
    trace = float(xp.sum(variance))
    entries = float(xp.sum(xp.sum(rows, axis=1) ** 2))
    entries += shared * spectrum.sum_of_entries if spectrum is not None else 0.0
    first, second = shrinkage_terms(trace, entries, n_features, metric.shrinkage)
    floor = first - second
    if trace == 0:  # no variance at all, for example a single sample
        floor, first, second = fallback_variance, fallback_variance, 0.0
    elif not floor > tuning.min_low_rank_floor * trace / n_features:
        return None
    base = floor + 0 * variance if spectrum is None else shared * spectrum.values + floor
    weights = 1 / xp.sqrt(base)
    if second != 0:
        rows = xp.concat([rows, (abs(second) ** 0.5 + 0 * variance)[None, :]], axis=0)
    if spectrum is not None:
        rows = rows @ spectrum.vectors
    rows = rows * weights
    solved = _woodbury(rows, negative=second < 0)
    if solved is None:
        return None
    kept, signs = solved
    if float(xp.sum(rows * rows)) > tuning.max_single_gain:
        if spectrum is not None:
            return None
        dtype = rows.dtype  # a few rows in double precision cost little
    return LowRankPrecision(
        center,
        xp.astype(normalizing_std(variance + first, metric), dtype),
        xp.astype(weights, dtype),
        xp.astype(kept, dtype),
        None if signs is None else xp.astype(signs, dtype),
        None if spectrum is None else spectrum.rounded_vectors,
        scale,
    )


def _woodbury(rows: Array, *, negative: bool) -> tuple[Array, Array | None] | None:
    r"""Rows :math:`K` and signs with :math:`(I + R^T S R)^{-1} = I - K^T S' K`; None if singular.

    :math:`S` is the identity, but for the last row if that one is ``negative``.
    """
    xp = namespace(rows)
    inner = rows @ rows.T
    if rows.shape[0] == 0:
        return rows, None
    if not negative:
        factors = cholesky_and_inverse(inner + eye(rows.shape[0], rows))
        return None if factors is None else (factors[1] @ rows, None)
    signs = xp.concat([xp.ones_like(rows[:-1, 0]), -xp.ones_like(rows[:1, 0])])
    values, vectors = xp.linalg.eigh(inner + signs[:, None] * eye(rows.shape[0], rows))
    # The matrix is positive definite if and only if exactly one eigenvalue is negative.
    if int(xp.sum(xp.astype(values < 0, xp.int64))) != 1 or float(xp.min(xp.abs(values))) < 1e-6:
        return None
    kept = (vectors.T @ rows) / xp.sqrt(xp.abs(values))[:, None]
    return kept, xp.where(values < 0, -xp.ones_like(values), xp.ones_like(values))


def normalizing_std(variance: Array, metric: Metric) -> Array:
    """What normalization multiplies differences by, per feature."""
    xp = namespace(variance)
    if metric.normalization == "correlation":
        return xp.sqrt(variance)
    norm = xp.linalg.vector_norm(variance) if metric.normalization == "variance" else 1.0
    return xp.ones_like(variance) * float(norm) ** 0.5


def on_numpy(precision: Precision) -> Precision:
    """The same precision on NumPy arrays, which share memory where they can."""
    if isinstance(precision.center, np.ndarray):
        return precision
    values = {field.name: getattr(precision, field.name) for field in fields(precision)}
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = tuple(map(to_numpy, value))
        elif is_array(value):
            values[name] = to_numpy(value)
    return replace(precision, **values)
