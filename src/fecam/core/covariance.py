"""Covariance matrices: estimation from statistics, shrinkage, normalization and whitening.

A vector stands for a diagonal matrix; functions return a vector for it. Statistics are not changed.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from fecam.core.arrays import (
    Array,
    add_to_diagonal,
    cholesky_and_inverse,
    diagonal,
    namespace,
)
from fecam.core.scatter import Scatter, scale, sum_scatters
from fecam.core.statistics import ClassStatistics
from fecam.errors import SingularMatrixError

Normalization = Literal["correlation", "variance"]
OffDiagonal = Literal["all", "nonzero", "nonzero-twice"]


def scatter_of(statistics: ClassStatistics, *, average_domains: bool = False) -> Scatter:
    """Return the scatter of a class's covariance.

    With ``average_domains`` that covariance is the average over the batches of the class.
    """
    if average_domains and statistics.domain_mean_covariance is not None:
        return scale(statistics.domain_mean_covariance, statistics.count - 1)
    if statistics.scatter is None:
        raise ValueError("the statistics have no scatter")
    return statistics.scatter


def pooled(statistics: Iterable[ClassStatistics]) -> tuple[Array, int]:
    r"""Return :math:`\sum_y S_y / \sum_y (n_y - 1)` and its degrees of freedom.

    If no class has more than one sample, the matrix is zero.
    """
    classes = list(statistics)
    dof = sum(stats.count - 1 for stats in classes)
    return sum_scatters(map(scatter_of, classes)) / max(dof, 1), dof


def common(tasks: Sequence[Sequence[ClassStatistics]]) -> Array:
    r"""Return the common matrix of Eq. 6 from the classes of each task.

    :math:`\Sigma^t` is the covariance of all samples of task :math:`t` around their common mean, so
    it includes the variance between the task's classes. Tasks are weighted by their number of
    classes. The weighted sum equals the recursion of Eq. 6 and does not depend on the order.
    """
    n_classes = sum(len(task) for task in tasks)
    shares = [total_covariance(task) * (len(task) / n_classes) for task in tasks]
    if not shares:
        raise ValueError("a common matrix needs at least one task")
    return sum(shares[1:], start=shares[0])


def total_covariance(task: Sequence[ClassStatistics]) -> Array:
    """Return the covariance of the samples of several classes around their common mean."""
    count = sum(stats.count for stats in task)
    mean = sum(stats.mean * (stats.count / count) for stats in task)
    offsets = [(stats.mean - mean) * stats.count**0.5 for stats in task]
    within = sum_scatters(map(scatter_of, task))
    rows = namespace(within).stack(offsets, axis=0)
    between = rows.T @ rows if within.ndim == 2 else namespace(rows).sum(rows * rows, axis=0)
    return (within + between) / max(count - 1, 1)


def with_prior(scatter: Array, count: int, prior: Array | None, pseudo_count: float) -> Array:
    r"""Return :math:`(S + p\,W) / (n - 1 + p)` with the prior :math:`W` and its pseudo-count.

    Without a prior it is the sample covariance.
    """
    if prior is None or pseudo_count == 0:
        return scatter / max(count - 1, 1)
    return (scatter + pseudo_count * prior) / (count - 1 + pseudo_count)


def shrink(
    covariance: Array, gammas: tuple[float, float], off_diagonal: OffDiagonal = "all"
) -> Array:
    r"""Eq. 8: :math:`\Sigma + \gamma_1 V_1 I + \gamma_2 V_2 (1 - I)`.

    :math:`V_1` is the mean of the diagonal, :math:`V_2` that of the other entries: of all, or, as
    in the public implementations, of the nonzero ones.

    Two passes with :math:`\gamma` equal one with :math:`\gamma (2 + \gamma)`, except if zeros are
    left out: after the first pass no entry is zero, so the second averages over more entries.
    ``"nonzero-twice"`` therefore makes both passes; ``gammas`` are those of the equivalent one.

    >>> import numpy as np
    >>> shrink(np.array([[2.0, 1.0], [1.0, 4.0]]), (1.0, 0.5))
    array([[5. , 1.5],
           [1.5, 7. ]])
    """
    xp = namespace(covariance)
    if covariance.ndim == 1:
        return covariance + gammas[0] * xp.mean(covariance)
    n_averaged = None
    if off_diagonal != "all":
        is_nonzero = xp.astype(covariance != 0, xp.int64)
        n_averaged = int(xp.sum(is_nonzero) - xp.sum(diagonal(is_nonzero)))
    first, second = shrinkage_terms(
        float(xp.sum(diagonal(covariance))),
        float(xp.sum(covariance)) if gammas[1] else 0.0,
        covariance.shape[-1],
        gammas,
        n_averaged,
        n_passes=2 if off_diagonal == "nonzero-twice" else 1,
    )
    return add_to_diagonal(covariance + second if second else covariance, first - second)


def shrinkage_terms(
    trace: float,
    sum_of_entries: float,
    n_features: int,
    gammas: tuple[float, float],
    n_averaged: int | None = None,
    n_passes: int = 1,
) -> tuple[float, float]:
    """Return what shrinkage adds to the diagonal of a matrix, and to each other entry.

    ``n_averaged`` of the entries off the diagonal are not zero; by default all.

    >>> shrinkage_terms(6.0, 8.0, 2, (1.0, 0.5))
    (3.0, 0.5)
    """
    g1, g2 = gammas if n_passes == 1 else (math.sqrt(1 + gamma) - 1 for gamma in gammas)
    n_others = n_features * (n_features - 1)
    n_averaged = n_others if n_averaged is None else n_averaged
    first = second = 0.0
    for _ in range(n_passes):
        first += g1 * (trace / n_features + first)
        added = g2 * (sum_of_entries - trace + n_others * second) / max(n_averaged, 1)
        if added:  # no entry is zero any more
            second, n_averaged = second + added, n_others
    return first, second


def normalize(covariance: Array, kind: Normalization | None) -> Array:
    r"""Return the normalized matrix; normalization makes the matrices of classes comparable.

    ``"correlation"`` is Eq. 7, :math:`\Sigma_{ij} / (\sigma_i \sigma_j)`; a constant feature gets
    variance 1 and no correlations. ``"variance"`` divides by the norm of the diagonal, as in the
    paper's ablation; so does ``"correlation"`` for a diagonal matrix, as its correlation matrix is
    the identity.

    >>> import numpy as np
    >>> normalize(np.array([[4.0, 1.0], [1.0, 1.0]]), "correlation")
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    xp = namespace(covariance)
    if kind is None:
        return covariance
    if kind == "variance" or covariance.ndim == 1:
        variances = covariance if covariance.ndim == 1 else diagonal(covariance)
        norm = float(xp.linalg.vector_norm(variances))
        return covariance / norm if norm > 0 else covariance
    variance = diagonal(covariance)
    constant = variance <= 0
    inverse_std = 1 / xp.sqrt(xp.where(constant, xp.ones_like(variance), variance))
    result = covariance * inverse_std[:, None]
    result *= inverse_std[None, :]  # in place: this runs for every class
    if not bool(xp.any(constant)):
        return result
    return add_to_diagonal(result, xp.astype(constant, result.dtype))


