"""The metric of a class: its prototype, regularized covariance and scale."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fecam.core.arrays import Array, diagonal, eye, namespace, to_float64
from fecam.core.covariance import (
    Normalization,
    OffDiagonal,
    common,
    normalize,
    pooled,
    scatter_of,
    shrink,
    with_prior,
)
from fecam.core.prior import Prior
from fecam.core.scatter import diagonal_of, to_dense
from fecam.core.statistics import ClassStatistics, ScatterKind, scatter_diagonal
from fecam.core.transforms import Transform, unit_length

Covariance = Literal["class", "common", "pooled", "diagonal", "identity"]


@dataclass(frozen=True, slots=True)
class Metric:
    """The parameters of a distance that can change without learning again."""

    covariance: Covariance
    shrinkage: tuple[float, float]
    off_diagonal: OffDiagonal
    normalization: Normalization | None
    pooling: float | Literal["auto"]
    mean_uncertainty: float
    transform_of_mean: bool
    unit_compare: bool
    average_domains: bool

    @property
    def scatter_kind(self) -> ScatterKind:
        """The kind of scatter that the statistics must hold."""
        if self.covariance == "identity":
            return "none"
        return "diagonal" if self.covariance == "diagonal" else "full"

    @property
    def is_shared(self) -> bool:
        """Whether all classes have the same matrix."""
        return self.covariance in ("common", "pooled", "identity")

    @property
    def has_prior(self) -> bool:
        """Whether classes share a prior, so that each batch changes all their matrices."""
        return not self.is_shared and self.pooling != 0


def prototype_of(statistics: ClassStatistics, metric: Metric, transform: Transform) -> Array:
    """Return the prototype of a class."""
    center = statistics.mean
    if metric.transform_of_mean and (transform.power is not None or transform.unit):
        raw = to_float64(statistics.raw_mean)
        if transform.power is not None:
            raw = namespace(raw).maximum(raw, 0 * raw)  # unlearning may turn 0 into -1e-17
        center = transform(raw)
    return unit_length(center) if metric.unit_compare else center


def distance_scale(statistics: ClassStatistics, metric: Metric) -> float:
    r"""Return the factor of squared distances, :math:`1 / (1 + u / n)`.

    A mean of :math:`n` samples has a variance of :math:`1/n` of the class's, which increases the
    distances to classes with few samples.
    """
    return 1 / (1 + metric.mean_uncertainty / statistics.count)


def class_covariance(
    statistics: ClassStatistics, metric: Metric, prior: Prior | None, fallback_variance: float = 1.0
) -> Array:
    """Return the shrunk and normalized matrix of a class.

    ``fallback_variance`` is that of a class without variance, for example of a single sample.
    """
    stored = scatter_of(statistics, average_domains=metric.average_domains)
    scatter = diagonal_of(stored) if metric.covariance == "diagonal" else to_dense(stored)
    shared, pseudo_count = (None, 0.0) if prior is None else (prior.covariance, prior.pseudo_count)
    covariance = with_prior(to_float64(scatter), statistics.count, shared, pseudo_count)
    return normalize(_shrunk(covariance, metric, fallback_variance), metric.normalization)


def shared_covariance(tasks: Sequence[Sequence[ClassStatistics]], metric: Metric) -> Array:
    """Return the shrunk matrix of all classes, which needs no normalization."""
    if metric.covariance == "common":
        covariance = common(tasks)
    else:
        covariance, _ = pooled(stats for task in tasks for stats in task)
    return _shrunk(covariance, metric, fallback_variance=1.0)


def _shrunk(covariance: Array, metric: Metric, fallback_variance: float) -> Array:
    xp = namespace(covariance)
    if bool(xp.any(covariance != 0)):
        return shrink(covariance, metric.shrinkage, metric.off_diagonal)
    isotropic = eye(covariance.shape[-1], covariance) * fallback_variance
    return diagonal(isotropic) if covariance.ndim == 1 else isotropic


def mean_variance(statistics: Iterable[ClassStatistics]) -> float:
    """Return the within-class variance, averaged over features and classes; 1 if it is zero."""
    total, dof = 0.0, 0
    for stats in statistics:
        squares = scatter_diagonal(stats)
        total += 0.0 if squares is None else float(namespace(squares).mean(squares))
        dof += stats.count - 1
    return total / dof if total > 0 else 1.0


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
