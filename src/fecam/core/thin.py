r"""A class of few samples, measured through its few rows and never through a matrix.

Shrinkage and the pooled prior keep a class's matrix "low rank + rank one + something shared":

.. math:: \Sigma = B + a\,R^T R + \beta\,1 1^T, \qquad B = b\,W + \alpha I

with the rows :math:`R` of its scatter, :math:`\alpha = \gamma_1 V_1 - \gamma_2 V_2` and
:math:`\beta = \gamma_2 V_2`; and normalisation only divides by deviations :math:`\sigma`. So with
:math:`y = \sigma \circ (x - c)` Woodbury's identity gives

.. math:: d^2 = y^T B^{-1} y - \lVert K y \rVert^2

with as many rows :math:`K` as the class has samples. Without a prior :math:`B` is a multiple of the
identity; with one it is diagonal in the eigenvectors of :math:`W`, which all classes share.
"""

from __future__ import annotations

from dataclasses import dataclass

from fecam.core.arrays import (
    Array,
    cholesky,
    diagonal,
    eye,
    invert_lower_triangle,
    namespace,
    to_float64,
)
from fecam.core.covariance import scatter_of
from fecam.core.metric import Metric
from fecam.core.prior import Prior
from fecam.core.statistics import ClassStatistics

LEAST_FLOOR = 0.002
"""Below this share of the mean variance, a floor loses too many digits to Woodbury's difference."""
STEEP = 1000
"""So far above its floor, a class's matrix loses as many times the rounding to that difference."""


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """A prior's matrix by its eigenvectors: what the classes that lean on it share."""

    prior: Prior
    values: Array
    vectors: Array
    rounded: Array
    """The eigenvectors in the precision of the model: one copy for all classes."""
    variances: Array
    total: float
    """The sum of all entries of the matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class ThinFactor:
    r"""One class of few samples, ready to be measured against.

    With :math:`u = w \circ ((\sigma \circ (x - c))\,Q)` the squared distance is
    :math:`s\,(\lVert u \rVert^2 - \sum_i \pm (k_i^T u)^2)`; without a prior there is no :math:`Q`.
    """

    centre: Array
    deviations: Array
    weights: Array
    rows: Array
    signs: Array | None
    """-1 for a row whose square is added instead; None where there is none."""
    vectors: Array | None
    scale: float = 1.0

    def lengths(self, differences: Array) -> Array:
        """The squared distances of rows that lie so far from the centre, without the scale."""
        xp = namespace(differences)
        u = xp.astype(differences, self.deviations.dtype, copy=False)
        if self.vectors is None:
            u = u * (self.deviations * self.weights)
        else:
            u = ((u * self.deviations) @ self.vectors) * self.weights
        along = u @ self.rows.T
        signed = along if self.signs is None else along * self.signs
        square = to_float64(xp.vecdot(u, u)) - to_float64(xp.vecdot(along, signed))
        return xp.maximum(square, 0 * square)


def spectrum_of(prior: Prior, dtype: object) -> Spectrum:
    """The eigenvalues and eigenvectors of a prior's matrix."""
    xp = namespace(prior.covariance)
    values, vectors = xp.linalg.eigh(prior.covariance)
    values = xp.maximum(values, 0 * values)
    whole = float(xp.sum(prior.covariance))
    rounded = xp.astype(vectors, dtype)
    return Spectrum(prior, values, vectors, rounded, diagonal(prior.covariance), whole)


def is_thin(statistics: ClassStatistics, metric: Metric) -> bool:
    """Whether a class is kept as few rows, under a metric that leaves it so."""
    if metric.covariance != "class" or metric.off_diagonal != "all":
        return False
    domain_mean_covariance = statistics.domain_mean_covariance if metric.average_domains else None
    kept = statistics.scatter if domain_mean_covariance is None else domain_mean_covariance
    return kept is not None and kept.storage == "low_rank"  # without a look at its numbers


