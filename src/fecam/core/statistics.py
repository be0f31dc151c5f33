"""The statistics of one class: sums, which do not depend on the order or size of batches.

The value is immutable; `remove` is the inverse of `combine`. The mean has double precision, because
errors of the center enter the scatter. The scatter, which needs most memory, and the raw mean have
the dtype of the model.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array, accumulation_dtype, namespace, to_float64
from fecam.core.scatter import (
    Scatter,
    add,
    diagonal_of,
    mask_features,
    scale,
    scatter_of_rows,
    subtract,
)

CalibrationRows = NDArray[np.float32]
"""Measured rows of a class, see `fecam.core.calibration_rows`."""
MAX_CALIBRATION_ROWS = 32
"""Maximum number of measured rows per class. They decide a quantile of 5 % over all classes."""
ScatterKind = Literal["full", "diagonal", "none"]
"""The stored part of a class's scatter: the matrix, its diagonal, or nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassStatistics:
    r"""The sufficient statistics of one class.

    With :math:`z_i` the transformed features of its :math:`n` samples: the mean of the raw
    features, the mean :math:`m` of the transformed ones, and the scatter
    :math:`S = \sum_i (z_i - m)(z_i - m)^T`.
    """

    count: int
    raw_mean: Array
    mean: Array
    scatter: Scatter | None
    n_batches: int = 1
    """Number of batches that had samples of this class."""
    distance_moments: tuple[int, float, float] = (0, 0.0, 0.0)
    """Number, sum and sum of squares of distances measured while learning, see `lognormal`."""
    calibration: CalibrationRows | None = None
    """Measurements of samples that were left out, see `calibration_rows`; None before any."""
    domain_mean_covariance: Scatter | None = None
    """With ``domains="average"``: the covariance averaged over batches."""


def scatter_kind_of(statistics: ClassStatistics) -> ScatterKind:
    """Return the kind of scatter that these statistics hold."""
    if statistics.scatter is None:
        return "none"
    return "diagonal" if statistics.scatter.storage == "diagonal" else "full"


def summarize_class(
    raw: Array, features: Array, scatter_kind: ScatterKind, dtype: object
) -> ClassStatistics:
    """Return the statistics of the rows of one class.

    ``raw`` and ``features`` are the rows before and after the transform; ``dtype`` is that of the
    scatter.
    """
    xp = namespace(raw)
    mean = mean_of_rows(features)
    raw_mean = xp.astype(mean if features is raw else mean_of_rows(raw), dtype, copy=False)
    return ClassStatistics(
        raw.shape[0], raw_mean, mean, _scatter(features, mean, scatter_kind, dtype)
    )


def mean_of_rows(x: Array) -> Array:
    """Return the mean of the rows, summed in double precision."""
    return namespace(x).sum(x, axis=0, dtype=accumulation_dtype(x)) / x.shape[0]


def _scatter(
    features: Array, mean: Array, scatter_kind: ScatterKind, dtype: object
) -> Scatter | None:
    if scatter_kind == "none":
        return None
    scatter = scatter_of_rows(features, mean, dtype, only_diagonal=scatter_kind == "diagonal")
    return _zero_constant_features(scatter, mean, features)


def _zero_constant_features(scatter: Scatter, mean: Array, features: Array) -> Scatter:
    """Set features that vary only by rounding to zero: their correlations would be noise."""
    xp = namespace(mean)
    rounding = 4 * float(xp.finfo(features.dtype).eps) * mean
    varies = to_float64(diagonal_of(scatter)) > features.shape[0] * rounding * rounding
    return scatter if bool(xp.all(varies)) else mask_features(scatter, varies)


