"""Exact nearest classes without evaluating every class: filter and refine.

1. *Filter*: bounds of the distances to all classes (`fecam.core.bounds`).
2. Evaluate the classes with the smallest estimates exactly. The k-th distance is a threshold.
3. *Prune* classes whose lower bound exceeds it.
4. *Refine* the others. A class in a shared basis is evaluated block by block of coordinates, and
   abandoned as soon as the sum of squares exceeds the threshold.

With ``epsilon = 0`` the answer is that of exhaustive search. With ``0 < epsilon < 1`` each lower
bound is moved by that fraction towards the estimate of the distance, and a class is also pruned if
the result exceeds the k-th smallest estimate. So the answer is wrong only where the estimate of the
nearest class is too high, relative to the others, by more than the fraction ``1 - epsilon`` of what
lies between its bound and its estimate.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import row_slices, to_numpy
from fecam.core.bounds import Bounds, CGBounds, PrefixBounds, PriorBounds, expand_radius
from fecam.core.distances import ExhaustiveDistances, group_runs, grouped_distances
from fecam.core.precision import BlockCholesky, LowRankPrecision, Precision, block_ends, on_numpy
from fecam.core.threads import in_parallel
from fecam.core.tuning import TUNING, SearchTuning

Matrix = NDArray[Any]
R = TypeVar("R")

EvaluateClass = Callable[..., Matrix]
"""Squared distances to one class (index, rows), computed in the same way for every class."""
Evaluate = Callable[[Matrix, Matrix], Matrix]
"""Squared distances of pairs (rows, classes), sorted by class."""
Refine = Callable[[Matrix, Matrix, Matrix], Matrix]
"""The same, or infinity for pairs that exceed a threshold per row."""


def filter_and_refine(
    bounds: Bounds,
    distances: Matrix,
    evaluate_class: EvaluateClass,
    k: int,
    radius: float,
    epsilon: float = 0.0,
    *,
    evaluate: Evaluate | None = None,
    refine: Refine | None = None,
    rtol: float = TUNING.bound_rtol,
    tolerance: Matrix | float = 0.0,
) -> tuple[Matrix, Matrix]:
    """Return the distances of all classes that matter, and the rows that have ties.

    ``distances`` holds the distances that are known already, and infinity elsewhere. The result
    holds all that are among the ``k`` smallest of their row or within ``radius`` of the smallest,
    and infinity for classes that were pruned. A class that cannot be among the ``k`` nearest has
    its estimate instead, if that exceeds its bound by at most ``tolerance`` times the radius, not
    squared; tolerances may differ by class. ``rtol`` is the relative margin of comparisons.
    """
    lower, estimate = bounds
    evaluate = evaluate or partial(_class_by_class, evaluate_class)

    if k == 1:
        guesses = np.argmin(estimate, axis=1)[:, None]
    else:
        guesses = np.argpartition(estimate, k - 1, axis=1)[:, :k]
    order = np.argsort(guesses, axis=None, kind="stable")
    rows, classes = order // k, guesses.ravel()[order]
    unknown = np.isinf(distances[rows, classes])
    rows, classes = rows[unknown], classes[unknown]
    distances[rows, classes] = evaluate(rows, classes)
    evaluated = np.take_along_axis(distances, guesses, axis=1)
    threshold = np.maximum(evaluated.max(axis=1), expand_radius(evaluated.min(axis=1), radius))
    threshold *= 1 + rtol
    selected = (lower <= threshold[:, None]) & np.isinf(distances)
    if radius:  # what is only within the radius may be estimated
        farther = lower > evaluated.max(axis=1, keepdims=True) * (1 + rtol)
        width = np.sqrt(estimate) - np.sqrt(lower)
        estimated = selected & farther & (width <= tolerance * radius)
        distances[estimated] = estimate[estimated]
        selected &= ~estimated
    if epsilon:
        kth = np.take_along_axis(estimate, guesses, axis=1).max(axis=1)
        kth = expand_radius(kth * (1 + rtol), radius)
        selected &= lower + epsilon * (estimate - lower) <= kth[:, None]
    classes, rows = np.nonzero(selected.T)
    if refine is None:
        distances[rows, classes] = evaluate(rows, classes)
    else:
        distances[rows, classes] = refine(rows, classes, threshold)
    return distances, _evaluate_ties(distances, evaluate_class, k, rtol)


def _class_by_class(
    evaluate_class: EvaluateClass, rows: Matrix, classes: Matrix, *sums: Matrix
) -> Matrix:
    """Squared distances of pairs; ``sums`` of a pair are passed on."""
    distances = np.empty(len(rows))
    for i, run in group_runs(classes):
        distances[run] = evaluate_class(i, rows[run], *(values[run] for values in sums))
    return distances


def _evaluate_ties(distances: Matrix, evaluate_class: EvaluateClass, k: int, rtol: float) -> Matrix:
    """Evaluate near ties again class by class, so that equal classes tie; return their rows."""
    if k == 1:
        ranked = distances.min(axis=1, keepdims=True)
    else:
        ranked = np.sort(np.partition(distances, k - 1, axis=1)[:, :k], axis=1)
    close = distances <= ranked[:, -1:] * (1 + rtol)
    tied = np.count_nonzero(close, axis=1) > k
    tied |= np.any(ranked[:, 1:] <= ranked[:, :-1] * (1 + rtol), axis=1)
    rows = np.flatnonzero(tied)
    for i in np.flatnonzero(close[rows].any(axis=0)).tolist():
        finite = rows[np.isfinite(distances[rows, i])]
        distances[finite, i] = evaluate_class(i, finite)
    return rows


class PrunedSearch:
    """Filter and refine over the precisions of a model, in NumPy."""

    def __init__(
        self,
        exhaustive: ExhaustiveDistances,
        axes: Any,
        tuning: SearchTuning = TUNING,
        previous: Mapping[Precision, BlockCholesky] | None = None,
    ) -> None:
        self.exhaustive, self._tuning = exhaustive, tuning
        axes = to_numpy(axes)
        self.precisions = [on_numpy(precision) for precision in exhaustive.precisions]
        self.centers = to_numpy(exhaustive.centers)
        dtype = self.centers.dtype
        self.scales = to_numpy(exhaustive.scales).astype(np.float64)
        self.axes = axes.astype(dtype)
        self.rotated_centers = (self.centers.astype(np.float64) @ axes).astype(dtype)
        self._center_norms = np.linalg.norm(self.rotated_centers, axis=1)
        size = min(block_ends(axes.shape[1], tuning)[0], tuning.low_rank_prefix)
        self.in_basis: dict[int, BlockCholesky] = {}
        marginals: dict[int, BlockCholesky] = {}
        previous = previous or {}
        with_prior: dict[int, LowRankPrecision] = {}
        direct: dict[int, Precision] = {}
        with np.errstate(all="ignore"):  # tiny features overflow: their bounds are zero
            for i, precision in enumerate(self.precisions):
                if isinstance(precision, BlockCholesky):
                    self.in_basis[i] = precision
                elif not isinstance(precision, LowRankPrecision):
                    direct[i] = precision
                elif precision.eigenvectors is not None:
                    with_prior[i] = precision
                elif len(precision.rows) > tuning.max_direct_rank:
                    marginal = previous.get(precision)
                    if marginal is None or marginal.axes is not axes:
                        marginal = precision.marginal(axes, size)
                    marginals[i] = marginal
                else:
                    direct[i] = precision
            centers = self.rotated_centers
            self.prefix_bounds = [
                PrefixBounds(group, centers, self.scales, tuning)
                for group in (self.in_basis, marginals)
                if group
            ]
            self.prior_bounds = None
            if with_prior:
                self.prior_bounds = PriorBounds(with_prior, self.centers, self.scales, tuning)
        self.marginals = {self.precisions[i]: marginal for i, marginal in marginals.items()}
        """What another search may reuse, as its argument ``previous``."""
        blocks = {i: precision.blocks for i, precision in (self.in_basis | marginals).items()}
        n_levels = max(map(len, blocks.values()), default=1)
        self._levels = [
            {i: columns[level] for i, columns in blocks.items() if level < len(columns)}
            for level in range(1, n_levels)
        ]
        self._noise = np.zeros(len(self.precisions))
        self._noise[list(marginals)] = [marginal.noise for marginal in marginals.values()]
        self._prior_column = np.full(len(self.precisions), -1)
        self._prior_column[list(with_prior)] = np.arange(len(with_prior))
        # Only these estimates lie as close to the distance as to the bound.
        self._tolerance = np.where(self._prior_column < 0, 0.0, tuning.radius_tolerance)
        self.direct = list(direct)
        if direct:
            self._direct_distances = grouped_distances(
                list(direct.values()), self.centers[self.direct], tuning
            )

    def beats_exhaustive(self, n_queries: int) -> bool:
        """Whether this number of queries is answered faster than by exhaustive search.

        Triangles are always too large to read all of them. Low-rank classes are small: with a
        prior a few queries are enough, without one it takes many.
        """
        tuning = self._tuning
        least = tuning.min_low_rank_pairs if self.prior_bounds is None else tuning.min_prior_pairs
        return bool(self.in_basis) or n_queries * len(self.precisions) >= least

    def search(
        self,
        queries: Any,
        k: int,
        radius: float,
        epsilon: float,
        reduce: Callable[[Matrix, Matrix], R],
    ) -> list[R]:
        """Return ``reduce(distances, tied rows)`` for each block of queries, in order.

        Blocks do not depend on the number of threads, and neither do the results.
        """

        def search_block(rows: slice) -> R:
            shifted = to_numpy(self.exhaustive.shift(queries[rows, :]))
            with np.errstate(over="ignore", invalid="ignore"):
                return reduce(*self._search_block(shifted, k, radius, epsilon))

        tuning, n = self._tuning, queries.shape[0]
        max_rows = self.exhaustive.block_rows
        if self.prior_bounds is not None:
            max_rows = max(1, max_rows // 4)  # its bounds have several terms at once
        size = n
        if n >= 2 * tuning.min_parallel_rows:  # an even number of blocks occupies two cores
            size = -(-n // (2 * -(-n // (2 * tuning.block_rows))))
        return in_parallel(search_block, row_slices(n, min(max(size, 1), max_rows)))

    def _search_block(
        self, queries: Matrix, k: int, radius: float, epsilon: float
    ) -> tuple[Matrix, Matrix]:
        rotated = queries @ self.axes if self.prefix_bounds else queries
        norms = np.sqrt(np.vecdot(rotated, rotated))
        distances = np.full((len(queries), len(self.precisions)), np.inf, queries.dtype)
        parts = [(bounds.indices, *bounds.bound(rotated)) for bounds in self.prefix_bounds]
        if self.prior_bounds is not None:
            prior_part = self.prior_bounds.bound(queries, k, radius, epsilon)
            parts.append((self.prior_bounds.indices, *prior_part))
        if self.direct:
            exact = self._direct_distances(queries)
            distances[:, self.direct] = exact
            parts.append((np.asarray(self.direct), exact, exact))
        _, lower, estimate = parts[0]
        if len(parts) > 1:
            lower, estimate = np.empty((2, *distances.shape), queries.dtype)
            for indices, *values in parts:
                lower[:, indices], estimate[:, indices] = values
        for array in (lower, estimate):
            if not np.isfinite(np.sum(array)):  # a bound that overflowed is no bound
                np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

        def evaluate_class(i: int, rows: Matrix, sums: Matrix | None = None) -> Matrix:
            precision, scale = self.in_basis.get(i), self.scales[i]
            if precision is None:
                return _evaluate_class(self.precisions[i], queries[rows], self.centers[i], scale)
            differences = rotated[rows] - self.rotated_centers[i]
            if sums is None:
                return np.asarray(scale * precision.rotated_sq_norm(differences))
            return np.asarray(scale * precision.first_block_terms(differences) + sums)

        def evaluate(rows: Matrix, classes: Matrix, *sums: Matrix) -> Matrix:
            result, columns = np.empty(len(rows)), self._prior_column[classes]
            pairs = np.flatnonzero(columns >= 0)
            if self.prior_bounds is not None and len(pairs):
                result[pairs] = self.prior_bounds.evaluate(queries, rows[pairs], columns[pairs])
            pairs = np.flatnonzero(columns < 0)
            sums_of_pairs = (values[pairs] for values in sums)
            others = rows[pairs], classes[pairs]
            result[pairs] = _class_by_class(evaluate_class, *others, *sums_of_pairs)
            return result

        def refine(rows: Matrix, classes: Matrix, threshold: Matrix) -> Matrix:
            result = np.full(len(rows), np.inf)
            left, sums = self._prune(
                rotated, norms, lower[rows, classes], rows, classes, threshold[rows]
            )
            result[left] = evaluate(rows[left], classes[left], sums)
            return result

        return filter_and_refine(
            (lower, estimate),
            distances,
            evaluate_class,
            k,
            radius,
            epsilon,
            evaluate=evaluate,
            refine=refine,
            rtol=self._tuning.bound_rtol,
            tolerance=self._tolerance,
        )

    def _prune(
        self,
        rotated: Matrix,
        norms: Matrix,
        bound: Matrix,
        rows: Matrix,
        classes: Matrix,
        threshold: Matrix,
    ) -> tuple[Matrix, Matrix]:
        """Those of the pairs that no block of coordinates prunes, and their sums of terms.

        All pairs pass one block before any passes the next. The terms of the first block are in
        the lower ``bound``.
        """
        left, sums = np.arange(len(rows)), np.zeros(len(rows))
        for blocks in self._levels:
            sums += self._block_terms(rotated, norms, blocks, rows[left], classes[left])
            keep = ~(bound[left] + sums > threshold[left])  # an overflow prunes nothing
            left, sums = left[keep], sums[keep]
        return left, sums

    def _block_terms(
        self,
        rotated: Matrix,
        norms: Matrix,
        blocks: Mapping[int, Matrix],
        rows: Matrix,
        classes: Matrix,
    ) -> Matrix:
        """What a block of coordinates adds at least to the squared distance of each pair."""
        squares = np.zeros(len(rows))
        for i, run in group_runs(classes):
            columns = blocks.get(i)
            if columns is not None:
                end = len(columns)
                differences = rotated[:, :end][rows[run]]
                differences -= self.rotated_centers[i, :end]
                white = differences @ columns
                squares[run] = np.vecdot(white, white)
        noise = self._noise[classes]
        if noise.any():
            noise *= norms[rows] + self._center_norms[classes]
            squares = np.maximum(np.sqrt(squares) - noise, 0) ** 2
        return squares * self.scales[classes]


def _evaluate_class(precision: Precision, rows: Matrix, center: Matrix, scale: float) -> Matrix:
    """Squared distances of rows, which are overwritten, to one class."""
    rows -= center
    return np.asarray(to_numpy(precision.squared_mahalanobis(rows)) * scale)


def search_cold(
    bounds: CGBounds,
    precision_of: Callable[[int], Precision],
    queries: Matrix,
    k: int,
    radius: float,
    reduce: Callable[[Matrix, Matrix], R],
    tuning: SearchTuning = TUNING,
) -> R:
    """Filter and refine before precisions are derived; only those of near classes are."""
    lower_and_upper = bounds.bound(queries, k, radius)
    shifted = (queries - bounds.origin.astype(queries.dtype)).astype(bounds.dtype)
    centers = bounds.centers.astype(bounds.dtype)

    def evaluate_class(i: int, rows: Matrix) -> Matrix:
        precision = on_numpy(precision_of(i))
        return _evaluate_class(precision, shifted[rows], centers[i], float(bounds.scales[i]))

    distances = np.full((len(shifted), len(centers)), np.inf, bounds.dtype)
    return reduce(
        *filter_and_refine(
            lower_and_upper, distances, evaluate_class, k, radius, rtol=tuning.bound_rtol
        )
    )