def thin_factor(
    statistics: ClassStatistics,
    metric: Metric,
    spectrum: Spectrum | None,
    centre: Array,
    dtype: object,
    *,
    scale: float = 1.0,
    spare: float = 1.0,
) -> ThinFactor | None:
    """The factor of a thin class; None where its matrix is too close to singular for this way."""
    rows = to_float64(scatter_of(statistics, average_domains=metric.average_domains).data)
    xp = namespace(rows)
    n_features = rows.shape[1]
    pseudo_count = 0.0 if spectrum is None else spectrum.prior.pseudo_count
    own = 1 / ((statistics.count - 1 + pseudo_count) or 1)
    shared = pseudo_count * own if spectrum is not None else 0.0
    rows = rows * own**0.5
    variance = xp.sum(rows * rows, axis=0)
    if spectrum is not None:
        variance = variance + shared * spectrum.variances
    trace = float(xp.sum(variance))
    g1, g2 = metric.shrinkage
    first = g1 * trace / n_features
    second = 0.0
    if g2 != 0 and n_features > 1:
        along = xp.sum(rows, axis=1)
        entries = float(xp.sum(along * along))
        entries += shared * spectrum.total if spectrum is not None else 0.0
        second = g2 * (entries - trace) / (n_features * (n_features - 1))
    floor = first - second
    if trace == 0:  # a class that never varied, a single sample, say
        floor, first, second = spare, spare, 0.0
    elif not floor > LEAST_FLOOR * trace / n_features:
        return None
    base = floor + 0 * variance if spectrum is None else shared * spectrum.values + floor
    weights = 1 / xp.sqrt(base)
    if second != 0:
        rows = xp.concat([rows, (abs(second) ** 0.5 + 0 * variance)[None, :]], axis=0)
    if spectrum is not None:
        rows = rows @ spectrum.vectors
    rows = rows * weights
    solved = _woodbury(rows, negative=second < 0)
    if solved is None:
        return None
    kept, signs = solved
    if float(xp.sum(rows * rows)) > STEEP:
        if spectrum is not None:
            return None
        dtype = rows.dtype  # a few rows in double precision cost little
    deviations = _deviations(variance + first, metric)
    return ThinFactor(
        centre,
        xp.astype(deviations, dtype),
        xp.astype(weights, dtype),
        xp.astype(kept, dtype),
        None if signs is None else xp.astype(signs, dtype),
        None if spectrum is None else spectrum.rounded,
        scale,
    )


def _woodbury(rows: Array, *, negative: bool) -> tuple[Array, Array | None] | None:
    """The rows to subtract, and their signs if the last of the given ones is subtracted itself."""
    xp = namespace(rows)
    inner = rows @ rows.T
    if rows.shape[0] == 0:
        return rows, None
    if not negative:
        lower = cholesky(inner + eye(rows.shape[0], rows))
        return None if lower is None else (invert_lower_triangle(lower) @ rows, None)
    signs = xp.concat([xp.ones_like(rows[:-1, 0]), -xp.ones_like(rows[:1, 0])])
    values, vectors = xp.linalg.eigh(inner + signs[:, None] * eye(rows.shape[0], rows))
    # The matrix is positive definite if and only if as many values are negative as were put in.
    if int(xp.sum(xp.astype(values < 0, xp.int64))) != 1 or float(xp.min(xp.abs(values))) < 1e-6:
        return None
    kept = (vectors.T @ rows) / xp.sqrt(xp.abs(values))[:, None]
    return kept, xp.where(values < 0, -xp.ones_like(values), xp.ones_like(values))


def _deviations(variance: Array, metric: Metric) -> Array:
    """What normalisation divides by: per feature, for all alike, or nothing."""
    xp = namespace(variance)
    if metric.normalization == "correlation":
        return xp.sqrt(variance)
    if metric.normalization is None:
        return xp.ones_like(variance)
    return xp.ones_like(variance) * float(xp.linalg.vector_norm(variance)) ** 0.5
