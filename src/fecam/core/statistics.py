"""What is kept of a class: sums that add up, so that order, batches and undoing cannot drift.

The value is immutable; `combine` and `remove` are each other's inverse. A mean is kept in double
precision because it costs one row and a centred product is only as good as its centre; the
scatter, which is the bulk, and the raw mean, which is only ever looked at, are kept in the
precision of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fecam.core.arrays import Array, namespace, wide, wide_dtype
from fecam.core.scatter import Scatter, add, scatter_of_rows, subtract, times, variances_of, without

Form = Literal["full", "diagonal", "none"]
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
    visits: int = 1
    """In how many lessons the class came."""
    sampled: tuple[int, float, float] = (0, 0.0, 0.0)
    """Number, sum and sum of squares of distances taken while learning: see `calibration`."""
    averaged: Scatter | None = None
    """Under ``domains="average"``: the covariance averaged over the visits of this class."""


def form_of(statistics: ClassStatistics) -> Form:
    """How much of the scatter these statistics hold."""
    if statistics.scatter is None:
        return "none"
    return "diagonal" if statistics.scatter.shape == "diagonal" else "full"


def summarize(raw: Array, features: Array, form: Form, dtype: object) -> ClassStatistics:
    """The statistics of one batch of one class.

    ``raw`` and ``features`` are the same rows before and after the transform; ``dtype`` is the
    precision in which the scatter is kept.
    """
    xp = namespace(raw)
    mean = mean_of_rows(features)
    raw_mean = xp.astype(mean if features is raw else mean_of_rows(raw), dtype, copy=False)
    return ClassStatistics(raw.shape[0], raw_mean, mean, _scatter(features, mean, form, dtype))


def mean_of_rows(x: Array) -> Array:
    """The mean of the rows, summed in double precision."""
    return namespace(x).sum(x, axis=0, dtype=wide_dtype(x)) / x.shape[0]


def _scatter(features: Array, mean: Array, form: Form, dtype: object) -> Scatter | None:
    if form == "none":
        return None
    scatter = scatter_of_rows(features, mean, dtype, only_diagonal=form == "diagonal")
    return _without_rounding(scatter, mean, features)


def _without_rounding(scatter: Scatter, mean: Array, features: Array) -> Scatter:
    """Zero for features that are constant but for rounding, whose correlations would be noise."""
    xp = namespace(mean)
    rounding = 4 * float(xp.finfo(features.dtype).eps) * mean
    varies = wide(variances_of(scatter)) > features.shape[0] * rounding * rounding
    return scatter if bool(xp.all(varies)) else without(scatter, varies)


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
        visits=a.visits + b.visits,
        sampled=add_samples(a.sampled, b.sampled),
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
            scatter = times(scatter, 0.0)  # one sample has none: drop the rounding
    return ClassStatistics(
        count=count,
        raw_mean=whole.raw_mean + (whole.raw_mean - part.raw_mean) * ratio,
        mean=mean,
        scatter=scatter,
        visits=whole.visits,
        sampled=_thinned(whole.sampled, count / whole.count),
    )


def add_samples(
    a: tuple[int, float, float], b: tuple[int, float, float]
) -> tuple[int, float, float]:
    """Both sets of sampled distances together."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _thinned(sampled: tuple[int, float, float], share: float) -> tuple[int, float, float]:
    """Fewer samples with the same mean and spread: which ones went cannot be told any more."""
    number = int(sampled[0] * share)
    keep = number / sampled[0] if sampled[0] else 0.0
    return number, sampled[1] * keep, sampled[2] * keep


def variances(statistics: ClassStatistics) -> Array | None:
    """The diagonal of the scatter, whatever its form."""
    return None if statistics.scatter is None else variances_of(statistics.scatter)


def average_visits(before: ClassStatistics, visit: ClassStatistics) -> Scatter | None:
    """The paper's rule for a class that comes back in a new domain: (previous + current) / 2."""
    previous = averaged_covariance(before)
    current = averaged_covariance(visit)
    if previous is None or current is None:
        return None
    return add(times(previous, 0.5), times(current, 0.5))


def averaged_covariance(statistics: ClassStatistics) -> Scatter | None:
    """The covariance of a class under ``domains="average"``."""
    if statistics.averaged is not None or statistics.scatter is None:
        return statistics.averaged
    return times(statistics.scatter, 1 / max(statistics.count - 1, 1))
