r"""Lower bounds and estimates of squared distances, cheaper than the distances themselves.

Three kinds of bounds return lower bounds and estimates, (queries, classes) each:

`PrefixBounds`
    Classes in a shared basis. The first :math:`m` coordinates give the squared distance of their
    *marginal* distribution, :math:`(z - p)^T M (z - p)`, which is never above the whole. For all
    classes at once it is one product of the queries' monomials of degree two.
`PriorBounds`
    Low-rank classes with a pooled prior, see below; an estimate is about one percent above its
    bound.
`CGBounds`
    Classes without a derived precision: conjugate gradients on the covariance itself. With
    residuals :math:`r_i`, a preconditioner :math:`M`, :math:`z_i = M^{-1} r_i` and step lengths
    :math:`\alpha_i`,

    .. math:: \sum_{i<k} \alpha_i\, r_i^T z_i \;\le\; y^T \Sigma^{-1} y \;\le\;
              \sum_{i<k} \alpha_i\, r_i^T z_i + \frac{r_k^T z_k}{\theta}
              \qquad\text{if}\quad \Sigma \succeq \theta M

    (Hestenes and Stiefel's identity below, the energy of the residual above). :math:`M` is the
    shrunk matrix of the prior, or the identity; shrinkage gives :math:`\theta`. The upper bound is
    the estimate.

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

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs

from fecam.core.arrays import row_slices, to_numpy
from fecam.core.covariance import apply_whitening, scatter_of, shrinkage_terms
from fecam.core.distances import (
    LowRankForm,
    coordinate_median,
    diagonal_form,
    group_by_form,
    group_runs,
)
from fecam.core.metric import Metric, distance_scale, prototype_of
from fecam.core.precision import (
    BlockCholesky,
    LowRankPrecision,
    normalizing_std,
)
from fecam.core.prior import Prior
from fecam.core.scatter import Scatter, diagonal_indices, packed_data, to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.threads import in_parallel
from fecam.core.tuning import TUNING, SearchTuning

Matrix = NDArray[Any]


Bounds = tuple[Matrix, Matrix]
"""Lower bounds and estimates of squared distances, (queries, classes) each."""


def expand_radius(squares: Any, radius: float) -> Any:
    """Return the squares of distances that are larger by ``radius``.

    >>> expand_radius(np.array([4.0]), 1.0).tolist(), expand_radius(np.array([4.0]), 0.0).tolist()
    ([9.0], [4.0])
    """
    if not radius:
        return squares
    return (np.sqrt(np.maximum(squares, 0.0)) + radius) ** 2


class PrefixBounds:
    """Bounds from the first block of coordinates of a shared basis.

    Of the other coordinates only the length of the difference is used: times the tail floor it
    still belongs to the lower bound, times the mean precision it gives an estimate.
    """

    def __init__(
        self,
        classes: Mapping[int, BlockCholesky],
        rotated_centers: Matrix,
        scales: Matrix,
        tuning: SearchTuning = TUNING,
    ) -> None:
        self.indices, precisions = np.asarray(list(classes)), list(classes.values())
        self.size, dtype = len(precisions[0].blocks[0]), rotated_centers.dtype
        centers, scales = rotated_centers[self.indices], scales[self.indices]
        pairs = np.triu_indices(self.size)
        identity = np.eye(self.size)
        n_monomials = 1 + self.size + len(pairs[0])
        self._coefficients = np.empty((n_monomials, len(precisions)), dtype)
        # Rounding of the product is subtracted beforehand, so that the bound stays below.
        rounding = 8 * np.finfo(dtype).eps * n_monomials**0.5
        for column, precision in enumerate(precisions):
            matrix, scale = precision.first_block_precision, scales[column]
            center = centers[column, : self.size].astype(np.float64)
            error = rounding * np.linalg.norm(matrix)
            lowered = matrix - error * identity
            self._coefficients[0, column] = scale * (center @ lowered @ center)
            self._coefficients[1 : 1 + self.size, column] = -2 * scale * (matrix @ center)
            self._coefficients[1 + self.size :, column] = scale * (lowered * (2 - identity))[pairs]
        tails = np.ascontiguousarray(centers[:, self.size :].T)
        self._tail_centers, self._tail_sq = tails, np.sum(tails * tails, axis=0)
        self._tail_floor = (scales * [p.tail_floor for p in precisions]).astype(dtype)
        self._tail_mean = (scales * [p.tail_mean for p in precisions]).astype(dtype)
        self._max_queries = max(1, tuning.block_bytes // (4 * dtype.itemsize * n_monomials))

    def bound(self, rotated: Matrix) -> Bounds:
        """Return the bounds and estimates of queries that are given in the shared basis."""
        lower, estimate = np.empty((2, len(rotated), len(self.indices)), rotated.dtype)
        for rows in row_slices(len(rotated), self._max_queries):
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
        return lower, estimate


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


class PriorBounds:
    """Bounds for low-rank classes that share the eigenvectors of a pooled prior."""

    def __init__(
        self,
        classes: Mapping[int, LowRankPrecision],
        centers: Matrix,
        scales: Matrix,
        tuning: SearchTuning = TUNING,
    ) -> None:
        self.indices, precisions = np.asarray(list(classes)), list(classes.values())
        self._precisions = precisions
        self._centers, self._scales = centers[self.indices], scales[self.indices]
        self._max_pairs = max(1, tuning.block_bytes // (8 * centers.shape[1]))
        self._rtol = tuning.bound_rtol
        self._pair_cost, self._class_cost = tuning.pair_cost, tuning.class_cost
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
        self._base = diagonal_form(weights * multiples[:, None], rotated)
        self._perturbation = diagonal_form(deltas, self._centers)
        slopes = 2 * (multiples * shares)[:, None] * deltas
        cross = slopes, -slopes * self._centers, -slopes * back
        self._cross = [coefficients.astype(dtype).T for coefficients in cross]
        self._cross_constant = np.sum(slopes * self._centers * back, axis=1)
        self._min_omega, self._max_omega = omegas.min(axis=1), omegas.max(axis=1)
        self._omega = omegas.mean(axis=1)
        self._low_rank_share = np.asarray([p.low_rank_share for p in precisions])
        rows = [p.rows_in_features for p in precisions]
        self._low_rank_forms = [
            (
                np.asarray(members),
                LowRankForm(
                    [rows[i] for i in members],
                    [precisions[i] for i in members],
                    self._centers[members],
                    tuning,
                ),
            )
            for members in group_by_form(precisions).values()
        ]
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

    def bound(self, queries: Matrix, k: int, radius: float, epsilon: float = 0.0) -> Bounds:
        """Return the bounds of queries, rounding included, and the estimates.

        The low-rank part is most of the work. It is left out for classes that it cannot bring
        nearer than the ``k``-th upper bound without it, or ``radius`` beyond the smallest.
        """
        rotated, back = self._rotate(queries)
        features = zip((queries * back, back, queries), self._cross, strict=True)
        cross = sum((x @ slopes for x, slopes in features), self._cross_constant)
        base, perturbation = self._base(rotated), self._perturbation(queries)
        whole = base + cross + self._max_omega * perturbation
        low_rank = self._low_rank_part(queries, whole, k, radius, epsilon)
        norm = np.sqrt(np.vecdot(queries, queries))[:, None] + self._center_norm
        rotated_norm = np.sqrt(np.vecdot(rotated, rotated))[:, None] + self._rotated_norm
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
        return lower * self._scales, (middle + self._omega * perturbation) * self._scales

    def _low_rank_part(
        self, queries: Matrix, whole: Matrix, k: int, radius: float, epsilon: float
    ) -> Matrix:
        """The low-rank part, or its largest value, less ``epsilon``, where that cannot matter."""
        result = (1 - epsilon) * self._low_rank_share * whole
        upper = whole * self._scales
        smallest = kth = upper.min(axis=1)
        if k > 1:
            k = min(k, upper.shape[1])
            kth = np.partition(upper, k - 1, axis=1)[:, k - 1]
        threshold = np.maximum(kth, expand_radius(smallest, radius))[:, None]
        near = (whole - result) * self._scales <= threshold * (1 + self._rtol)
        for members, form in self._low_rank_forms:
            near_members = near[:, members]
            by_class = np.count_nonzero(near_members) * (form.rank + self._pair_cost)
            by_class += np.count_nonzero(near_members.any(axis=0)) * self._class_cost
            if by_class >= near_members.size * form.rank:
                result[:, members] = form(queries)
                continue
            classes, rows = np.nonzero(near_members.T)
            for i, run in group_runs(classes):
                chosen = rows[run]
                result[chosen, members[i]] = form.of(queries[chosen], slice(i, i + 1))[:, 0]
        return result

    def evaluate(self, queries: Matrix, rows: Matrix, columns: Matrix) -> Matrix:
        """Return the squared distance of each pair of a row and a class, class by class."""
        distances = np.empty(len(rows))
        for pairs in row_slices(len(rows), self._max_pairs):
            classes = columns[pairs]
            u = queries[rows[pairs]]
            u -= self._centers[classes]
            u *= self._std[classes]
            u = u @ self._vectors
            u *= self._weights[classes]
            squares = distances[pairs]
            squares[:] = np.vecdot(u, u)
            for i, run in group_runs(classes):
                precision = self._precisions[i]
                projected = u[run] @ precision.rows.T
                signs = precision.signs
                signed = projected if signs is None else projected * signs
                squares[run] -= np.vecdot(projected, signed)
        return np.asarray(np.maximum(distances, 0) * self._scales[columns])


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
        self._white_centers = apply_whitening(self.centers, self._whitening)

    def bound(self, queries: Matrix, k: int, radius: float) -> Bounds:
        """Return lower and upper bounds, wide for classes beyond the ``k``-th and ``radius``."""
        shifted = queries.astype(np.float64) - self.origin
        noise = np.finfo(queries.dtype).eps * np.linalg.norm(self.origin)
        noise = noise + self._eps * np.linalg.norm(shifted, axis=1)
        lower = np.zeros((len(shifted), len(self._classes)))
        upper = np.full(lower.shape, np.inf)

        def bound_classes(indices: list[int], known: list[int], threshold: Matrix) -> Matrix:
            for i in indices:
                lower[:, i], upper[:, i] = self.bound_class(i, shifted, noise, threshold)
                known = [*known, i]
                if len(known) >= k and np.any(upper[:, i] < threshold):
                    near = upper[:, known]
                    kth = np.partition(near, k - 1, axis=1)[:, k - 1]
                    threshold = np.maximum(kth, expand_radius(np.min(near, axis=1), radius))
            return threshold

        # Classes that are near under the shared metric come first: they set a low threshold.
        first = self._nearest_by_shared_metric(shifted, min(k + 8, len(self._classes)))
        threshold = bound_classes(first, [], np.full(len(shifted), np.inf))
        others = sorted(set(range(len(self._classes))).difference(first))
        # Threads do not share what they find, so that results do not depend on their timing.
        in_parallel(
            lambda indices: bound_classes(indices, first, threshold),
            [others[i : i + 32] for i in range(0, len(others), 32)],
        )
        return lower, upper

    def bound_class(self, index: int, queries: Matrix, noise: Matrix, threshold: Matrix) -> Bounds:
        """Return lower and upper bounds for one class; CG stops for queries beyond a threshold.

        ``noise`` is the rounding error of each query.
        """
        scale = self.scales[index]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            operator = self._operator(self._classes[index])
            if operator is None:
                return np.zeros(len(queries)), np.full(len(queries), np.inf)
            matvec, stretch, theta, rtol, max_gain = operator
            differences = (queries - self.centers[index]) * stretch
            # A precision is applied to differences of rounded numbers.
            error = 4 * max_gain * (noise + self._center_noise[index])
            limit = (np.sqrt(threshold / scale) + error) ** 2
            low, high = self._conjugate_gradients(matvec, differences, theta, rtol, limit)
            low, high = np.maximum(np.sqrt(low) - error, 0) ** 2, (np.sqrt(high) + error) ** 2
        return low * scale, high * scale

    def _nearest_by_shared_metric(self, queries: Matrix, number: int) -> list[int]:
        white = apply_whitening(queries, self._whitening)
        squares = [np.sum((self._white_centers - query) ** 2, axis=1) for query in white]
        order = np.argsort(np.stack(squares) * self.scales, axis=1)[:, :number]
        return list(dict.fromkeys(order.T.ravel().tolist()))

    def _operator(
        self, stats: ClassStatistics
    ) -> tuple[Callable[[Matrix], Matrix], Matrix, float, float, float] | None:
        """What `fecam.core.metric.class_covariance` returns, as a product with vectors.

        Returns the product, what differences are multiplied by, theta, the relative error that
        rounded entries cause, and the largest ratio of a distance to the length of a difference;
        None if the matrix has no floor. All in units of the mean variance.
        """
        metric, has_prior = self._metric, self._inverse is not None
        scatter = scatter_of(stats, average_domains=metric.average_domains)
        n_features = scatter.n_features
        low_rank = scatter.storage == "low_rank" and metric.off_diagonal == "all"
        data = to_numpy(scatter.data if low_rank else packed_data(scatter))
        if low_rank:
            variance = np.square(data, dtype=np.float64).sum(axis=0)
            entries = float(np.sum(np.sum(data, axis=1, dtype=np.float64) ** 2))
        else:
            variance = np.asarray(data[diagonal_indices(n_features)], np.float64)
            entries = 0.0
            if metric.shrinkage[1]:
                entries = 2 * float(np.sum(data, dtype=np.float64)) - float(np.sum(variance))
        own = 1 / ((stats.count - 1 + self._pseudo_count) or 1)
        shared = self._pseudo_count * own * self._unit
        unit = own * float(np.mean(variance)) + shared
        if unit:
            own, shared = own / unit, shared / unit
            n_averaged = None
            if metric.off_diagonal != "all":
                n_averaged = 2 * int(np.count_nonzero(data) - np.count_nonzero(variance))
            variance, entries = own * variance, own * entries
            if has_prior:
                variance = variance + shared * self._shared_variance
                entries += shared * self._shared_entries
            first, second = shrinkage_terms(
                float(np.sum(variance)),
                entries,
                n_features,
                metric.shrinkage,
                n_averaged,
                n_passes=2 if metric.off_diagonal == "nonzero-twice" else 1,
            )
        else:  # no variance: a multiple of the identity, as is the preconditioner
            unit = self._fallback_variance() if metric.normalization is None else 1.0
            first, second = 1.0, 0.0
        # The matrix of ones has the eigenvalue ``n_features``, and zeros.
        floor = first - second + min(n_features * second, 0.0)
        variance = variance + first
        minimum = self._tuning.cg_min_floor
        if not (floor > minimum and np.min(variance) > 0 and np.all(np.isfinite(variance))):
            return None
        number = data.dtype.type
        data = data * number(math.sqrt(own) if low_rank else own)
        packed_product = None if low_rank else _packed_product(data, n_features)

        def matvec(vectors: Matrix) -> Matrix:
            product = (
                (vectors @ data.T) @ data if packed_product is None else packed_product(vectors)
            )
            product = product + vectors * number(first - second)
            if second:
                product += np.sum(vectors, axis=1, keepdims=True) * number(second)
            if has_prior:
                product += (vectors @ self._shared) * number(shared)
            return np.asarray(product)

        theta = floor
        if has_prior:
            theta = floor / metric.shrinkage[0]
            theta = min(theta, shared) if shared else theta
        rounding = 4 * float(np.finfo(data.dtype).eps) * float(np.sum(variance)) / floor
        stretch = normalizing_std(variance, metric)
        if metric.normalization is None:
            stretch = stretch / math.sqrt(unit)
        max_gain = float(np.max(stretch)) / math.sqrt(floor)
        return matvec, stretch, theta, self._tuning.bound_rtol + rounding, max_gain

    def _conjugate_gradients(
        self,
        matvec: Callable[[Matrix], Matrix],
        differences: Matrix,
        theta: float,
        rtol: float,
        limit: Matrix,
    ) -> Bounds:
        r"""Bounds of :math:`y^T \Sigma^{-1} y` for each difference :math:`y`."""
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
            keep = ~(beyond | (gap <= self._tuning.bound_rtol * total))
            if not np.any(keep):
                break
            direction = conditioned + direction * (energy / previous).astype(self.dtype)[:, None]
            values = active, square, total, energy, residual, direction
            active, square, total, energy, residual, direction = (array[keep] for array in values)
        return np.where(lower > 0, lower, 0.0), np.where(np.isnan(upper), np.inf, upper)


def _packed_product(packed: Matrix, n_features: int) -> Callable[[Matrix], Matrix]:
    """Products of vectors with a matrix that is given by its packed upper triangle."""
    multiply = get_blas_funcs("spmv", dtype=packed.dtype)
    dense: list[Matrix] = []

    def product(vectors: Matrix) -> Matrix:
        if len(vectors) <= 4:
            # The upper triangle row by row is, in Fortran's order, the lower one by column.
            return np.stack([multiply(n_features, 1.0, packed, x, lower=1) for x in vectors])
        if not dense:
            dense.append(to_dense(Scatter(packed, "packed", n_features)))
        return np.asarray(vectors @ dense[0])

    return product
