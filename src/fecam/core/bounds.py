r"""Lower and upper bounds of squared distances, cheaper than the distances themselves.

Three kinds of bounds return the same `Interval`:

`PrefixBounds`
    Classes in a shared basis. The first :math:`m` coordinates give the squared distance of their
    *marginal* distribution, :math:`(z - p)^T M (z - p)`, which is never above the whole. For all
    classes at once it is one product of the queries' monomials of degree two.
`PriorBounds`
    Low-rank classes with a pooled prior, see below; the interval is about one percent wide.
`CGBounds`
    Classes without a derived precision: conjugate gradients on the covariance itself. With
    residuals :math:`r_i`, a preconditioner :math:`M`, :math:`z_i = M^{-1} r_i` and step lengths
    :math:`\alpha_i`,

    .. math:: \sum_{i<k} \alpha_i\, r_i^T z_i \;\le\; y^T \Sigma^{-1} y \;\le\;
              \sum_{i<k} \alpha_i\, r_i^T z_i + \frac{r_k^T z_k}{\theta}
              \qquad\text{if}\quad \Sigma \succeq \theta M

    (Hestenes and Stiefel's identity below, the energy of the residual above). :math:`M` is the
    shrunk matrix of the prior, or the identity; shrinkage gives :math:`\theta`.

`PriorBounds` approximates :math:`d^2 = y^T B^{-1} y - \lVert H (x - c) \rVert^2` with
:math:`y = \sigma \circ (x - c)` (see `fecam.core.precision`). The rows :math:`H` are few, but
:math:`B^{-1}` needs a rotation by the prior's eigenvectors per query *and* class, because each
class has its own standard deviations :math:`\sigma`. They differ little from a multiple of their
mean, :math:`\sigma = s \bar\sigma + \delta`. So with :math:`y = y_0 + e`,
:math:`y_0 = s \bar\sigma \circ (x - c)` and :math:`e = \delta \circ (x - c)`

.. math:: y^T B^{-1} y = y_0^T B^{-1} y_0 + 2 e^T B^{-1} y_0 + e^T B^{-1} e

The first term is a diagonal form in coordinates that all classes share. The second is a product
of such coordinates, up to the mismatch between the weights of the classes. The third is of second
order, and lies between the smallest and the largest weight times :math:`e^T e`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from fecam.core.arrays import cholesky, invert_lower_triangle, row_slices, to_numpy
from fecam.core.covariance import passes, scatter_of
from fecam.core.distances import coordinate_median, diagonal_form, group_runs, low_rank_form
from fecam.core.metric import Metric, distance_scale, prototype_of
from fecam.core.precision import BlockCholesky, LowRankPrecision, low_rank_sq_norm
from fecam.core.prior import Prior
from fecam.core.scatter import Scatter, diagonal_indices, packed_data, to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.threads import in_parallel
from fecam.core.tuning import TUNING, SearchTuning

Matrix = NDArray[Any]


class Interval(NamedTuple):
    """Bounds of squared distances, (queries, classes)."""

    lower: Matrix
    upper: Matrix
    estimate: Matrix


def expand_radius(squares: Any, radius: float) -> Any:
    """Return the squares of distances that are larger by ``radius``.

    >>> expand_radius(np.array([4.0]), 1.0).tolist(), expand_radius(np.array([4.0]), 0.0).tolist()
    ([9.0], [4.0])
    """
    if not radius:
        return squares
    return (np.sqrt(np.maximum(squares, 0.0)) + radius) ** 2


class PrefixBounds:
    """Bounds from the first ``size`` coordinates of a shared basis.

    Of the other coordinates only the length of the difference is used: times the tail floor it
    still belongs to the lower bound, times the mean precision it gives an estimate.
    """

    def __init__(
        self,
        indices: Sequence[int],
        precisions: Sequence[BlockCholesky | LowRankPrecision],
        rotated_centers: Matrix,
        scales: Matrix,
        axes: Matrix,
        size: int,
        tuning: SearchTuning = TUNING,
    ) -> None:
        self.indices, self.size, self._tuning = np.asarray(indices), size, tuning
        centers, dtype = rotated_centers[self.indices], rotated_centers.dtype
        pairs = np.triu_indices(size)
        twice = 2.0 - np.eye(size)
        n_classes, n_monomials = len(indices), 1 + size + len(pairs[0])
        self._coefficients = np.empty((n_monomials, n_classes), dtype)
        self._tail_centers = np.ascontiguousarray(centers[:, size:].T)
        self._tail_sq = np.vecdot(centers[:, size:], centers[:, size:])
        self._tail_floor, self._tail_mean = np.zeros((2, n_classes), dtype)
        # Rounding of the product is subtracted beforehand, so that the bound stays below.
        rounding = 8 * np.finfo(dtype).eps * n_monomials**0.5
        for column, precision in enumerate(precisions):
            matrix, tail_mean = _prefix_of(precision, axes, size)
            scale = scales[self.indices[column]]
            center = centers[column, :size].astype(np.float64)
            error = rounding * np.linalg.norm(matrix)
            lowered = matrix - error * np.eye(size)
            constant = center @ matrix @ center - error * (center @ center)
            self._coefficients[0, column] = scale * constant
            self._coefficients[1 : 1 + size, column] = -2 * scale * (matrix @ center)
            self._coefficients[1 + size :, column] = scale * (lowered * twice)[pairs]
            self._tail_mean[column] = scale * tail_mean
            if isinstance(precision, BlockCholesky):
                self._tail_floor[column] = scale * precision.tail_floor

    def bound(self, rotated: Matrix) -> Interval:
        """Return the intervals of queries that are given in the shared basis."""
        shape = (len(rotated), len(self.indices))
        lower, estimate = np.empty((2, *shape), rotated.dtype)
        n_bytes = rotated.itemsize * len(self._coefficients)
        for rows in row_slices(len(rotated), max(1, 8 * self._tuning.cache_bytes // n_bytes)):
            monomials = _monomials(rotated[rows, : self.size])
            prefix = np.matmul(monomials, self._coefficients, out=lower[rows])
            tail = rotated[rows, self.size :]
            lengths = np.vecdot(tail, tail)[:, None] + self._tail_sq
            tail_sq = tail @ self._tail_centers
            tail_sq *= -2
            tail_sq += lengths
            np.maximum(tail_sq, 0, out=tail_sq)
            np.multiply(self._tail_mean, tail_sq, out=estimate[rows])
            estimate[rows] += prefix
            if self._tail_floor.any():
                tail_sq -= 32 * np.finfo(rotated.dtype).eps * lengths
                prefix += self._tail_floor * np.maximum(tail_sq, 0, out=tail_sq)
        return Interval(lower, np.broadcast_to(np.inf, shape), estimate)


def _monomials(x: Matrix) -> Matrix:
    """One, the coordinates, and the products of each coordinate with itself and later ones."""
    n, size = x.shape
    result = np.empty((n, 1 + size + size * (size + 1) // 2), x.dtype)
    result[:, 0] = 1
    result[:, 1 : 1 + size] = x
    start = 1 + size
    for i in range(size):
        np.multiply(x[:, i : i + 1], x[:, i:], out=result[:, start : start + size - i])
        start += size - i
    return result


def _prefix_of(
    precision: BlockCholesky | LowRankPrecision, axes: Matrix, size: int
) -> tuple[Matrix, float]:
    """Marginal precision of the first coordinates, and the mean precision of the others."""
    if isinstance(precision, BlockCholesky):
        return precision.prefix
    cached = vars(precision).get("low_rank_prefix")
    if cached is None or cached[0] is not axes or len(cached[1]) != size:
        triangle = _marginal_triangle(precision, axes[:, : 2 * size])
        first = triangle[:size, :size]
        # A random estimate of the trace is enough: sign vectors instead of all axes.
        n_tail = axes.shape[1] - size
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(16, n_tail))
        tail = (signs @ axes[:, size:].T).astype(precision.rows.dtype)
        mean = float(np.mean(precision.squared_mahalanobis(tail))) / max(n_tail, 1)
        second = triangle[:, size:].astype(precision.rows.dtype)
        eps = float(np.finfo(second.dtype).eps)
        rounding = 4 * eps * len(second) ** 0.5 * float(np.linalg.norm(second))
        cached = axes, first @ first.T, mean, second, rounding
        vars(precision)["low_rank_prefix"] = cached  # valid for as long as the object
    return cached[1:3]


def _marginal_triangle(precision: LowRankPrecision, axes: Matrix) -> Matrix:
    """The upper triangle whose square inverts the covariance of a class along some axes."""
    axes = axes / precision.std.astype(np.float64)[:, None]
    if precision.eigenvectors is not None:
        axes = precision.eigenvectors.T.astype(np.float64) @ axes
    axes = axes / precision.weights.astype(np.float64)[:, None]
    matrix = axes.T @ axes
    rows = precision.rows.astype(np.float64)
    if len(rows):
        signs = np.ones(len(rows)) if precision.signs is None else precision.signs
        along = rows @ axes
        matrix += along.T @ np.linalg.solve(np.diag(signs) - rows @ rows.T, along)
    lower = cholesky((matrix + matrix.T) / 2)
    if lower is None:  # features so small that it overflowed: the bound is zero
        return np.zeros_like(matrix)
    return np.asarray(invert_lower_triangle(lower).T)


class PriorBounds:
    """Bounds for low-rank classes that share the eigenvectors of a pooled prior."""

    def __init__(
        self,
        indices: Sequence[int],
        precisions: Sequence[LowRankPrecision],
        centers: Matrix,
        scales: Matrix,
        tuning: SearchTuning = TUNING,
    ) -> None:
        self.indices, self._precisions = np.asarray(indices), list(precisions)
        self._centers, self._scales = centers[self.indices], scales[self.indices]
        self._max_rows = max(1, tuning.block_bytes // (8 * centers.shape[1]))
        dtype = centers.dtype
        std = np.stack([p.std for p in precisions]).astype(np.float64)
        weights = np.stack([p.weights for p in precisions]).astype(np.float64)
        self._std, self._weights = std.astype(dtype), weights.astype(dtype)
        assert precisions[0].eigenvectors is not None, "these classes have a prior"
        self._vectors: Matrix = precisions[0].eigenvectors
        mean_std, omegas = std.mean(axis=0), weights**2
        mean_omega = omegas.mean(axis=0)
        multiples = std @ mean_std / (mean_std @ mean_std)
        deltas = std - multiples[:, None] * mean_std
        shares = omegas @ mean_omega / (mean_omega @ mean_omega)
        self._mean_std, self._mean_omega = mean_std.astype(dtype), mean_omega.astype(dtype)
        rotated, back = self._rotate(self._centers)
        self._center_norm = np.linalg.norm(self._centers, axis=1)
        self._rotated_norm = np.linalg.norm(rotated, axis=1)
        rows = [p.rows_in_features for p in precisions]
        self._low_rank = _low_rank_forms(rows, precisions, self._centers, tuning)
        self._base = diagonal_form(weights * multiples[:, None], rotated)
        self._perturbation = diagonal_form(deltas, self._centers)
        slopes = 2 * (multiples * shares)[:, None] * deltas
        cross = np.concatenate([slopes, -slopes * self._centers, -slopes * back], axis=1)
        self._cross = cross.astype(dtype).T
        self._cross_constant = np.sum(slopes * self._centers * back, axis=1)
        self._min_omega, self._max_omega = omegas.min(axis=1), omegas.max(axis=1)
        self._omega = omegas.mean(axis=1)
        self._low_rank_share = np.asarray([p.low_rank_share for p in precisions])
        self._rows = rows
        mismatch = np.abs(omegas - shares[:, None] * mean_omega) / weights
        self._weight_mismatch = np.max(mismatch, axis=1)
        # Rounding of each term before anything is subtracted, per unit of length.
        rounding = 4 * np.finfo(dtype).eps * centers.shape[1] ** 0.5
        self._base_noise = rounding * self._max_omega**0.5 * np.abs(multiples)
        self._delta_noise = rounding * self._max_omega**0.5 * np.abs(deltas).max(axis=1)
        self._cross_noise = rounding * np.abs(slopes).max(axis=1) * mean_omega.max()
        self._row_noise = rounding * np.asarray([np.linalg.norm(matrix) for matrix in rows])

    def _rotate(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        """Rows in the prior's eigenvectors, and weighted there and rotated back."""
        rotated = (rows * self._mean_std) @ self._vectors
        return rotated, (rotated * self._mean_omega) @ self._vectors.T

    def bound(self, block: Matrix, k: int, radius: float, epsilon: float = 0.0) -> Interval:
        """Return the intervals of a block of queries, rounding included.

        The low-rank part is most of the work. It is left out for classes that it cannot bring
        nearer than the ``k``-th upper bound without it, or ``radius`` beyond the smallest.
        """
        rotated, back = self._rotate(block)
        features = np.concatenate([block * back, back, block], axis=1)
        cross = (features @ self._cross).astype(np.float64) + self._cross_constant
        base, perturbation = self._base(rotated), self._perturbation(block)
        whole = base + cross + self._max_omega * perturbation
        low_rank, near = self._low_rank_part(block, whole, k, radius, epsilon)
        norm = np.linalg.norm(block, axis=1)[:, None] + self._center_norm
        rotated_norm = np.linalg.norm(rotated, axis=1)[:, None] + self._rotated_norm
        length, bend = np.sqrt(base), np.sqrt(perturbation)
        noise = self._base_noise * rotated_norm + self._delta_noise * norm
        row_noise = self._row_noise * norm
        error = 2 * self._weight_mismatch * bend * length
        error += noise * (2 * (length + np.sqrt(self._max_omega) * bend) + noise)
        error += row_noise * (2 * np.sqrt(np.abs(low_rank)) + row_noise)
        error += self._cross_noise * norm * rotated_norm
        # Squared norms are differences of sums in single precision.
        error += 1e-5 * (base + np.abs(low_rank) + self._max_omega * perturbation)
        middle = base + cross - low_rank
        lower = np.maximum(middle + self._min_omega * perturbation - error, 0)
        upper = np.where(near, whole - low_rank + error, np.inf)
        estimate = middle + self._omega * perturbation
        return Interval(lower * self._scales, upper * self._scales, estimate * self._scales)

    def _low_rank_part(
        self, block: Matrix, whole: Matrix, k: int, radius: float, epsilon: float
    ) -> tuple[Matrix, Matrix]:
        """The low-rank part, or its largest value where that cannot matter; and where it can.

        ``epsilon`` reduces the largest value.
        """
        largest = (1 - epsilon) * self._low_rank_share * whole
        upper = whole * self._scales
        kth = np.partition(upper, min(k, upper.shape[1]) - 1, axis=1)[:, min(k, upper.shape[1]) - 1]
        threshold = np.maximum(kth, expand_radius(upper.min(axis=1), radius))[:, None]
        near = (whole - largest) * self._scales <= threshold * 1.01
        if np.count_nonzero(near) > 0.25 * near.size:
            for columns, form in self._low_rank:
                largest[:, columns] = form(block)
            return largest, np.ones_like(near)
        classes, rows = np.nonzero(near.T)
        for i, run in group_runs(classes):
            projected = (block[rows[run]] - self._centers[i]) @ self._rows[i].T
            signs = self._precisions[i].signs
            signed = projected if signs is None else projected * signs
            largest[rows[run], i] = np.vecdot(projected, signed)
        return largest, near

    def evaluate(self, block: Matrix, rows: Matrix, columns: Matrix) -> Matrix:
        """Return the squared distance of each pair of a row and a class, class by class."""
        distances = np.empty(len(rows))
        for pairs in row_slices(len(rows), self._max_rows):
            classes = columns[pairs]
            u = block[rows[pairs]] - self._centers[classes]
            u *= self._std[classes]
            u = u @ self._vectors
            u *= self._weights[classes]
            for i, run in group_runs(classes):
                precision = self._precisions[i]
                square = low_rank_sq_norm(u[run], precision.rows, precision.signs)
                distances[pairs][run] = self._scales[i] * square
        return distances


