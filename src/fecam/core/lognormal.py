r"""Log-normal model of squared distances: their relative variance, and the novelty that follows.

Features have heavier tails than a Gaussian, so the variance of distances does not follow from the
statistics of a class. While a class is learned, the distances of up to `SAMPLED_ROWS` of its rows
are measured with a common metric, and their number, sum and sum of squares are stored. :math:`v` is
their relative variance over all classes.

The score of a squared distance is its position in a log-normal distribution with mean :math:`E_y`
and relative variance :math:`v`, in standard deviations. It is the novelty only while no rows have
been left out; afterwards see `fecam.core.novelty`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fecam.core.arrays import Array, namespace, to_float64
from fecam.core.covariance import apply_whitening
from fecam.core.metric import Metric
from fecam.core.prior import Prior
from fecam.core.statistics import ClassStatistics, length_of
from fecam.core.transforms import unit_length

SAMPLED_ROWS = 32
"""Maximum number of rows per class and batch whose distances are measured."""
DEFAULT_REL_VARIANCE = 0.1
"""The relative variance while no class has two measured distances."""
MAX_LEVERAGE = 0.5
"""Leverage above which the leave-one-out identity is unreliable: it divides by 1 - leverage."""


def sample_distances(
    features: Array, stats: ClassStatistics, metric: Metric, prior: Prior | None, dof: int
) -> tuple[int, float, float]:
    """Return number, sum and sum of squares of the distances of some rows of a batch.

    The metric is that of the prior, or Euclidean without one. Only ratios of distances within a
    class are used. A prior with fewer than ``dof`` degrees of freedom does not contain the rows.
    """
    if stats.count < 2:
        return 0, 0.0, 0.0
    xp = namespace(features)
    number = min(SAMPLED_ROWS, features.shape[0])
    step = features.shape[0] // number
    rows = features[: number * step : step, :]
    if metric.unit_compare:
        rows = unit_length(rows) * length_of(stats)
    correction = stats.count / (stats.count - 1)
    z = to_float64(rows) - stats.mean
    if prior is None or prior.whitening is None:
        distances = xp.sum(z * z, axis=1) * correction
    else:
        z = xp.astype(z, prior.whitening.dtype)
        distances = _square_lengths(apply_whitening(z, prior.whitening)) * correction
        # The leverage is negligible for a diagonal matrix.
        if prior.whitening.ndim == 2 and prior.dof == dof:
            own = _square_lengths(apply_whitening(z / prior.std, prior.whitening))
            leverage = own * (correction / max(prior.dof, 1))
            if float(xp.max(leverage)) > MAX_LEVERAGE:
                return 0, 0.0, 0.0  # these rows determine most of the prior
            distances = distances / (1 - leverage)
    return number, float(xp.sum(distances)), float(xp.sum(distances * distances))


def _square_lengths(rows: Array) -> Array:
    return to_float64(namespace(rows).sum(rows * rows, axis=1))


def relative_variance(classes: Iterable[ClassStatistics]) -> float:
    """Return the within-class variance of squared distances, relative to their squared mean."""
    total, dof = 0.0, 0
    for stats in classes:
        number, first, second = stats.distance_moments
        if number >= 2 and first > 0:
            mean = first / number
            if mean**2 == 0:
                continue  # fourth powers of tiny features underflow
            total += max(second - first * mean, 0.0) / mean**2
            dof += number - 1
    return max(total / dof, 1e-4) if dof and total > 0 else DEFAULT_REL_VARIANCE


def novelty_zscore(distances: Array, expected: Array, variance: float) -> Array:
    """Return the novelty of squared distances, in standard deviations."""
    xp = namespace(distances)
    sigma = math.sqrt(math.log1p(variance))
    smallest = xp.finfo(distances.dtype).smallest_normal + 0 * distances
    ratio = xp.log(xp.maximum(distances, smallest)) - xp.log(xp.maximum(expected, smallest))
    return (ratio + sigma**2 / 2) / sigma
