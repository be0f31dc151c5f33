"""What is kept of a class: sums that add up, so that order, batches and undoing cannot drift.

The value is immutable; `combine` and `remove` are each other's inverse. A mean is kept in double
precision because it costs one row and a centred product is only as good as its centre; the
scatter, which is the bulk, and the raw mean, which is only ever looked at, are kept in the
precision of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

ScatterKind = Literal["full", "diagonal", "none"]
"""How much of a class's scatter is kept: the matrix, its diagonal, or nothing."""


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
    """In how many lessons the class came."""
    distance_moments: tuple[int, float, float] = (0, 0.0, 0.0)
    """Number, sum and sum of squares of distances taken while learning: see `calibration`."""
    domain_mean_covariance: Scatter | None = None
    """Under ``domains="average"``: the covariance averaged over the visits of this class."""


def scatter_kind_of(statistics: ClassStatistics) -> ScatterKind:
    """How much of the scatter these statistics hold."""
    if statistics.scatter is None:
        return "none"
    return "diagonal" if statistics.scatter.storage == "diagonal" else "full"


def summarize_class(
    raw: Array, features: Array, scatter_kind: ScatterKind, dtype: object
) -> ClassStatistics:
    """The statistics of one batch of one class.

    ``raw`` and ``features`` are the same rows before and after the transform; ``dtype`` is the
    precision in which the scatter is kept.
    """
    xp = namespace(raw)
    mean = mean_of_rows(features)
    raw_mean = xp.astype(mean if features is raw else mean_of_rows(raw), dtype, copy=False)
    return ClassStatistics(
        raw.shape[0], raw_mean, mean, _scatter(features, mean, scatter_kind, dtype)
    )


def mean_of_rows(x: Array) -> Array:
    """The mean of the rows, summed in double precision."""
    return namespace(x).sum(x, axis=0, dtype=accumulation_dtype(x)) / x.shape[0]


def _scatter(
    features: Array, mean: Array, scatter_kind: ScatterKind, dtype: object
) -> Scatter | None:
    if scatter_kind == "none":
        return None
    scatter = scatter_of_rows(features, mean, dtype, only_diagonal=scatter_kind == "diagonal")
    return _without_rounding(scatter, mean, features)


def _without_rounding(scatter: Scatter, mean: Array, features: Array) -> Scatter:
    """Zero for features that are constant but for rounding, whose correlations would be noise."""
    xp = namespace(mean)
    rounding = 4 * float(xp.finfo(features.dtype).eps) * mean
    varies = to_float64(diagonal_of(scatter)) > features.shape[0] * rounding * rounding
    return scatter if bool(xp.all(varies)) else mask_features(scatter, varies)


def combine(a: ClassStatistics, b: ClassStatistics) -> ClassStatistics:
    r"""The statistics of both sets of samples together (Chan's update).

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
        distance_moments=add_samples(a.distance_moments, b.distance_moments),
    )


def remove(whole: ClassStatistics, part: ClassStatistics) -> ClassStatistics:
    """The statistics of the samples of ``whole`` that are not in ``part``: undoes `combine`."""
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
            scatter = scale(scatter, 0.0)  # one sample has none: drop the rounding
    return ClassStatistics(
        count=count,
        raw_mean=whole.raw_mean + (whole.raw_mean - part.raw_mean) * ratio,
        mean=mean,
        scatter=scatter,
        n_batches=whole.n_batches,
        distance_moments=_thinned(whole.distance_moments, count / whole.count),
    )


def add_samples(
    a: tuple[int, float, float], b: tuple[int, float, float]
) -> tuple[int, float, float]:
    """Both sets of sampled distances together."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _thinned(distance_moments: tuple[int, float, float], share: float) -> tuple[int, float, float]:
    """Fewer samples with the same mean and spread: which ones went cannot be told any more."""
    number = int(distance_moments[0] * share)
    keep = number / distance_moments[0] if distance_moments[0] else 0.0
    return number, distance_moments[1] * keep, distance_moments[2] * keep


def scatter_diagonal(statistics: ClassStatistics) -> Array | None:
    """The diagonal of the scatter, whatever its form."""
    return None if statistics.scatter is None else diagonal_of(statistics.scatter)


def average_visits(before: ClassStatistics, visit: ClassStatistics) -> Scatter | None:
    """The paper's rule for a class that comes back in a new domain: (previous + current) / 2."""
    previous = averaged_covariance(before)
    current = averaged_covariance(visit)
    if previous is None or current is None:
        return None
    return add(scale(previous, 0.5), scale(current, 0.5))


def averaged_covariance(statistics: ClassStatistics) -> Scatter | None:
    """The covariance of a class under ``domains="average"``."""
    if statistics.domain_mean_covariance is not None or statistics.scatter is None:
        return statistics.domain_mean_covariance
    return scale(statistics.scatter, 1 / max(statistics.count - 1, 1))