def apply_whitening(x: Array, whitening: Array | None) -> Array:
    """Return rows, or a vector, in coordinates in which the distance is Euclidean."""
    if whitening is None:
        return x
    return x * whitening if whitening.ndim == 1 else x @ whitening


def whiten(covariance: Array, precision: float | None = None) -> Array:
    r"""Return :math:`T` with :math:`T T^T = \Sigma^{-1}`, or the pseudo-inverse.

    A positive definite matrix is factorized by Cholesky. For others, eigenvalues that are zero up
    to rounding are left out, as in the ablations without shrinkage; a negative eigenvalue raises
    `SingularMatrixError`. ``precision`` is the relative error of the entries, by default that of
    the dtype of the matrix.
    """
    if covariance.ndim == 1:
        return _whiten_diagonal(covariance)
    noise = rounding_noise(covariance, precision)
    inverse = inverse_cholesky(covariance, noise)
    if inverse is not None:
        return inverse.T
    xp = namespace(covariance)
    values, vectors = xp.linalg.eigh(covariance)
    smallest = float(xp.min(values))
    if not smallest >= -noise:
        raise SingularMatrixError(f"its smallest eigenvalue is {smallest:.3g}")
    nonzero = values > noise
    roots = 1 / xp.sqrt(xp.where(nonzero, values, xp.ones_like(values)))
    roots = xp.where(nonzero, roots, 0 * values)
    return vectors * roots[None, :]


def _whiten_diagonal(variances: Array) -> Array:
    xp = namespace(variances)
    if float(xp.min(variances)) < 0:
        raise SingularMatrixError(f"its smallest variance is {float(xp.min(variances)):.3g}")
    nonzero = variances > 0
    roots = 1 / xp.sqrt(xp.where(nonzero, variances, xp.ones_like(variances)))
    return xp.where(nonzero, roots, 0 * variances)


def inverse_cholesky(covariance: Array, noise: float) -> Array | None:
    r"""Return the inverse of the Cholesky factor; None if the matrix is singular up to ``noise``.

    Pivots alone do not show that a matrix is singular, because small ones amplify the rounding of
    later ones. The squared norm of the inverse factor does: it is :math:`\mathrm{tr}\,\Sigma^{-1}`,
    at least the inverse of the smallest eigenvalue.
    """
    xp, factors = namespace(covariance), cholesky_and_inverse(covariance)
    if factors is None or not float(xp.min(diagonal(factors[0]))) ** 2 > noise:
        return None
    inverse = factors[1]
    trace = float(xp.sum(inverse * inverse))
    return inverse if trace * noise < covariance.shape[-1] else None


def rounding_noise(covariance: Array, precision: float | None) -> float:
    """Return an upper estimate of the eigenvalues that rounding of the entries produces."""
    xp = namespace(covariance)
    relative = float(xp.finfo(covariance.dtype).eps) if precision is None else precision
    return 30 * relative * math.sqrt(covariance.shape[-1]) * float(xp.max(diagonal(covariance)))
