r"""How far a sample of a known class is expected to lie from it, and how surprising a distance is.

Two things are needed without keeping a sample:

- The *expected* squared distance :math:`E_y` of a new sample of class :math:`y` follows from the
  statistics alone. It is the trace of the class's scatter under its own metric, corrected for the
  fact that the very samples that are measured also made the metric (the leave-one-out identity).
- The *spread* around it does not: real features have heavier tails than a Gaussian. So while a
  class is learned, up to `CALIBRATION_ROWS` of its rows are measured with a common metric, and
  three sums of their distances are stored. Their relative variance :math:`v`, over all classes, is
  the spread.

With both, a distance is a number that means the same for every class and every encoder: its
position in a log-normal distribution of mean :math:`E_y` and relative variance :math:`v`, in
standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from statistics import NormalDist

import numpy as np

from fecam.core.arrays import Array, diagonal, namespace, to_backend_of, to_float64
from fecam.core.covariance import apply_whitening
from fecam.core.metric import Metric
from fecam.core.precision import DensePrecision, LowRankPrecision, Precision
from fecam.core.prior import MAX_COMPARED_CLASSES, Prior
from fecam.core.scatter import Scatter, diagonal_of, sqrt_rows, to_dense
from fecam.core.statistics import ClassStatistics, scatter_diagonal
from fecam.core.transforms import unit_length
from fecam.errors import InputError

SOFTMAX_CUTOFF = 5.0
"""Temperatures beyond the nearest class at which a class, 1/148 as likely, counts as zero."""
CALIBRATION_ROWS = 32
"""Rows of a class that are measured in one lesson."""
N_PROBES = 32
"""Random directions for a trace; they are fixed, so the same model gives the same answer."""
MAX_EXACT_FEATURES = 128
"""Number of features up to which all directions are used."""
PSEUDO_COUNT = 5
"""A class's expected distance is pulled to that of the others by this many samples."""
DEFAULT_REL_VARIANCE = 0.1
"""The relative variance assumed until two samples of some class have been measured."""
MAX_LEVERAGE = 0.5
"""Beyond this the leave-one-out identity divides by a difference that is mostly noise."""
REFERENCE_REL_VARIANCE = 0.06
"""The relative variance that gives honest probabilities on most features; a measured one is pulled
half-way to it, because errors of the matrices are shared by all samples and show in no spread."""


def sample_distances(
    features: Array, stats: ClassStatistics, metric: Metric, prior: Prior | None
) -> tuple[int, float, float]:
    """Number, sum and sum of squares of the distances of a few rows of a lesson.

    The common metric is that of the prior's matrix, or the Euclidean one if there is none;
    only ratios of distances within a class will matter.
    """
    if stats.count < 2:
        return 0, 0.0, 0.0
    xp = namespace(features)
    number = min(CALIBRATION_ROWS, features.shape[0])
    step = features.shape[0] // number
    rows = features[: number * step : step, :]
    if metric.unit_compare:
        rows = unit_length(rows) * _length(stats)
    left_out = stats.count / (stats.count - 1)
    z = to_float64(rows) - stats.mean
    if prior is None or prior.whitening is None:
        distances = xp.sum(z * z, axis=1) * left_out
    else:
        z = xp.astype(z, prior.whitening.dtype)
        distances = _square_lengths(apply_whitening(z, prior.whitening)) * left_out
        if prior.whitening.ndim == 2:  # of a diagonal, a sample makes up next to nothing
            own = _square_lengths(apply_whitening(z / prior.std, prior.whitening))
            leverage = own * (left_out / max(prior.dof, 1))
            if float(xp.max(leverage)) > MAX_LEVERAGE:
                return 0, 0.0, 0.0  # these rows make up most of the common metric
            distances = distances / (1 - leverage)
    return number, float(xp.sum(distances)), float(xp.sum(distances * distances))


def _square_lengths(rows: Array) -> Array:
    return to_float64(namespace(rows).sum(rows * rows, axis=1))


def relative_variance(classes: Iterable[ClassStatistics]) -> float:
    """The variance of squared distances within a class, relative to their squared mean."""
    total, dof = 0.0, 0
    for stats in classes:
        number, first, second = stats.distance_moments
        if number >= 2 and first > 0:
            mean = first / number
            if mean**2 == 0:
                continue  # features so small that their fourth powers vanish
            total += max(second - first * mean, 0.0) / mean**2
            dof += number - 1
    return max(total / dof, 1e-4) if dof and total > 0 else DEFAULT_REL_VARIANCE


