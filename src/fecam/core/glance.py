r"""The nearest classes of a few queries, with proof, before any factor is there.

A factor pays off over many queries. The first query of a model that was just opened should not wait
for a thousand of them. A squared distance :math:`y^T \Sigma^{-1} y` can be had without one, by
conjugate gradients: from a few products :math:`\Sigma v` come numbers that bound it from below and
from above, closer with each product. With residuals :math:`r_i` and a yardstick :math:`M`,
:math:`z_i = M^{-1} r_i`, and steps :math:`\alpha_i`,

.. math:: \sum_{i<k} \alpha_i\, r_i^T z_i \;\le\; y^T \Sigma^{-1} y \;\le\;
          \sum_{i<k} \alpha_i\, r_i^T z_i + \frac{r_k^T z_k}{\theta}
          \qquad\text{if}\quad \Sigma \succeq \theta M.

The yardstick is what a class's matrix would be if it were like those of all others, the shrunk
matrix of the prior; without a prior the identity. Shrinkage gives :math:`\theta`: it lifts every
direction by the same. The better the yardstick, the fewer products: one or two are mostly enough
to know that a class is farther away than the nearest so far. What the bounds leave is measured
through factors, so the answer is that of measuring everything.

A class's numbers are looked at once, one class after another, and none of them is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from fecam.core.arrays import Array, is_cpu, to_numpy
from fecam.core.covariance import passes, scatter_of
from fecam.core.metric import Metric, distance_scale, prototype_of
from fecam.core.panel import REACH, AnyFactor, Found, Panel, middle
from fecam.core.prior import Prior
from fecam.core.scatter import Scatter, diagonal_places, packed_data, to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.threads import in_parallel

Matrix = NDArray[Any]

LEAST_FLOOR = 0.01
"""Below this share of the mean variance, a matrix is too close to singular for its products."""
SLACK = 1e-4
"""How far bounds give way, relatively, for what a factor may be off by rounding."""
ROUNDING = 4
"""And how many times the rounding of a matrix's entries, and of a difference, on top."""
CLOSE = 1e-4
"""Bounds this close to each other need no further product."""
MOST_STEPS = 64
"""Products after which bounds are taken as they are."""
GUESSES = 8
"""So many classes that look near come first: one of them mostly is the nearest, or close to it."""
SINGLE = 4
"""Up to so many queries are multiplied one by one, with half of a matrix as it is kept."""
CHUNK = 32
"""Classes that one thread looks at in a row."""


class Yardstick:
    """What the matrices of all classes have in common, for products with them."""

    def __init__(self, prior: Prior, metric: Metric, dtype: Any) -> None:
        covariance = to_numpy(prior.covariance)
        self.pseudo_count = prior.pseudo_count
        self.unit = float(np.trace(covariance)) / len(covariance)
        """The mean variance; the matrix is kept as a multiple of it."""
        whole = covariance / (self.unit or 1.0)
        self.added = metric.shrinkage[0]
        inverse = np.linalg.inv(whole + self.added * np.eye(len(whole)))
        self.inverse = inverse.astype(dtype)
        self.whole = whole.astype(dtype)
        self.variances = np.diagonal(whole).copy()
        self.entries = float(np.sum(whole))


@dataclass(frozen=True, slots=True, eq=False)
class ClassMatrix:
    """The regularised matrix of one class, by what it does to vectors."""

    times: Callable[[Matrix], Matrix]
    """Rows times the matrix."""
    stretch: Matrix | float
    """What normalisation multiplies differences by."""
    least: float
    r""":math:`\theta`: the matrix is at least so many times the yardstick."""
    rounding: float
    """By how much, relatively, rounded entries may change a squared distance."""
    steepest: float
    """How many times the length of a difference its distance may be, at most."""


def can_glance(known: ClassifierState, metric: Metric) -> bool:
    """Whether there is a matrix a class, with a floor, where NumPy can look at it."""
    return (
        metric.covariance == "class"
        and metric.shrinkage[0] >= LEAST_FLOOR
        and (metric.off_diagonal == "all" or not metric.has_prior)
        and is_cpu(known.like)
    )


