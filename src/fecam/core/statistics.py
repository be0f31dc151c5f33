"""What is kept of a class: sums that add up, so that order, batches and undoing cannot drift.

The value is immutable; `combine` and `remove` are each other's inverse. A mean is kept in double
precision because it costs one row and a centred product is only as good as its centre; the
scatter, which is the bulk, is kept in the precision of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fecam.core.arrays import Array, diagonal, namespace, row_slices, wide, wide_dtype

Form = Literal["full", "diagonal", "none"]
"""How much of a class's scatter is kept: the matrix, its diagonal, or nothing."""

BLOCK_ROWS = 16384
"""Rows in one product; longer sums are added up in double precision block by block."""


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
    scatter: Array | None
    visits: int = 1
    """In how many lessons the class came."""
    sampled: tuple[int, float, float] = (0, 0.0, 0.0)
    """Number, sum and sum of squares of distances taken while learning: see `calibration`."""
    averaged: Array | None = None
    """Under ``domains="average"``: the covariance averaged over the visits of this class."""


def form_of(statistics: ClassStatistics) -> Form:
    """How much of the scatter these statistics hold."""
    if statistics.scatter is None:
        return "none"
    return "full" if statistics.scatter.ndim == 2 else "diagonal"


def summarize(raw: Array, features: Array, form: Form, dtype: object) -> ClassStatistics:
    """The statistics of one batch of one class.

    ``raw`` and ``features`` are the same rows before and after the transform; ``dtype`` is the
    precision in which the scatter is kept.
    """
    raw_mean = mean_of_rows(raw)
    mean = raw_mean if features is raw else mean_of_rows(features)
    return ClassStatistics(raw.shape[0], raw_mean, mean, _scatter(features, mean, form, dtype))


def mean_of_rows(x: Array) -> Array:
    """The mean of the rows, summed in double precision."""
    return namespace(x).sum(x, axis=0, dtype=wide_dtype(x)) / x.shape[0]


def _scatter(features: Array, mean: Array, form: Form, dtype: object) -> Array | None:
    if form == "none":
        return None
    xp = namespace(features)
    finest = xp.result_type(features.dtype, dtype)
    centre = xp.astype(mean, finest)
    total = None
    for some in row_slices(features.shape[0], BLOCK_ROWS):
        # Centred in the finer of the two precisions, multiplied in that of the model.
        rows = xp.astype(features[some, :], finest, copy=False)
        block = xp.astype(rows - centre, dtype, copy=False)
        part = block.T @ block if form == "full" else xp.sum(block * block, axis=0)
        total = part if total is None else wide(total) + part
    return _without_rounding(xp.astype(total, dtype, copy=False), mean, features)


def _without_rounding(scatter: Array, mean: Array, features: Array) -> Array:
    """Zero for features that are constant but for rounding, whose correlations would be noise."""
    xp = namespace(scatter)
    rounding = 4 * float(xp.finfo(features.dtype).eps) * mean
    spread = wide(scatter if scatter.ndim == 1 else diagonal(scatter))
    varies = spread > features.shape[0] * rounding * rounding
    if bool(xp.all(varies)):
        return scatter
    keep = xp.astype(varies, scatter.dtype)
    return scatter * keep if scatter.ndim == 1 else scatter * keep[:, None] * keep[None, :]


def combine(a: ClassStatistics, b: ClassStatistics) -> ClassStatistics:
    r"""The statistics of both sets of samples together (Chan's update).

    :math:`S = S_a + S_b + \frac{n_a n_b}{n_a + n_b}\,\delta\delta^T` with
    :math:`\delta = m_b - m_a`.
    """
    count = a.count + b.count
    delta = b.mean - a.mean
    share = b.count / count
    return ClassStatistics(
        count=count,
        raw_mean=a.raw_mean + (b.raw_mean - a.raw_mean) * share,
        mean=a.mean + delta * share,
        scatter=_shifted(a.scatter, b.scatter, +1, delta, a.count * share),
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
    scatter = _shifted(
        whole.scatter, part.scatter, -1, part.mean - mean, count * part.count / whole.count
    )
    if count == 1 and scatter is not None:
        scatter = namespace(scatter).zeros_like(scatter)  # one sample has none: drop the rounding
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


def _shifted(
    a: Array | None, b: Array | None, sign: int, delta: Array, weight: float
) -> Array | None:
    """``a + sign * (b + weight * delta delta^T)``, or the diagonal of that."""
    if a is None or b is None:
        return None
    xp = namespace(a)
    step = xp.astype(delta * weight**0.5, a.dtype)
    between = step * step if a.ndim == 1 else step[:, None] * step[None, :]
    return a + sign * (b + between)


def variances(statistics: ClassStatistics) -> Array | None:
    """The diagonal of the scatter, whatever its form."""
    scatter = statistics.scatter
    return diagonal(scatter) if scatter is not None and scatter.ndim == 2 else scatter


def average_visits(before: ClassStatistics, visit: ClassStatistics) -> Array | None:
    """The paper's rule for a class that comes back in a new domain: (previous + current) / 2."""
    previous = averaged_covariance(before)
    current = averaged_covariance(visit)
    return None if previous is None or current is None else (previous + current) / 2


def averaged_covariance(statistics: ClassStatistics) -> Array | None:
    """The covariance of a class under ``domains="average"``."""
    if statistics.averaged is not None or statistics.scatter is None:
        return statistics.averaged
    return statistics.scatter / max(statistics.count - 1, 1)