def combine(a: ClassStatistics, b: ClassStatistics) -> ClassStatistics:
    r"""Return the statistics of the samples of both (Chan's update).

    :math:`S = S_a + S_b + \frac{n_a n_b}{n_a + n_b}\,\delta\delta^T` with
    :math:`\delta = m_b - m_a`.
    """
    count = a.count + b.count
    delta = b.mean - a.mean
    share = b.count / count
    scatter = None
    if a.scatter is not None and b.scatter is not None:
        scatter = add(a.scatter, b.scatter, delta * (a.count * share) ** 0.5)
    return ClassStatistics(
        count=count,
        raw_mean=a.raw_mean + (b.raw_mean - a.raw_mean) * share,
        mean=a.mean + delta * share,
        scatter=scatter,
        n_batches=a.n_batches + b.n_batches,
        distance_moments=add_moments(a.distance_moments, b.distance_moments),
        calibration=join_rows(a.calibration, b.calibration),
    )


def remove(whole: ClassStatistics, part: ClassStatistics) -> ClassStatistics:
    """Return the statistics of the samples of ``whole`` that are not in ``part``."""
    count = whole.count - part.count
    if count <= 0:
        raise ValueError(f"nothing is left when {part.count} of {whole.count} samples are removed")
    ratio = part.count / count
    mean = whole.mean + (whole.mean - part.mean) * ratio
    scatter = None
    if whole.scatter is not None and part.scatter is not None:
        step = (part.mean - mean) * (count * part.count / whole.count) ** 0.5
        scatter = subtract(whole.scatter, part.scatter, step)
        if count == 1:
            scatter = scale(scatter, 0.0)  # the scatter of one sample is zero
    return ClassStatistics(
        count=count,
        raw_mean=whole.raw_mean + (whole.raw_mean - part.raw_mean) * ratio,
        mean=mean,
        scatter=scatter,
        n_batches=whole.n_batches,
        distance_moments=_scaled_moments(whole.distance_moments, count / whole.count),
        calibration=_thinned_rows(whole.calibration, count / whole.count),
    )


def add_moments(
    a: tuple[int, float, float], b: tuple[int, float, float]
) -> tuple[int, float, float]:
    """Return the moments of two sets of distances together."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def join_rows(a: CalibrationRows | None, b: CalibrationRows | None) -> CalibrationRows | None:
    """Return the measured rows of two sets of samples, at most `MAX_CALIBRATION_ROWS`."""
    if a is None or b is None:
        return b if a is None else a
    rows = np.concatenate([a, b])
    return _evenly_spaced(rows, min(len(rows), MAX_CALIBRATION_ROWS))


def _thinned_rows(rows: CalibrationRows | None, share: float) -> CalibrationRows | None:
    """Return the measured rows in proportion to the samples that are left."""
    return None if rows is None else _evenly_spaced(rows, math.ceil(share * len(rows)))


def _evenly_spaced(rows: CalibrationRows, number: int) -> CalibrationRows:
    return rows if number == len(rows) else rows[np.arange(number) * len(rows) // max(number, 1)]


def _scaled_moments(moments: tuple[int, float, float], share: float) -> tuple[int, float, float]:
    """Return the moments of fewer distances with the same mean and variance.

    Single distances are not stored, so those of the removed samples are unknown.
    """
    number, first, second = moments
    remaining = int(number * share)
    scale_by = remaining / number if number else 0.0
    return remaining, first * scale_by, second * scale_by


def scatter_diagonal(statistics: ClassStatistics) -> Array | None:
    """Return the diagonal of the scatter, or None if there is none."""
    return None if statistics.scatter is None else diagonal_of(statistics.scatter)


def average_covariances(a: ClassStatistics, b: ClassStatistics) -> Scatter | None:
    """Return the mean of two covariances: the paper's rule for a class in a new domain."""
    previous, current = _domain_covariance(a), _domain_covariance(b)
    if previous is None or current is None:
        return None
    return add(scale(previous, 0.5), scale(current, 0.5))


def _domain_covariance(statistics: ClassStatistics) -> Scatter | None:
    """Return the covariance of a class for ``domains="average"``."""
    if statistics.domain_mean_covariance is not None or statistics.scatter is None:
        return statistics.domain_mean_covariance
    return scale(statistics.scatter, 1 / max(statistics.count - 1, 1))


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