class Glance:
    """All classes of a model, before they have factors."""

    def __init__(self, known: ClassifierState, metric: Metric, prior: Prior | None) -> None:
        self.made_of, self.metric = (known, prior), metric
        self._model_dtype = known.like.dtype
        self._classes = list(known.classes.values())
        self._scales = np.asarray([distance_scale(one, metric) for one in self._classes])
        listed = [to_numpy(prototype_of(one, metric, known.transform)) for one in self._classes]
        centres = np.stack(listed).astype(np.float64)
        self._origin = middle(centres)
        self._centres = centres - self._origin
        self._dtype = to_numpy(known.like).dtype
        self._eps = float(np.finfo(self._dtype).eps)
        self._noise = self._eps * np.linalg.norm(self._centres, axis=1)
        self._yardstick = None if prior is None else Yardstick(prior, metric, self._dtype)
        self._whitening = None
        if prior is not None and prior.whitening is not None:
            self._whitening = to_numpy(prior.whitening).astype(np.float64)
        self._white = self._whitened(self._centres)

    def find(
        self,
        queries: Array,
        k: int,
        factor_of: Callable[[int], AnyFactor],
        spare: Callable[[], float],
        warmth: float = 0.0,
    ) -> Found:
        """The ``k`` nearest classes of each query; of a temperature the weights of the likely.

        ``factor_of`` gives the factor of a class that is left, ``spare`` the variance of one that
        never varied.
        """
        rows, noise = self.shifted(queries)
        lower = np.zeros((len(rows), len(self._classes)))
        upper = np.full(lower.shape, np.inf)
        limit = np.full(len(rows), np.inf)

        def look(positions: Sequence[int]) -> None:
            for at in positions:
                low, high = self.bounds(at, rows, noise, limit, spare)
                lower[:, at], upper[:, at] = low, high
                if np.any(high < limit):
                    farthest = np.min(upper, axis=1) + REACH * warmth
                    limit[:] = np.maximum(np.partition(upper, k - 1, axis=1)[:, k - 1], farthest)

        first = self._guesses(rows, min(k + GUESSES, len(self._classes)))
        look(first)
        rest = sorted(set(range(len(self._classes))).difference(first))
        in_parallel(look, [rest[at : at + CHUNK] for at in range(0, len(rest), CHUNK)])
        left = np.flatnonzero(np.any(lower <= limit[:, None], axis=0))
        panel = Panel([factor_of(int(at)) for at in left], self._model_dtype)
        found = panel.find(queries, k, warmth)
        return found._replace(order=left[to_numpy(found.order)])

    def shifted(self, queries: Array) -> tuple[Matrix, Matrix]:
        """Queries around the origin, and how far each may be off where a panel shifts them."""
        given = to_numpy(queries)
        rows = given.astype(np.float64) - self._origin
        noise = np.finfo(given.dtype).eps * np.linalg.norm(self._origin)
        return rows, noise + self._eps * np.linalg.norm(rows, axis=1)

    def bounds(
        self,
        position: int,
        rows: Matrix,
        noise: Matrix,
        limit: Matrix,
        spare: Callable[[], float],
    ) -> tuple[Matrix, Matrix]:
        """Below and above the squared distances of some rows, known up to noise, to a class.

        A row for which the class lies beyond its limit is not followed further.
        """
        one, scale = self._classes[position], self._scales[position]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            matrix = class_matrix(one, self.metric, self._yardstick, spare)
            if matrix is None:
                return np.zeros(len(rows)), np.full(len(rows), np.inf)
            apart = (rows - self._centres[position]) * matrix.stretch
            # A factor measures differences of numbers that were rounded before.
            off = ROUNDING * matrix.steepest * (noise + self._noise[position])
            inverse = None if self._yardstick is None else self._yardstick.inverse
            beyond = (np.sqrt(limit / scale) + off) ** 2
            low, high = _bounds(matrix, apart, inverse, beyond, self._dtype)
            low, high = np.maximum(np.sqrt(low) - off, 0) ** 2, (np.sqrt(high) + off) ** 2
        return low * scale, high * scale

    def _guesses(self, rows: Matrix, number: int) -> list[int]:
        """The classes that look nearest to any of these rows, by what all classes share."""
        far = [np.sum((self._white - one) ** 2, axis=1) for one in self._whitened(rows)]
        order = np.argsort(np.stack(far) * self._scales, axis=1)[:, :number]
        return list(dict.fromkeys(order.T.ravel().tolist()))

    def _whitened(self, rows: Matrix) -> Matrix:
        return rows if self._whitening is None else rows @ self._whitening


