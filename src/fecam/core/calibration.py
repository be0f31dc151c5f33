r"""Calibration of distances: expected distances, softmax temperature and novelty.

Both inputs are available without stored samples:

- The *expected* squared distance :math:`E_y` of a new sample of class :math:`y` follows from the
  statistics. It is the trace of the class's scatter under its own metric, corrected by the
  leave-one-out identity, because the same samples determine the metric.
- Its *relative variance* :math:`v` does not, because features have heavier tails than a Gaussian.
  So while a class is learned, the distances of up to `CALIBRATION_ROWS` of its rows are measured
  with a common metric, and their number, sum and sum of squares are stored. :math:`v` is their
  relative variance over all classes.

Until rows have been measured with the row left out (`fecam.core.measurement`), the novelty of a
sample is the position of its distance in a log-normal distribution of mean :math:`E_y` and relative
variance :math:`v`, in standard deviations; afterwards see `fecam.core.novelty`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from statistics import NormalDist

import numpy as np
from array_api_compat import device

from fecam.core.arrays import (
    Array,
    accumulation_dtype,
    diagonal,
    namespace,
    to_backend_of,
    to_float64,
    to_numpy,
)
from fecam.core.covariance import apply_whitening, shrink, with_prior
from fecam.core.metric import Metric
from fecam.core.precision import DensePrecision, LowRankPrecision, Precision
from fecam.core.prior import MAX_COMPARED_CLASSES, Prior
from fecam.core.scatter import Scatter, diagonal_of, sqrt_rows, to_dense
from fecam.core.statistics import ClassStatistics, scatter_diagonal
from fecam.core.transforms import unit_length
from fecam.errors import InputError

SOFTMAX_CUTOFF = 5.0
"""Difference to the nearest class, in temperatures, beyond which the probability is zero.

The ratio of the probabilities is 1/148 there."""
CALIBRATION_ROWS = 32
"""Maximum number of rows per class and batch whose distances are measured."""
N_PROBES = 32
"""Number of random directions for a trace, the same for every call."""
MAX_EXACT_FEATURES = 128
"""Number of features up to which a trace is exact."""
PSEUDO_COUNT = 5
"""Weight, in samples, of the mean over classes in a class's expected distance."""
DEFAULT_REL_VARIANCE = 0.1
"""The relative variance while no class has two measured distances."""
MAX_LEVERAGE = 0.5
"""Leverage above which the leave-one-out identity is unreliable: it divides by 1 - leverage."""
REFERENCE_REL_VARIANCE = 0.06
"""The relative variance that gives calibrated probabilities on most of the measured data sets.

The temperature uses its geometric mean with the measured one: all samples share the errors of the
matrices, so the measured variance does not include them."""


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
    number = min(CALIBRATION_ROWS, features.shape[0])
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


def reference_sharpness(variance: float) -> float:
    """Return the sharpness that follows from the relative variance of squared distances.

    The temperature of squared distances that `REFERENCE_REL_VARIANCE` describes has the same slope
    at the expected distance.
    """
    return 2 / math.sqrt(variance * REFERENCE_REL_VARIANCE)


def softmax_temperature(expected: Sequence[float], sharpness: float) -> float:
    r"""Return the temperature by which the softmax divides distances, which are not squared.

    It is the root of the mean expected distance over the sharpness :math:`\kappa`.
    """
    return max(math.sqrt(sum(expected) / len(expected)) / sharpness, 1e-30)


def novelty_zscore(distances: Array, expected: Array, variance: float) -> Array:
    """Return the novelty of squared distances, in standard deviations."""
    xp = namespace(distances)
    sigma = math.sqrt(math.log1p(variance))
    smallest = xp.finfo(distances.dtype).smallest_normal + 0 * distances
    ratio = xp.log(xp.maximum(distances, smallest)) - xp.log(xp.maximum(expected, smallest))
    return (ratio + sigma**2 / 2) / sigma


def softmax_logits(distances: Array, temperature: float) -> Array:
    """Return the logarithm of unnormalized probabilities from squared distances, at most zero."""
    xp = namespace(distances)
    return -xp.sqrt(xp.maximum(distances, xp.zeros_like(distances))) / temperature


def log_softmax(logits: Array) -> Array:
    """Return normalized log-probabilities per row.

    >>> log_softmax(np.log([[1.0, 3.0]])).round(3).tolist()
    [[-1.386, -0.288]]
    """
    xp = namespace(logits)
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=1, keepdims=True))


def softmax_numerators(distances: Array, temperature: float) -> Array:
    """Return unnormalized probabilities per row: 1 for the nearest class, 0 beyond the cutoff.

    >>> softmax_numerators(np.array([[9.0, 1.0, 2.25, np.inf]]), 0.25).round(3).tolist()
    [[0.0, 1.0, 0.135, 0.0]]
    """
    xp = namespace(distances)
    logits = softmax_logits(distances, temperature)
    excess = xp.max(logits, axis=1, keepdims=True) - logits
    return xp.exp(-excess) * xp.astype(excess <= SOFTMAX_CUTOFF, distances.dtype)


def softmax_sum(distances: Array, temperature: float) -> Array:
    """Return the sum of the softmax numerators per row; zero without a temperature."""
    xp = namespace(distances)
    if not temperature:
        return xp.zeros_like(distances[:, 0])  # a pruned class has an infinite distance
    return xp.sum(softmax_numerators(distances, temperature), axis=1)


def novelty_threshold(reject: float) -> float:
    """Return the novelty that this fraction of the samples of learned classes exceeds.

    >>> round(novelty_threshold(0.05), 2)
    1.64
    """
    if not isinstance(reject, Real) or not 0 < reject < 1:
        raise InputError(
            f"reject={reject!r} must be between 0 and 1: the fraction of samples of learned "
            "classes that is rejected, for example 0.05."
        )
    return -NormalDist().inv_cdf(float(reject))


def mean_square_length(stats: ClassStatistics) -> float:
    """Return the mean squared length of a class's transformed features."""
    squares = scatter_diagonal(stats)
    mean = float(namespace(stats.mean).sum(stats.mean * stats.mean))
    if squares is not None:
        mean += float(namespace(squares).sum(to_float64(squares))) / stats.count
    return mean or 1.0


def length_of(stats: ClassStatistics) -> float:
    """Return the root mean square length of a class's transformed features."""
    return math.sqrt(mean_square_length(stats))


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


def normalizing_std(stats: ClassStatistics, metric: Metric, prior: Prior | None) -> Array:
    """Return the standard deviations by which the normalization divided a class's matrix."""
    xp = namespace(stats.mean)
    squares = to_float64(scatter_diagonal(stats))
    shared, pseudo_count = (None, 0.0) if prior is None else (prior.covariance, prior.pseudo_count)
    if shared is not None and shared.ndim == 2:
        shared = diagonal(shared)
    shrunk = shrink(with_prior(squares, stats.count, shared, pseudo_count), metric.shrinkage)
    if metric.normalization == "correlation" and metric.covariance != "diagonal":
        return xp.sqrt(xp.where(shrunk > 0, shrunk, xp.ones_like(shrunk)))
    if metric.normalization is None:
        return xp.ones_like(shrunk)
    norm = float(xp.linalg.vector_norm(shrunk))
    return xp.ones_like(shrunk) * (math.sqrt(norm) or 1.0)


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