def has_variance(stats: ClassStatistics) -> bool:
    """Whether a class knows how far its samples lie: two say nothing about a third."""
    return stats.count > 2 and (stats.scatter is not None or stats.distance_moments[0] > 0)


def strided_subset(positions: Sequence[int]) -> Sequence[int]:
    """Some of the positions, evenly spread: the average of more classes would not differ.

    >>> list(strided_subset(range(3))), list(strided_subset(range(100)))[:4]
    ([0, 1, 2], [0, 2, 4, 6])
    """
    return positions[:: max(-(-len(positions) // MAX_COMPARED_CLASSES), 1)]


def own_distance(
    stats: ClassStatistics, precision: Precision, metric: Metric, prior: Prior | None, dof: int
) -> float | None:
    """The expected squared distance of one more sample to this class, from its statistics alone.

    None for a class that is not telling (`is_telling`). ``freedom`` is that of all classes
    together: it matters where they share a matrix.
    """
    if not has_variance(stats):
        return None
    offset = stats.mean / (_length(stats) if metric.unit_compare else 1.0) - to_float64(
        precision.center
    )
    xp = namespace(offset)
    bias = float(precision.squared_mahalanobis(xp.astype(offset, stats.raw_mean.dtype)[None, :])[0])
    scale = _length(stats) ** -2 if metric.unit_compare else 1.0
    if stats.scatter is None:
        number, first, _ = stats.distance_moments
        return first / number * scale + bias
    scatter = stats.scatter
    if metric.covariance == "diagonal":
        scatter = Scatter(diagonal_of(scatter), "diagonal", scatter.n_features)
    spread = _trace(precision, scatter) / (stats.count - 1)
    leverage = _leverage(stats, precision, metric, prior, dof, scatter)
    return spread / (1 - min(leverage, 0.9)) * scale + bias


def pooled_distance(classes: Iterable[ClassStatistics], own: Iterable[float | None]) -> float:
    """What is expected of a class that is like the others: the mean, weighted by samples."""
    pairs = [(stats.count, value) for stats, value in zip(classes, own, strict=True)]
    known = sum(count for count, value in pairs if value is not None)
    usual = sum(count * value for count, value in pairs if value is not None) / max(known, 1)
    return usual if usual > 0 else 1.0


def expected_distances(
    classes: Iterable[ClassStatistics], own: Iterable[float | None], usual: float
) -> list[float]:
    """The expected squared distance of a new sample to each class; few samples borrow."""
    return [
        (1 + 1 / stats.count)
        * (
            usual
            if value is None
            else (stats.count * value + PSEUDO_COUNT * usual) / (stats.count + PSEUDO_COUNT)
        )
        for stats, value in zip(classes, own, strict=True)
    ]


def softmax_temperature(expected: Sequence[float], variance: float) -> float:
    """What squared distances are divided by before they become probabilities."""
    mean = sum(expected) / len(expected)
    return max(mean * math.sqrt(variance * REFERENCE_REL_VARIANCE), 1e-30)


def novelty_zscore(distances: Array, expected: Array, variance: float) -> Array:
    """Squared distances in standard deviations of what is usual for a known class."""
    xp = namespace(distances)
    sigma = math.sqrt(math.log1p(variance))
    smallest = xp.finfo(distances.dtype).smallest_normal + 0 * distances
    ratio = xp.log(xp.maximum(distances, smallest)) - xp.log(xp.maximum(expected, smallest))
    return (ratio + sigma**2 / 2) / sigma


def softmax_numerators(distances: Array, temperature: float) -> Array:
    """Unnormalized probabilities per row: 1 for the nearest class, 0 beyond the cutoff.

    >>> softmax_numerators(np.array([[4.0, 2.0, 2.5, np.inf]]), 0.25).round(3).tolist()
    [[0.0, 1.0, 0.135, 0.0]]
    """
    xp = namespace(distances)
    excess = (distances - xp.min(distances, axis=1, keepdims=True)) / temperature
    return xp.exp(-excess) * xp.astype(excess <= SOFTMAX_CUTOFF, distances.dtype)


def softmax_sum(distances: Array, temperature: float) -> Array:
    """The sum of the softmax numerators per row; zero without a temperature."""
    xp = namespace(distances)
    if not temperature:
        return xp.zeros_like(distances[:, 0])  # a pruned class has an infinite distance
    return xp.sum(softmax_numerators(distances, temperature), axis=1)


def novelty_threshold(reject: float) -> float:
    """The novelty that this share of samples of known classes exceeds.

    >>> round(novelty_threshold(0.05), 2)
    1.64
    """
    if not isinstance(reject, Real) or not 0 < reject < 1:
        raise InputError(
            f"reject={reject!r} must lie between 0 and 1: the share of samples of known classes "
            "that may be rejected, for example 0.05."
        )
    return -NormalDist().inv_cdf(float(reject))


def mean_square_length(stats: ClassStatistics) -> float:
    """The mean squared length of a class's transformed features."""
    spread = scatter_diagonal(stats)
    square = float(namespace(stats.mean).sum(stats.mean * stats.mean))
    if spread is not None:
        square += float(namespace(spread).sum(to_float64(spread))) / stats.count
    return square or 1.0


def _length(stats: ClassStatistics) -> float:
    return math.sqrt(mean_square_length(stats))


def _leverage(
    stats: ClassStatistics,
    precision: Precision,
    metric: Metric,
    prior: Prior | None,
    dof: int,
    scatter: Scatter,
) -> float:
    """What part of a class's matrix one of its samples is, on the average, in its own direction."""
    left_out = stats.count / (stats.count - 1)
    if metric.is_shared:
        share, std = 1 / max(dof, 1), None
    else:
        pseudo_count = 0.0 if prior is None else prior.pseudo_count
        through_prior = 0.0 if prior is None else pseudo_count / max(prior.dof, 1)
        share = (1 + through_prior) / (stats.count - 2 + pseudo_count)
        std = _normalizing_std(stats, metric, prior)
    whole = left_out * share * _trace(precision, scatter, std) / stats.count
    # The variances of a diagonal matrix are estimated one by one, each from all samples.
    return whole / scatter.n_features if scatter.storage == "diagonal" else whole


def _normalizing_std(stats: ClassStatistics, metric: Metric, prior: Prior | None) -> Array:
    """The square roots of what normalisation divided the diagonal of a class's matrix by."""
    xp = namespace(stats.mean)
    spread = to_float64(scatter_diagonal(stats))
    blended = spread / (stats.count - 1)
    if prior is not None:
        shared = prior.covariance
        shared = shared if shared.ndim == 1 else diagonal(shared)
        blended = (spread + prior.pseudo_count * shared) / (stats.count - 1 + prior.pseudo_count)
    shrunk = blended + metric.shrinkage[0] * xp.mean(blended)
    if metric.normalization == "correlation" and metric.covariance != "diagonal":
        return xp.sqrt(xp.where(shrunk > 0, shrunk, xp.ones_like(shrunk)))
    if metric.normalization is None:
        return xp.ones_like(shrunk)
    length = float(xp.linalg.vector_norm(shrunk))
    return xp.ones_like(shrunk) * (math.sqrt(length) or 1.0)


def _trace(precision: Precision, scatter: Scatter, std: Array | None = None) -> float:
    r"""The sum of the squared distances whose differences have this scatter.

    They are divided by the deviations first, if given. Exact for few rows, for few features and
    for diagonal matrices; through fixed random signs (Hutchinson) for others.
    """
    xp = namespace(scatter.data)
    if scatter.storage == "diagonal":
        weights = to_float64(scatter.data) if std is None else scatter.data / std**2
        if isinstance(precision, DensePrecision) and precision.whitening is not None:
            weights = weights * to_float64(precision.whitening) ** 2
        return float(xp.sum(weights))
    if scatter.storage == "low_rank" or isinstance(precision, LowRankPrecision):
        rows = to_float64(sqrt_rows(scatter))
        rows = rows if std is None else rows / std
        return float(xp.sum(precision.squared_mahalanobis(xp.astype(rows, scatter.data.dtype))))
    signs = np.eye(scatter.n_features)
    if scatter.n_features > MAX_EXACT_FEATURES:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(scatter.n_features, N_PROBES))
        signs /= N_PROBES**0.5
    probes = to_backend_of(signs, scatter.data)
    ours = probes if std is None else probes / std[:, None]
    spread = to_float64(to_dense(scatter)) @ ours
    spread = spread if std is None else spread / std[:, None]
    return float(xp.sum(precision.apply(probes) * spread))