def class_matrix(
    one: ClassStatistics, metric: Metric, yardstick: Yardstick | None, spare: Callable[[], float]
) -> ClassMatrix | None:
    """What `fecam.core.metric.class_covariance` gives, for products; None if it has no floor.

    All of it is in units of the mean variance, so that features may have any scale.
    """
    kept = scatter_of(one, average_domains=metric.average_domains)
    thin = kept.storage == "low_rank" and metric.off_diagonal == "all"
    data, n_features = to_numpy(kept.data if thin else packed_data(kept)), kept.n_features
    variance = np.square(data, dtype=np.float64).sum(axis=0) if thin else _diagonal(data)
    pseudo_count = 0.0 if yardstick is None else yardstick.pseudo_count
    own = 1 / ((one.count - 1 + pseudo_count) or 1)
    shared = 0.0 if yardstick is None else pseudo_count * own * yardstick.unit
    unit = own * float(np.mean(variance)) + shared
    if unit == 0:
        return _alike(n_features, metric, yardstick, spare)
    own, shared = own / unit, shared / unit
    number = data.dtype.type
    data = data * number(math.sqrt(own) if thin else own)
    variance = own * variance
    if yardstick is not None:
        variance = variance + shared * yardstick.variances
    first, second = _shrinkage(data, shared, yardstick, variance, metric)
    # The matrix of ones has the eigenvalue ``width``, and zeros.
    floor = first - second + min(n_features * second, 0.0)
    variance = variance + first
    if not (floor > LEAST_FLOOR and np.min(variance) > 0 and np.all(np.isfinite(variance))):
        return None
    multiplied = _by_rows(data) if thin else _by_triangle(data, n_features)

    def times(rows: Matrix) -> Matrix:
        product = multiplied(rows) + rows * number(first - second)
        if second:
            product += np.sum(rows, axis=1, keepdims=True) * number(second)
        if yardstick is not None:
            product += (rows @ yardstick.whole) * number(shared)
        return np.asarray(product)

    least = floor
    if yardstick is not None:
        least = floor / yardstick.added
        least = min(least, shared) if shared else least
    rounding = ROUNDING * float(np.finfo(data.dtype).eps) * float(np.sum(variance)) / floor
    stretch = _stretch(variance, unit, metric)
    steepest = float(np.max(stretch)) / math.sqrt(floor)
    return ClassMatrix(times, stretch, least, SLACK + rounding, steepest)


def _alike(
    n_features: int, metric: Metric, yardstick: Yardstick | None, spare: Callable[[], float]
) -> ClassMatrix:
    """The matrix of a class that never varied: a multiple of the identity, as is the yardstick."""
    unit = spare() if metric.normalization is None else 1.0
    least = 1.0 if yardstick is None else 1 / yardstick.added
    stretch = _stretch(np.ones(n_features), unit, metric)
    return ClassMatrix(lambda rows: rows, stretch, least, SLACK, float(np.max(stretch)))