def _low_rank_forms(
    rows: list[Matrix],
    precisions: Sequence[LowRankPrecision],
    centers: Matrix,
    tuning: SearchTuning,
) -> list[tuple[list[int], Callable[[Matrix], Matrix]]]:
    """One low-rank form per group of classes of similar rank, which are padded to one rank."""
    groups: dict[int, list[int]] = {}
    for i, matrix in enumerate(rows):
        groups.setdefault(1 << max(len(matrix) - 1, 0).bit_length(), []).append(i)
    return [
        (
            members,
            low_rank_form(
                [rows[i] for i in members],
                [precisions[i].signs for i in members],
                centers[members],
                tuning,
            ),
        )
        for members in groups.values()
    ]


class CGBounds:
    """Bounds for classes whose precisions were not derived yet, by conjugate gradients.

    The data of a class is read once per call, one class after another, and not kept.
    """

    def __init__(
        self,
        state: ClassifierState,
        metric: Metric,
        prior: Prior | None,
        fallback_variance: Callable[[], float],
        tuning: SearchTuning = TUNING,
    ) -> None:
        self._metric, self._fallback_variance, self._tuning = metric, fallback_variance, tuning
        self._classes = list(state.classes.values())
        self.scales = np.asarray([distance_scale(stats, metric) for stats in self._classes])
        centers = [to_numpy(prototype_of(s, metric, state.transform)) for s in self._classes]
        self.origin = coordinate_median(np.stack(centers).astype(np.float64))
        self.centers = np.stack(centers).astype(np.float64) - self.origin
        self.dtype = to_numpy(state.like).dtype
        self._eps = float(np.finfo(self.dtype).eps)
        self._center_noise = self._eps * np.linalg.norm(self.centers, axis=1)
        self._whitening: Matrix | None = None
        self._inverse: Matrix | None = None
        self._pseudo_count = self._unit = 0.0
        if prior is not None:
            covariance = to_numpy(prior.covariance)
            self._pseudo_count = prior.pseudo_count
            # The matrix is stored as a multiple of its mean variance.
            self._unit = float(np.trace(covariance)) / len(covariance)
            covariance = covariance / (self._unit or 1.0)
            shrunk = covariance + metric.shrinkage[0] * np.eye(len(covariance))
            self._inverse = np.linalg.inv(shrunk).astype(self.dtype)
            self._shared = covariance.astype(self.dtype)
            self._shared_variance = np.diagonal(covariance).copy()
            self._shared_entries = float(np.sum(covariance))
            if prior.whitening is not None:
                self._whitening = to_numpy(prior.whitening).astype(np.float64)
        self._white_centers = self._whiten(self.centers)

    def bound(self, queries: Matrix, k: int, radius: float) -> Interval:
        """Return the intervals of queries; classes beyond the ``k``-th and ``radius`` are wide."""
        rows = queries.astype(np.float64) - self.origin
        noise = np.finfo(queries.dtype).eps * np.linalg.norm(self.origin)
        noise = noise + self._eps * np.linalg.norm(rows, axis=1)
        lower = np.zeros((len(rows), len(self._classes)))
        upper = np.full(lower.shape, np.inf)
        threshold = np.full(len(rows), np.inf)

        def bound_classes(indices: Sequence[int]) -> None:
            for i in indices:
                lower[:, i], upper[:, i] = self.bound_class(i, rows, noise, threshold)
                if np.any(upper[:, i] < threshold):
                    kth = np.partition(upper, k - 1, axis=1)[:, k - 1]
                    threshold[:] = np.maximum(kth, expand_radius(np.min(upper, axis=1), radius))

        # Classes that are near under the shared metric come first: they set a low threshold.
        first = self._nearest_by_shared_metric(rows, min(k + 8, len(self._classes)))
        bound_classes(first)
        others = sorted(set(range(len(self._classes))).difference(first))
        in_parallel(bound_classes, [others[i : i + 32] for i in range(0, len(others), 32)])
        return Interval(lower, upper, upper)

    def bound_class(
        self, index: int, rows: Matrix, noise: Matrix, threshold: Matrix
    ) -> tuple[Matrix, Matrix]:
        """Return lower and upper bounds for one class; CG stops for rows beyond a threshold.

        ``noise`` is the rounding error of each row.
        """
        scale = self.scales[index]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            operator = self._operator(self._classes[index])
            if operator is None:
                return np.zeros(len(rows)), np.full(len(rows), np.inf)
            matvec, stretch, theta, rtol, max_gain = operator
            differences = (rows - self.centers[index]) * stretch
            # A precision is applied to differences of rounded numbers.
            error = 4 * max_gain * (noise + self._center_noise[index])
            limit = (np.sqrt(threshold / scale) + error) ** 2
            low, high = self._conjugate_gradients(matvec, differences, theta, rtol, limit)
            low, high = np.maximum(np.sqrt(low) - error, 0) ** 2, (np.sqrt(high) + error) ** 2
        return low * scale, high * scale

    def _nearest_by_shared_metric(self, rows: Matrix, number: int) -> list[int]:
        squares = [np.sum((self._white_centers - row) ** 2, axis=1) for row in self._whiten(rows)]
        order = np.argsort(np.stack(squares) * self.scales, axis=1)[:, :number]
        return list(dict.fromkeys(order.T.ravel().tolist()))

    def _whiten(self, rows: Matrix) -> Matrix:
        return rows if self._whitening is None else rows @ self._whitening

    def _operator(
        self, stats: ClassStatistics
    ) -> tuple[Callable[[Matrix], Matrix], Matrix | float, float, float, float] | None:
        """What `fecam.core.metric.class_covariance` returns, as a product with rows.

        Returns the product, what differences are multiplied by, theta, the relative error that
        rounded entries cause, and the largest ratio of a distance to the length of a difference;
        None if the matrix has no floor. All in units of the mean variance.
        """
        metric = self._metric
        scatter = scatter_of(stats, average_domains=metric.average_domains)
        low_rank = scatter.storage == "low_rank" and metric.off_diagonal == "all"
        data = to_numpy(scatter.data if low_rank else packed_data(scatter))
        n_features = scatter.n_features
        if low_rank:
            variance = np.square(data, dtype=np.float64).sum(axis=0)
        else:
            variance = _packed_diagonal(data)
        own = 1 / ((stats.count - 1 + self._pseudo_count) or 1)
        shared = self._pseudo_count * own * self._unit
        unit = own * float(np.mean(variance)) + shared
        gamma = metric.shrinkage[0]
        has_prior = self._inverse is not None
        if unit == 0:  # no variance: a multiple of the identity, as is the preconditioner
            unit = self._fallback_variance() if metric.normalization is None else 1.0
            stretch = _stretch(np.ones(n_features), unit, metric)
            theta = 1 / gamma if has_prior else 1.0
            return (lambda rows: rows), stretch, theta, self._rtol(), float(np.max(stretch))
        own, shared = own / unit, shared / unit
        number = data.dtype.type
        data = data * number(math.sqrt(own) if low_rank else own)
        variance = own * variance
        if has_prior:
            variance = variance + shared * self._shared_variance
        first, second = self._shrinkage(data, shared, variance)
        # The matrix of ones has the eigenvalue ``n_features``, and zeros.
        floor = first - second + min(n_features * second, 0.0)
        variance = variance + first
        minimum = self._tuning.cg_min_floor
        if not (floor > minimum and np.min(variance) > 0 and np.all(np.isfinite(variance))):
            return None
        own_product = _low_rank_product(data) if low_rank else _packed_product(data, n_features)

        def matvec(rows: Matrix) -> Matrix:
            product = own_product(rows) + rows * number(first - second)
            if second:
                product += np.sum(rows, axis=1, keepdims=True) * number(second)
            if has_prior:
                product += (rows @ self._shared) * number(shared)
            return np.asarray(product)

        theta = floor
        if has_prior:
            theta = floor / gamma
            theta = min(theta, shared) if shared else theta
        rounding = 4 * float(np.finfo(data.dtype).eps) * float(np.sum(variance)) / floor
        stretch = _stretch(variance, unit, metric)
        max_gain = float(np.max(stretch)) / math.sqrt(floor)
        return matvec, stretch, theta, self._rtol() + rounding, max_gain

    def _rtol(self) -> float:
        return self._tuning.bound_rtol

    def _shrinkage(self, data: Matrix, shared: float, variance: Matrix) -> tuple[float, float]:
        """What shrinkage adds to the diagonal of a matrix, and to all other entries."""
        metric = self._metric
        n_features, trace = len(variance), float(np.sum(variance))
        n_others = n_off_diagonal = n_features * (n_features - 1)
        first = second = off_diagonal = 0.0
        if metric.shrinkage[1] != 0 and n_others:
            off_diagonal = _sum_of_entries(data) - trace
            if self._inverse is not None:
                off_diagonal += shared * self._shared_entries
            if metric.off_diagonal != "all":
                nonzero = np.count_nonzero(data) - np.count_nonzero(_packed_diagonal(data))
                n_others = max(2 * int(nonzero), 1)
        for g1, g2 in passes(metric.shrinkage, metric.off_diagonal):
            first += g1 * (first + trace / n_features)
            added = g2 * off_diagonal / max(n_others, 1)
            if added:  # no entry is zero any more
                second, n_others = second + added, n_off_diagonal
                off_diagonal += added * n_off_diagonal
        return first, second

    def _conjugate_gradients(
        self,
        matvec: Callable[[Matrix], Matrix],
        differences: Matrix,
        theta: float,
        rtol: float,
        limit: Matrix,
    ) -> tuple[Matrix, Matrix]:
        """Bounds of :math:`y^T \\Sigma^{-1} y` for each difference :math:`y`."""
        square = np.vecdot(differences, differences)
        active = np.flatnonzero(square != 0)
        lower, upper = np.zeros(len(differences)), np.zeros(len(differences))
        upper[active], square = np.inf, square[active]
        # Unit vectors avoid overflow and underflow in single precision.
        residual = (differences[active] / np.sqrt(square)[:, None]).astype(self.dtype)
        direction = residual if self._inverse is None else residual @ self._inverse
        energy = np.vecdot(residual, direction).astype(np.float64)
        total = np.zeros(len(active))
        for _ in range(self._tuning.cg_max_steps):
            product = matvec(direction)
            step = energy / np.vecdot(direction, product)
            total = total + step * energy
            lower[active] = total * square * (1 - rtol)
            beyond = lower[active] > limit[active]
            if np.all(beyond):
                break
            residual = residual - product * step.astype(self.dtype)[:, None]
            conditioned = residual if self._inverse is None else residual @ self._inverse
            previous, energy = energy, np.vecdot(residual, conditioned).astype(np.float64)
            gap = energy / theta
            upper[active] = (total + gap) * square * (1 + rtol)
            keep = ~(beyond | (gap <= self._rtol() * total))
            if not np.any(keep):
                break
            direction = conditioned + direction * (energy / previous).astype(self.dtype)[:, None]
            values = active, square, total, energy, residual, direction
            active, square, total, energy, residual, direction = (array[keep] for array in values)
        return np.where(lower > 0, lower, 0.0), np.where(np.isnan(upper), np.inf, upper)


