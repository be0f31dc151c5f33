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

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import row_slices, to_numpy
from fecam.core.bounds import CGBounds, Interval, PrefixBounds, PriorBounds, expand_radius
from fecam.core.distances import ExhaustiveDistances, group_runs, grouped_distances
from fecam.core.precision import (
    BlockCholesky,
    DensePrecision,
    LowRankPrecision,
    Precision,
    block_ends,
    on_numpy,
)
from fecam.core.threads import in_parallel
from fecam.core.tuning import TUNING, SearchTuning

Matrix = NDArray[Any]
R = TypeVar("R")

EvaluatePairs = Callable[[Matrix, Matrix, Matrix | None], Matrix]
"""Squared distances of pairs (rows, classes), sorted by class; those that exceed a threshold per
row may be returned as infinity."""
EvaluateClass = Callable[[int, Matrix], Matrix]
"""Squared distances of rows to one class, computed in the same way for every class."""


def filter_and_refine(
    interval: Interval,
    distances: Matrix,
    evaluate: EvaluatePairs,
    evaluate_class: EvaluateClass,
    k: int,
    radius: float,
    epsilon: float,
    tuning: SearchTuning = TUNING,
) -> tuple[Matrix, Matrix]:
    """Return the distances of all classes that matter, and the rows that have ties.

    ``distances`` holds the distances that are known already, and infinity elsewhere. The result
    holds all that are among the ``k`` smallest of their row or within ``radius`` of the smallest,
    and infinity for classes that were pruned.
    """
    lower, _, estimate = interval
    if k == 1:
        guesses = np.argmin(estimate, axis=1)[:, None]
    else:
        guesses = np.argpartition(estimate, k - 1, axis=1)[:, :k]
    order = np.argsort(guesses, axis=None, kind="stable")
    _evaluate(distances, order // k, guesses.ravel()[order], evaluate)
    evaluated = np.take_along_axis(distances, guesses, axis=1)
    threshold = np.maximum(evaluated.max(axis=1), expand_radius(evaluated.min(axis=1), radius))
    threshold *= 1 + tuning.bound_rtol
    selected = lower <= threshold.astype(lower.dtype)[:, None]
    if epsilon:
        kth = np.take_along_axis(estimate, guesses, axis=1).max(axis=1)
        kth = expand_radius(kth * (1 + 1e-3), radius)
        selected &= lower + epsilon * (estimate - lower) <= kth[:, None]
    classes, rows = np.nonzero(selected.T)
    _evaluate(distances, rows, classes, evaluate, threshold)
    return distances, _evaluate_ties(distances, evaluate_class, k, tuning.tie_rtol)


def _evaluate(
    distances: Matrix,
    rows: Matrix,
    classes: Matrix,
    evaluate: EvaluatePairs,
    threshold: Matrix | None = None,
) -> None:
    """Fill in the distances of pairs, sorted by class, that are not known yet."""
    unknown = np.isinf(distances[rows, classes])
    rows, classes = rows[unknown], classes[unknown]
    distances[rows, classes] = evaluate(rows, classes, threshold)


def _evaluate_ties(distances: Matrix, evaluate_class: EvaluateClass, k: int, rtol: float) -> Matrix:
    """Evaluate near ties again class by class, so that equal classes tie; return their rows."""
    if k == 1:
        ranked = np.take_along_axis(distances, distances.argmin(axis=1)[:, None], axis=1)
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
        self, exhaustive: ExhaustiveDistances, axes: Any, tuning: SearchTuning = TUNING
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
        self.is_cholesky = np.asarray([isinstance(p, BlockCholesky) for p in self.precisions])
        self.ends = block_ends(axes.shape[1], tuning)
        self.direct: list[int] = []
        low_rank: list[int] = []
        with_prior: list[int] = []
        for i, precision in enumerate(self.precisions):
            if isinstance(precision, LowRankPrecision) and precision.eigenvectors is not None:
                with_prior.append(i)
            elif isinstance(precision, DensePrecision):
                self.direct.append(i)
            elif isinstance(precision, LowRankPrecision):
                few = len(precision.rows) <= tuning.max_direct_rank
                (self.direct if few else low_rank).append(i)
        self.prefix_bounds: list[PrefixBounds] = []
        self.prior_bounds: PriorBounds | None = None
        with np.errstate(all="ignore"):  # tiny features overflow: their bounds are zero
            for indices, size in (
                (np.flatnonzero(self.is_cholesky).tolist(), self.ends[0]),
                (low_rank, min(self.ends[0], tuning.low_rank_prefix)),
            ):
                if indices:
                    members = [cast(BlockCholesky, self.precisions[i]) for i in indices]
                    arrays = self.rotated_centers, self.scales, axes
                    self.prefix_bounds.append(PrefixBounds(indices, members, *arrays, size, tuning))
            if with_prior:
                self._prior_column = np.empty(len(self.precisions), int)
                self._prior_column[with_prior] = np.arange(len(with_prior))
                self.prior_bounds = PriorBounds(
                    with_prior,
                    [cast(LowRankPrecision, self.precisions[i]) for i in with_prior],
                    self.centers,
                    self.scales,
                    tuning,
                )
        self._has_prior = np.isin(np.arange(len(self.precisions)), with_prior)
        if self.direct:
            members_direct = [self.precisions[i] for i in self.direct]
            self._direct_distances = grouped_distances(
                members_direct, self.centers[self.direct], tuning
            )

    def beats_exhaustive(self, n_queries: int) -> bool:
        """Whether this number of queries is answered faster than by exhaustive search.

        Triangles are always too large to read all of them. Low-rank classes are small: with a
        prior a few queries are enough, without one it takes hundreds.
        """
        n_classes = len(self.precisions)
        if self.is_cholesky.any():
            return True
        if self.prior_bounds is not None:
            return n_queries * n_classes >= 250
        return n_queries >= 600 and n_classes >= 100

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
            block = to_numpy(self.exhaustive.shift(queries[rows, :]))
            with np.errstate(over="ignore", invalid="ignore"):
                return reduce(*self._search_block(block, k, radius, epsilon))

        tuning, n = self._tuning, queries.shape[0]
        max_rows = self.exhaustive.block_rows
        if self.prior_bounds is not None:
            max_rows = max(1, max_rows // 4)  # its bounds have several terms at once
        size = n
        if n >= 2 * tuning.min_parallel_rows:  # an even number of blocks occupies two cores
            size = -(-n // (2 * -(-n // (2 * tuning.block_rows))))
        return in_parallel(search_block, row_slices(n, min(max(size, 1), max_rows)))

    def _search_block(
        self, block: Matrix, k: int, radius: float, epsilon: float
    ) -> tuple[Matrix, Matrix]:
        shape = (len(block), len(self.precisions))
        distances = np.full(shape, np.inf)
        rotated = block @ self.axes if self.prefix_bounds else block
        norms = np.linalg.norm(rotated, axis=1)
        bounded: list[tuple[Matrix, Interval]] = [
            (bounds.indices, bounds.bound(rotated)) for bounds in self.prefix_bounds
        ]
        if self.prior_bounds is not None:
            interval = self.prior_bounds.bound(block, k, radius, epsilon)
            bounded.append((self.prior_bounds.indices, interval))
        if len(bounded) == 1 and len(bounded[0][0]) == shape[1]:
            lower, _, estimate = bounded[0][1]
        else:
            lower, estimate = np.zeros((2, *shape), block.dtype)
            for indices, part in bounded:
                lower[:, indices], estimate[:, indices] = part.lower, part.estimate
        if self.direct:
            exact = self._direct_distances(block) * self.scales[self.direct]
            distances[:, self.direct] = exact
            lower[:, self.direct] = estimate[:, self.direct] = exact
        for array in (lower, estimate):
            if not np.isfinite(np.sum(array)):  # a bound that overflowed is no bound
                np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

        def evaluate_class(i: int, rows: Matrix) -> Matrix:
            return _evaluate_class(self.precisions[i], block[rows], self.centers[i], self.scales[i])

        def evaluate(rows: Matrix, classes: Matrix, threshold: Matrix | None) -> Matrix:
            result = np.empty(len(rows))
            in_basis, with_prior = self.is_cholesky[classes], self._has_prior[classes]
            if in_basis.any():
                pairs = rows[in_basis], classes[in_basis]
                result[in_basis] = self._evaluate_blocks(rotated, lower[pairs], *pairs, threshold)
            if self.prior_bounds is not None and with_prior.any():
                columns = self._prior_column[classes[with_prior]]
                result[with_prior] = self.prior_bounds.evaluate(block, rows[with_prior], columns)
            others = np.flatnonzero(~(in_basis | with_prior))
            for i, run in group_runs(classes[others]):
                pairs_of_class = others[run]
                if threshold is not None:
                    result[pairs_of_class] = np.inf
                    keep = self._passes_second_prefix(
                        i, rotated, norms, rows[pairs_of_class], lower, threshold
                    )
                    pairs_of_class = pairs_of_class[keep]
                left = rows[pairs_of_class]
                result[pairs_of_class] = evaluate_class(i, left)
                if threshold is not None and k == 1:  # the next class has to beat this one
                    nearest = expand_radius(result[pairs_of_class], radius)
                    nearest = nearest * (1 + self._tuning.bound_rtol)
                    threshold[left] = np.minimum(threshold[left], nearest)
            return result

        interval = Interval(lower, np.broadcast_to(np.inf, shape), estimate)
        return filter_and_refine(
            interval, distances, evaluate, evaluate_class, k, radius, epsilon, self._tuning
        )

    def _passes_second_prefix(
        self,
        index: int,
        rotated: Matrix,
        norms: Matrix,
        rows: Matrix,
        lower: Matrix,
        threshold: Matrix,
    ) -> Matrix:
        """Which rows a second prefix of a low-rank class does not prune."""
        prefix = vars(self.precisions[index]).get("low_rank_prefix")
        if prefix is None:  # evaluated directly, but its distance overflowed
            return np.ones(len(rows), bool)
        block, rounding = prefix[3:]
        differences = rotated[:, : len(block)][rows]
        differences -= self.rotated_centers[index, : len(block)]
        white = differences @ block
        noise = rounding * (norms[rows] + self._center_norms[index])
        length = np.maximum(np.sqrt(np.vecdot(white, white)) - noise, 0)
        bound = lower[rows, index] + self.scales[index] * length * length
        return np.asarray(bound <= threshold[rows])

    def _evaluate_blocks(
        self,
        rotated: Matrix,
        bound: Matrix,
        rows: Matrix,
        classes: Matrix,
        threshold: Matrix | None,
    ) -> Matrix:
        """Evaluate pairs block by block of coordinates; infinity where a sum exceeds a threshold.

        All pairs pass one block before any passes the next. The first block comes last: its sum
        is in the lower ``bound`` already.
        """
        result = np.full(len(rows), np.inf)
        if threshold is None:
            for i, run in group_runs(classes):
                differences = rotated[rows[run]] - self.rotated_centers[i]
                result[run] = self._cholesky(i).rotated_sq_norm(differences) * self.scales[i]
            return result
        left = np.arange(len(rows))
        total = np.zeros(len(rows))
        for level in range(1, len(self.ends)):
            total += self.scales[classes] * self._block_terms(rotated, level, rows, classes)
            keep = np.flatnonzero(bound + total <= threshold[rows])
            left, rows, classes = left[keep], rows[keep], classes[keep]
            total, bound = total[keep], bound[keep]
        total += self.scales[classes] * self._block_terms(rotated, 0, rows, classes)
        result[left] = total
        return result

    def _cholesky(self, index: int) -> BlockCholesky:
        return cast(BlockCholesky, self.precisions[index])

    def _block_terms(self, rotated: Matrix, level: int, rows: Matrix, classes: Matrix) -> Matrix:
        """What a block of coordinates adds to the squared distance; the first has the floor."""
        terms = np.empty(len(rows))
        end = self.ends[level]
        width = end if level else rotated.shape[1]
        queries, centers = rotated[:, :width], self.rotated_centers[:, :width]
        for i, run in group_runs(classes):
            precision = self._cholesky(i)
            differences = queries[rows[run]]
            differences -= centers[i]
            white = differences[:, :end] @ precision.blocks[level]
            terms[run] = np.vecdot(white, white)
            if not level:
                tail = differences[:, end:]
                terms[run] += precision.tail_floor * np.vecdot(tail, tail)
        return terms


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
    interval = bounds.bound(queries, k, radius)
    block = (queries - bounds.origin.astype(queries.dtype)).astype(bounds.dtype)
    centers = bounds.centers.astype(bounds.dtype)

    def evaluate_class(i: int, rows: Matrix) -> Matrix:
        precision = on_numpy(precision_of(i))
        return _evaluate_class(precision, block[rows], centers[i], float(bounds.scales[i]))

    def evaluate(rows: Matrix, classes: Matrix, threshold: Matrix | None) -> Matrix:
        result = np.empty(len(rows))
        for i, run in group_runs(classes):
            result[run] = evaluate_class(i, rows[run])
        return result

    distances = np.full(interval.lower.shape, np.inf)
    return reduce(
        *filter_and_refine(interval, distances, evaluate, evaluate_class, k, radius, 0.0, tuning)
    )