def _shrinkage(
    data: Matrix, shared: float, yardstick: Yardstick | None, variance: Matrix, metric: Metric
) -> tuple[float, float]:
    """What shrinkage adds to the diagonal of a matrix, and to all else of it."""
    n_features, trace = len(variance), float(np.sum(variance))
    others = all_others = n_features * (n_features - 1)
    first = second = apart = 0.0
    if metric.shrinkage[1] != 0 and others:
        apart = _entries(data) - trace
        if yardstick is not None:
            apart += shared * yardstick.entries
        if metric.off_diagonal != "all":
            kept = np.count_nonzero(data) - np.count_nonzero(_diagonal(data))
            others = max(2 * int(kept), 1)
    for g1, g2 in passes(metric.shrinkage, metric.off_diagonal):
        first += g1 * (first + trace / n_features)
        added = g2 * apart / max(others, 1)
        if added:  # nothing is zero any more
            second, apart, others = second + added, apart + added * all_others, all_others
    return first, second


def _entries(data: Matrix) -> float:
    """The sum of all entries of a matrix, out of its rows or its upper triangle."""
    if data.ndim == 2:
        return float(np.sum(np.sum(data, axis=1, dtype=np.float64) ** 2))
    return 2 * float(np.sum(data, dtype=np.float64)) - float(np.sum(_diagonal(data)))


def _diagonal(packed: Matrix) -> Matrix:
    """The diagonal of a matrix, out of its upper triangle."""
    return np.asarray(packed[diagonal_places(math.isqrt(2 * len(packed)))], np.float64)


def _by_triangle(packed: Matrix, n_features: int) -> Callable[[Matrix], Matrix]:
    """Products with a matrix of which there is the upper triangle."""
    multiply = get_blas_funcs("spmv", dtype=packed.dtype)
    whole: list[Matrix] = []

    def times(rows: Matrix) -> Matrix:
        if len(rows) <= SINGLE:
            # The upper triangle row by row is, to Fortran, the lower one column by column.
            return np.stack([multiply(n_features, 1.0, packed, row, lower=1) for row in rows])
        if not whole:
            whole.append(to_dense(Scatter(packed, "packed", n_features)))
        return np.asarray(rows @ whole[0])

    return times


def _by_rows(kept: Matrix) -> Callable[[Matrix], Matrix]:
    """Products with a matrix of which there are a few rows."""
    return lambda rows: np.asarray((rows @ kept.T) @ kept)


def _stretch(variance: Matrix, unit: float, metric: Metric) -> Matrix | float:
    if metric.normalization == "correlation":
        return np.asarray(np.sqrt(variance))
    if metric.normalization is None:
        return 1 / math.sqrt(unit)
    return math.sqrt(float(np.linalg.norm(variance)))


def _bounds(
    matrix: ClassMatrix, apart: Matrix, inverse: Matrix | None, limit: Matrix, dtype: Any
) -> tuple[Matrix, Matrix]:
    """Below and above the squared distances of differences, by conjugate gradients row by row."""
    square = np.vecdot(apart, apart)
    left = np.flatnonzero(square != 0)
    lower, upper = np.zeros(len(apart)), np.zeros(len(apart))
    upper[left], square = np.inf, square[left]
    # Unit vectors: so nothing is too large or too small for single precision.
    rest = (apart[left] / np.sqrt(square)[:, None]).astype(dtype)
    along = rest if inverse is None else rest @ inverse
    energy = np.vecdot(rest, along).astype(np.float64)
    low = np.zeros(len(left))
    for _ in range(MOST_STEPS):
        product = matrix.times(along)
        length = energy / np.vecdot(along, product)
        low = low + length * energy
        lower[left] = low * square * (1 - matrix.rounding)
        beyond = lower[left] > limit[left]
        if np.all(beyond):
            break
        rest = rest - product * length.astype(dtype)[:, None]
        turned = rest if inverse is None else rest @ inverse
        before, energy = energy, np.vecdot(rest, turned).astype(np.float64)
        above = energy / matrix.least
        upper[left] = (low + above) * square * (1 + matrix.rounding)
        going = ~(beyond | (above <= CLOSE * low))
        if not np.any(going):
            break
        along = turned + along * (energy / before).astype(dtype)[:, None]
        state = left, square, low, energy, rest, along
        left, square, low, energy, rest, along = (some[going] for some in state)
    return np.where(lower > 0, lower, 0.0), np.where(np.isnan(upper), np.inf, upper)