def _stretch(variance: Matrix, unit: float, metric: Metric) -> Matrix | float:
    """What normalization multiplies differences by."""
    if metric.normalization == "correlation":
        return np.asarray(np.sqrt(variance))
    if metric.normalization is None:
        return 1 / math.sqrt(unit)
    return math.sqrt(float(np.linalg.norm(variance)))


def _sum_of_entries(data: Matrix) -> float:
    """The sum of all entries of a matrix, from its rows or its packed upper triangle."""
    if data.ndim == 2:
        return float(np.sum(np.sum(data, axis=1, dtype=np.float64) ** 2))
    return 2 * float(np.sum(data, dtype=np.float64)) - float(np.sum(_packed_diagonal(data)))


def _packed_diagonal(packed: Matrix) -> Matrix:
    """The diagonal of a matrix, from its packed upper triangle."""
    return np.asarray(packed[diagonal_indices(math.isqrt(2 * len(packed)))], np.float64)


def _packed_product(packed: Matrix, n_features: int) -> Callable[[Matrix], Matrix]:
    """Products of rows with a matrix that is given by its packed upper triangle."""
    multiply = get_blas_funcs("spmv", dtype=packed.dtype)
    dense: list[Matrix] = []

    def product(rows: Matrix) -> Matrix:
        if len(rows) <= 4:
            # The upper triangle row by row is, in Fortran's order, the lower one by column.
            return np.stack([multiply(n_features, 1.0, packed, row, lower=1) for row in rows])
        if not dense:
            dense.append(to_dense(Scatter(packed, "packed", n_features)))
        return np.asarray(rows @ dense[0])

    return product


def _low_rank_product(factor: Matrix) -> Callable[[Matrix], Matrix]:
    """Products of rows with a matrix that is given by its factor."""
    return lambda rows: np.asarray((rows @ factor.T) @ factor)
