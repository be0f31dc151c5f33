r"""Expected distance: the mean squared distance of new samples of a class, from its statistics.

The expected squared distance :math:`E_y` of a new sample of class :math:`y` is the trace of the
class's scatter under its own metric, corrected by the leave-one-out identity, because the same
samples determine the metric. No sample is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from array_api_compat import device

from fecam.core.arrays import (
    Array,
    accumulation_dtype,
    namespace,
    to_backend_of,
    to_float64,
    to_numpy,
)
from fecam.core.metric import Metric, normalizing_std
from fecam.core.precision import DensePrecision, LowRankPrecision, Precision
from fecam.core.prior import MAX_COMPARED_CLASSES, Prior
from fecam.core.scatter import Scatter, diagonal_of, sqrt_rows, to_dense
from fecam.core.statistics import ClassStatistics, length_of

N_PROBES = 32
"""Number of random directions for a trace, the same for every call."""
MAX_EXACT_FEATURES = 128
"""Number of features up to which a trace is exact."""
PSEUDO_COUNT = 5
"""Weight, in samples, of the mean over classes in a class's expected distance."""


def has_variance(stats: ClassStatistics) -> bool:
    """Return whether the statistics determine an expected distance: two samples do not."""
    return stats.count > 2 and (stats.scatter is not None or stats.distance_moments[0] > 0)


def strided_subset(positions: Sequence[int]) -> Sequence[int]:
    """Return at most `MAX_COMPARED_CLASSES` of the positions, evenly spaced.

    >>> list(strided_subset(range(3))), list(strided_subset(range(100)))[:4]
    ([0, 1, 2], [0, 2, 4, 6])
    """
    return positions[:: max(-(-len(positions) // MAX_COMPARED_CLASSES), 1)]


def own_distance(
    stats: ClassStatistics,
    precision: Precision,
    metric: Metric,
    prior: Prior | None,
    dof: int,
    in_prior: bool,
) -> float | None:
    """Return the expected squared distance of a new sample, from the statistics of its class.

    None for a class without variance (`has_variance`). ``dof`` are the degrees of freedom of all
    classes, for a matrix that they share; ``in_prior`` tells whether the prior contains the class.
    """
    if not has_variance(stats):
        return None
    offset = stats.mean / (length_of(stats) if metric.unit_compare else 1.0) - to_float64(
        precision.center
    )
    xp = namespace(offset)
    bias = float(precision.squared_mahalanobis(xp.astype(offset, stats.raw_mean.dtype)[None, :])[0])
    scale = length_of(stats) ** -2 if metric.unit_compare else 1.0
    if stats.scatter is None:
        number, first, _ = stats.distance_moments
        return first / number * scale + bias
    scatter = stats.scatter
    if metric.covariance == "diagonal":
        scatter = Scatter(diagonal_of(scatter), "diagonal", scatter.n_features)
    share, std = _leverage_terms(stats, metric, prior, dof, in_prior)
    trace, normalized_trace = _traces(precision, scatter, std)
    leverage = share * normalized_trace / (stats.count - 1)
    if scatter.storage == "diagonal":  # each variance is estimated on its own
        leverage /= scatter.n_features
    return trace / (stats.count - 1) / (1 - min(leverage, 0.9)) * scale + bias


def pooled_distance(classes: Iterable[ClassStatistics], own: Iterable[float | None]) -> float:
    """Return the mean of the expected distances of classes, weighted by samples; 1 if it is 0."""
    pairs = [
        (stats.count, value) for stats, value in zip(classes, own, strict=True) if value is not None
    ]
    total = sum(count for count, _ in pairs)
    mean = sum(count * value for count, value in pairs) / max(total, 1)
    return mean if mean > 0 else 1.0


def expected_distances(
    classes: Iterable[ClassStatistics], own: Iterable[float | None], pooled: float
) -> list[float]:
    """Return the expected squared distance per class, pulled to ``pooled`` for few samples."""
    return [
        (1 + 1 / stats.count)
        * (
            pooled
            if value is None
            else (stats.count * value + PSEUDO_COUNT * pooled) / (stats.count + PSEUDO_COUNT)
        )
        for stats, value in zip(classes, own, strict=True)
    ]


def _leverage_terms(
    stats: ClassStatistics, metric: Metric, prior: Prior | None, dof: int, in_prior: bool
) -> tuple[float, Array | None]:
    """Return the weight of a class's sample in its matrix, and the deviations that divide it."""
    if metric.is_shared:
        return 1 / max(dof, 1), None
    pseudo_count = 0.0 if prior is None else prior.pseudo_count
    prior_share = pseudo_count / max(prior.dof, 1) if prior is not None and in_prior else 0.0
    share = (1 + prior_share) / (stats.count - 2 + pseudo_count)
    return share, normalizing_std(stats, metric, prior)


def _traces(precision: Precision, scatter: Scatter, std: Array | None) -> tuple[float, float]:
    r"""Return :math:`\mathrm{tr}(P S)`, and the same with :math:`S` divided by ``std`` twice.

    Exact for few rows, few features and diagonal matrices; otherwise Hutchinson's estimate with
    fixed random signs.
    """
    xp = namespace(scatter.data)
    place = device(scatter.data)
    wide = accumulation_dtype(scatter.data)
    divisor = xp.ones(scatter.n_features, dtype=wide, device=place) if std is None else std
    if scatter.storage == "diagonal":
        weights = to_float64(scatter.data)
        if isinstance(precision, DensePrecision) and precision.whitening is not None:
            weights = weights * to_float64(precision.whitening) ** 2
        return float(xp.sum(weights)), float(xp.sum(weights / divisor**2))
    if scatter.storage == "low_rank" or isinstance(precision, LowRankPrecision):
        rows = to_float64(sqrt_rows(scatter))
        rows = xp.astype(xp.concat([rows, rows / divisor], axis=0), scatter.data.dtype)
        first, second = np.split(to_numpy(precision.squared_mahalanobis(rows)), 2)
        return float(np.sum(first)), float(np.sum(second))
    signs = np.eye(scatter.n_features)
    if scatter.n_features > MAX_EXACT_FEATURES:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(scatter.n_features, N_PROBES))
        signs /= N_PROBES**0.5
    probes = to_backend_of(signs, scatter.data)
    half = probes.shape[1]
    products = to_float64(to_dense(scatter)) @ xp.concat(
        [probes, probes / divisor[:, None]], axis=1
    )
    applied = precision.apply(probes)
    return (
        float(xp.sum(applied * products[:, :half])),
        float(xp.sum(applied * products[:, half:] / divisor[:, None])),
    )
