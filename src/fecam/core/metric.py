"""The path from statistics to a factor: which matrix, how regularised, around which centre."""

from __future__ import annotations

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
    """Everything about a distance that statistics know nothing of."""

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
        """How much of a scatter the statistics must hold."""
        if self.covariance == "identity":
            return "none"
        return "diagonal" if self.covariance == "diagonal" else "full"

    @property
    def is_shared(self) -> bool:
        """Whether all classes are measured with one matrix."""
        return self.covariance in ("common", "pooled", "identity")

    @property
    def has_prior(self) -> bool:
        """Whether classes share a prior, so that each lesson moves all of them a little."""
        return not self.is_shared and self.pooling != 0


def prototype_of(statistics: ClassStatistics, metric: Metric, transform: Transform) -> Array:
    """The prototype a query is compared with."""
    centre = statistics.mean
    if metric.transform_of_mean and (transform.power is not None or transform.unit):
        raw = to_float64(statistics.raw_mean)
        if transform.power is not None:
            raw = namespace(raw).maximum(raw, 0 * raw)  # unlearning may leave -1e-17 of a zero
        centre = transform(raw)
    return unit_length(centre) if metric.unit_compare else centre


def distance_scale(statistics: ClassStatistics, metric: Metric) -> float:
    r"""What a squared distance is multiplied by: :math:`1 / (1 + u / n)`.

    The prototype of :math:`n` samples is itself off by :math:`1/n` of the class's variance; without
    this a class of few samples looks farther away than it is.
    """
    return 1 / (1 + metric.mean_uncertainty / statistics.count)


def class_covariance(
    statistics: ClassStatistics, metric: Metric, prior: Prior | None, spare: float = 1.0
) -> Array:
    """The regularised, normalised matrix of one class.

    ``spare`` is the variance assumed of a class that never varied, a single sample, say.
    """
    kept = scatter_of(statistics, average_domains=metric.average_domains)
    scatter = to_float64(diagonal_of(kept) if metric.covariance == "diagonal" else to_dense(kept))
    shared, pseudo_count = (None, 0.0) if prior is None else (prior.covariance, prior.pseudo_count)
    covariance = with_prior(scatter, statistics.count, shared, pseudo_count)
    return normalize(_shrunk(covariance, metric, spare), metric.normalization)


def shared_covariance(tasks: Sequence[Sequence[ClassStatistics]], metric: Metric) -> Array:
    """The one shrunk matrix of all classes; being the only one, it needs no normalisation."""
    if metric.covariance == "common":
        covariance = common(tasks)
    else:
        covariance, _ = pooled(one for task in tasks for one in task)
    return _shrunk(covariance, metric, spare=1.0)


def _shrunk(covariance: Array, metric: Metric, spare: float) -> Array:
    xp = namespace(covariance)
    if bool(xp.any(covariance != 0)):
        return shrink(covariance, metric.shrinkage, metric.off_diagonal)
    alike = eye(covariance.shape[-1], covariance) * spare
    return diagonal(alike) if covariance.ndim == 1 else alike


def mean_variance(statistics: Iterable[ClassStatistics]) -> float:
    """The variance of a feature within a class, averaged over features and classes; 1 if none."""
    total, dof = 0.0, 0
    for one in statistics:
        spread = scatter_diagonal(one)
        total += 0.0 if spread is None else float(namespace(spread).mean(spread))
        dof += one.count - 1
    return total / dof if total > 0 else 1.0
