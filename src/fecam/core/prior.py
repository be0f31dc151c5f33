r"""The pooled matrix of all classes, its weight in samples, and the metric that it defines.

How strong should the pull of a class's matrix towards the pooled one be? If the classes differ only
as much as matrices of so few samples differ by chance, very strong; if they differ more, weaker.
Let :math:`C_y` be a class's sample covariance and :math:`W` the pooled matrix, both in coordinates
that make :math:`W` (shrunk as by default) the identity. For :math:`n` Gaussian samples chance alone
gives

.. math:: E\lVert C_y - \Sigma_y \rVert^2 = \frac{t}{n - 1}, \qquad
          t = \lVert W \rVert^2 + (\mathrm{tr}\,W)^2.

What the classes differ by on top of that, averaged over classes (weighted by their samples), is the
real difference :math:`h = E\lVert \Sigma_y - W \rVert^2`. The blend :math:`(S + pW)/(n - 1 + p)`
with the smallest mean squared error has :math:`p = t / h`, whatever :math:`n` is. Real features
have heavier tails than Gaussian ones, so some of :math:`h` is still chance and :math:`t/h` errs on
the weak side; and from few samples :math:`h` cannot be told at all. Hence ``"auto"`` starts from
the plain rule :math:`p = d/2`, which is close to the best fixed choice on all data that we tried,
as if it had been found in :math:`d` degrees of freedom, and never goes below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fecam.core.arrays import Array, diagonal, namespace, to_backend_of, to_float64
from fecam.core.covariance import normalize, pooled, scatter_of, shrink, whiten
from fecam.core.scatter import diagonal_of, project
from fecam.core.statistics import ClassStatistics

GROWTH = 1.5
"""A lagging prior is renewed once this many times its degrees of freedom have been seen."""
N_DIRECTIONS = 32
"""Random directions (fixed ones) in which the classes' matrices are compared."""
MAX_COMPARED_CLASSES = 64
"""Maximum of classes that are compared: the average of more would not differ."""
CHEAP = 2e9
"""Multiplications below which all precisions are derived again, so that the prior does not lag."""


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The pooled matrix at some moment, and what was derived from it."""

    covariance: Array
    pseudo_count: float
    dof: int
    """Degrees of freedom, sum of (n - 1), that the matrix was made from."""
    whitening: Array | None
    """That of the shrunk and normalised matrix; None where no class has any spread."""
    std: Array | None
    """The deviations that the normalisation divided by."""


@dataclass(frozen=True, slots=True, eq=False)
class PriorSpectrum:
    """The eigendecomposition of a prior's matrix, which all low-rank classes share."""

    prior: Prior
    values: Array
    vectors: Array
    rounded_vectors: Array
    """The eigenvectors in the precision of the model: one array for all classes."""
    variances: Array
    sum_of_entries: float


def spectrum_of(prior: Prior, dtype: object) -> PriorSpectrum:
    """Return the eigenvalues and eigenvectors of a prior's matrix."""
    xp = namespace(prior.covariance)
    values, vectors = xp.linalg.eigh(prior.covariance)
    return PriorSpectrum(
        prior,
        xp.maximum(values, 0 * values),
        vectors,
        xp.astype(vectors, dtype),
        diagonal(prior.covariance),
        float(xp.sum(prior.covariance)),
    )


def make_prior(
    statistics: Sequence[ClassStatistics],
    pseudo_count: float | Literal["auto"],
    *,
    only_variances: bool = False,
) -> Prior:
    """The prior that these classes give, as a matrix or as the diagonal of one."""
    covariance, dof = pooled(statistics)
    if only_variances and covariance.ndim == 2:
        covariance = diagonal(covariance)
    prior = derive_prior(covariance, 0.0, dof, statistics[0].raw_mean.dtype)
    if pseudo_count == "auto":
        pseudo_count = _auto_pseudo_count(statistics, covariance, prior.whitening, prior.std)
    return replace(prior, pseudo_count=float(pseudo_count))


def derive_prior(covariance: Array, pseudo_count: float, dof: int, dtype: Any) -> Prior:
    """A prior with this matrix, and what follows from it in the precision of the model."""
    xp = namespace(covariance)
    whitening = std = None
    if bool(xp.any(covariance != 0)):
        shrunk = shrink(covariance, (1.0, 0.0))
        # From here on only used to compare and to sample: the precision of the model will do.
        whitening = xp.astype(whiten(normalize(shrunk, "correlation")), dtype)
        std = xp.astype(xp.sqrt(shrunk if shrunk.ndim == 1 else diagonal(shrunk)), dtype)
    return Prior(covariance, pseudo_count, dof, whitening, std)


def updated_prior(
    prior: Prior | None,
    statistics: Sequence[ClassStatistics],
    pooling: float | Literal["auto"],
    *,
    only_variances: bool,
    may_lag: bool,
) -> Prior:
    """Return ``prior`` itself, or a new one if it lags too far behind these classes.

    Where it ``may_lag`` (as a reference for distances) it does so even if a new one is cheap.
    """
    if prior is not None:
        dof = sum(stats.count - 1 for stats in statistics)
        n_features = prior.covariance.shape[0]
        cost = len(statistics) * n_features ** (3 if prior.covariance.ndim == 2 else 1)
        growth = GROWTH if may_lag or cost > CHEAP else 1.0
        if dof <= growth * prior.dof:
            return prior
    return make_prior(statistics, pooling, only_variances=only_variances)


def _auto_pseudo_count(
    statistics: Sequence[ClassStatistics],
    covariance: Array,
    whitening: Array | None,
    std: Array | None,
) -> float:
    n_features = covariance.shape[0]
    least = n_features / 2 if covariance.ndim == 2 else 1.0
    compared = [stats for stats in statistics if stats.count > 2]
    if whitening is None or std is None or not compared:
        return least
    compared = compared[:: -(-len(compared) // MAX_COMPARED_CLASSES)]
    axes = to_float64(std)
    if covariance.ndim == 2:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(n_features, N_DIRECTIONS))
        axes = (
            to_float64(whitening)
            @ to_backend_of(signs, covariance)
            / (axes[:, None] * n_features**0.5)
        )
    chance, excess, dof = _compare(compared, covariance, axes)
    difference = (max(excess, 0.0) + n_features * chance / least) / (dof + n_features)
    return float(max(least, chance / difference))


def _compare(
    statistics: Sequence[ClassStatistics], covariance: Array, axes: Array
) -> tuple[float, float, int]:
    """What chance makes of one degree of freedom; the sum of real differences, times freedom."""
    xp = namespace(covariance)

    shared = axes.T @ (covariance @ axes) if axes.ndim == 2 else covariance / axes**2
    square = float(xp.sum(shared * shared))
    trace = float(xp.sum(diagonal(shared))) if shared.ndim == 2 else 0.0
    chance = square + trace**2 if shared.ndim == 2 else 2 * square
    excess, dof = 0.0, 0
    for stats in statistics:
        kept = scatter_of(stats)
        projected = (
            project(kept, axes) if axes.ndim == 2 else to_float64(diagonal_of(kept)) / axes**2
        )
        gap = projected / (stats.count - 1) - shared
        excess += (stats.count - 1) * float(xp.sum(gap * gap)) - chance
        dof += stats.count - 1
    return chance, excess, dof
