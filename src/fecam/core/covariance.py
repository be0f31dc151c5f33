"""Covariances out of statistics, and what makes those of different classes comparable.

A matrix may be given as a vector: then it is diagonal, and every function here keeps it so.
Nothing is ever written back into the statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from fecam.core.arrays import (
    Array,
    add_to_diagonal,
    cholesky,
    diagonal,
    invert_lower_triangle,
    namespace,
)
from fecam.core.scatter import Scatter, scale, sum_scatters
from fecam.core.statistics import ClassStatistics
from fecam.errors import SingularMatrixError

Normalization = Literal["correlation", "variance"]
OffDiagonal = Literal["all", "nonzero", "nonzero-twice"]


def scatter_of(statistics: ClassStatistics, *, average_domains: bool = False) -> Scatter:
    """The scatter that a class's covariance is made from.

    With ``average_domains`` it is the one whose covariance is the average over the class's visits.
    """
    if average_domains and statistics.domain_mean_covariance is not None:
        return scale(statistics.domain_mean_covariance, statistics.count - 1)
    if statistics.scatter is None:
        raise ValueError("these statistics hold no scatter")
    return statistics.scatter


def pooled(statistics: Iterable[ClassStatistics]) -> tuple[Array, int]:
    r"""The within-class matrix :math:`\sum_y S_y / \sum_y (n_y - 1)` and its degrees of freedom.

    Classes of one sample say nothing of a spread; with no others the matrix is zero.
    """
    classes = list(statistics)
    dof = sum(one.count - 1 for one in classes)
    return sum_scatters(scatter_of(one) for one in classes) / max(dof, 1), dof


def common(tasks: Sequence[Sequence[ClassStatistics]]) -> Array:
    r"""The paper's common matrix, Eq. 6, out of the classes of each task.

    :math:`\Sigma^t` is the covariance of all samples of task :math:`t` around *their* mean, so it
    holds the spread between the task's classes as well; tasks weigh by their number of classes.
    Adding up per-task scatters gives what the recursion of Eq. 6 gives, in any order.
    """
    n_classes = sum(len(task) for task in tasks)
    shares = [total_covariance(task) * (len(task) / n_classes) for task in tasks]
    if not shares:
        raise ValueError("no task to take a common matrix from")
    return sum(shares[1:], start=shares[0])


def total_covariance(task: Sequence[ClassStatistics]) -> Array:
    """The covariance of all samples of several classes around their common mean."""
    count = sum(one.count for one in task)
    mean = sum(one.mean * (one.count / count) for one in task)
    steps = [(one.mean - mean) * one.count**0.5 for one in task]
    within = sum_scatters(scatter_of(one) for one in task)
    rows = namespace(within).stack(steps, axis=0)
    between = rows.T @ rows if within.ndim == 2 else namespace(rows).sum(rows * rows, axis=0)
    return (within + between) / max(count - 1, 1)


def with_prior(scatter: Array, count: int, prior: Array | None, pseudo_count: float) -> Array:
    r"""A class's covariance, pulled to the pooled matrix :math:`W` by ``strength`` samples.

    :math:`(S + p\,W) / (n - 1 + p)`; with :math:`p = 0` it is the sample covariance.
    """
    if prior is None or pseudo_count == 0:
        return scatter / max(count - 1, 1)
    return (scatter + pseudo_count * prior) / (count - 1 + pseudo_count)


def shrink(
    covariance: Array, gammas: tuple[float, float], off_diagonal: OffDiagonal = "all"
) -> Array:
    r"""Eq. 8: :math:`\Sigma + \gamma_1 V_1 I + \gamma_2 V_2 (1 - I)`.

    :math:`V_1` is the mean of the diagonal, :math:`V_2` that of the other entries: of all of them,
    or, as the public implementations do, only of those that are not zero.

    Two passes with :math:`\gamma` equal one with :math:`\gamma (2 + \gamma)`, except where zeros
    are left out: the first pass fills them in, so the second averages over more entries. So
    ``"nonzero-twice"`` takes the gammas of the one pass and really goes twice.

    >>> import numpy as np
    >>> shrink(np.array([[2.0, 1.0], [1.0, 4.0]]), (1.0, 0.5))
    array([[5. , 1.5],
           [1.5, 7. ]])
    """
    if off_diagonal == "nonzero-twice":
        for once in passes(gammas, off_diagonal):
            covariance = shrink(covariance, once, "nonzero")
        return covariance
    xp = namespace(covariance)
    g1, g2 = gammas
    if covariance.ndim == 1:
        return covariance + g1 * xp.mean(covariance)
    size = covariance.shape[-1]
    trace = xp.sum(diagonal(covariance))
    v1 = trace / size
    if g2 == 0 or size == 1:
        return add_to_diagonal(covariance, g1 * v1)
    others = size * (size - 1)
    if off_diagonal == "nonzero":
        on_diagonal = int(xp.sum(xp.astype(diagonal(covariance) != 0, xp.int64)))
        others = max(int(xp.sum(xp.astype(covariance != 0, xp.int64))) - on_diagonal, 1)
    v2 = (xp.sum(covariance) - trace) / others
    return add_to_diagonal(covariance + g2 * v2, g1 * v1 - g2 * v2)


def passes(
    gammas: tuple[float, float], off_diagonal: OffDiagonal
) -> tuple[tuple[float, float], ...]:
    """The gammas of each pass of shrinkage that together are these.

    >>> passes((3.0, 0.0), "nonzero-twice")
    ((1.0, 0.0), (1.0, 0.0))
    """
    if off_diagonal != "nonzero-twice":
        return (gammas,)
    half = (math.sqrt(1 + gammas[0]) - 1, math.sqrt(1 + gammas[1]) - 1)
    return half, half


def normalize(covariance: Array, kind: Normalization | None) -> Array:
    r"""Make the matrices of different classes comparable.

    ``"correlation"`` is Eq. 7, :math:`\Sigma_{ij} / (\sigma_i \sigma_j)`; a feature that never
    varied becomes one of variance 1 without correlations, so a class of a single sample gets the
    identity. ``"variance"`` divides by the norm of the diagonal, as the paper's ablation does; so
    does ``"correlation"`` for a diagonal matrix, whose correlation matrix would say nothing at all.

    >>> import numpy as np
    >>> normalize(np.array([[4.0, 1.0], [1.0, 1.0]]), "correlation")
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    xp = namespace(covariance)
    if kind is None:
        return covariance
    if kind == "variance" or covariance.ndim == 1:
        spread = covariance if covariance.ndim == 1 else diagonal(covariance)
        length = float(xp.linalg.vector_norm(spread))
        return covariance / length if length > 0 else covariance
    variance = diagonal(covariance)
    silent = variance <= 0
    deviation = xp.sqrt(xp.where(silent, xp.ones_like(variance), variance))
    inverse = 1 / deviation
    result = covariance * inverse[:, None]
    result *= inverse[None, :]  # in place: this runs for every factor
    if not bool(xp.any(silent)):
        return result
    return add_to_diagonal(result, xp.astype(silent, result.dtype))


def apply_whitening(x: Array, whitening: Array | None) -> Array:
    """Rows (or a vector) in coordinates in which the distance is Euclidean."""
    if whitening is None:
        return x
    return x * whitening if whitening.ndim == 1 else x @ whitening


def whiten(covariance: Array, precision: float | None = None) -> Array:
    r""":math:`T` with :math:`T T^T = \Sigma^{-1}`; the pseudo-inverse where a matrix is singular.

    A positive definite matrix is factorized by Cholesky. Of any other matrix, eigenvalues that are
    zero up to rounding are left out, which is what the ablations without shrinkage measure; a
    negative one raises `SingularMatrixError`. ``precision`` is the relative error of the entries:
    that of the dtype in which they were stored, by default that of the matrix itself.
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
    keep = values > noise
    roots = xp.where(keep, 1 / xp.sqrt(xp.where(keep, values, xp.ones_like(values))), 0 * values)
    return vectors * roots[None, :]


def _whiten_diagonal(variances: Array) -> Array:
    xp = namespace(variances)
    if float(xp.min(variances)) < 0:
        raise SingularMatrixError(f"its smallest variance is {float(xp.min(variances)):.3g}")
    keep = variances > 0
    return xp.where(keep, 1 / xp.sqrt(xp.where(keep, variances, 1 + 0 * variances)), 0 * variances)


def inverse_cholesky(covariance: Array, noise: float) -> Array | None:
    r"""The inverse of the lower Cholesky factor; None if the matrix is singular up to ``noise``.

    Small pivots amplify rounding in later ones, so that these alone do not reveal a singular
    matrix. The squared norm of the inverse factor is :math:`\mathrm{tr}\,\Sigma^{-1}`, which is
    at least the inverse of the smallest eigenvalue.
    """
    lower = cholesky(covariance)
    xp = namespace(covariance)
    if lower is None or not float(xp.min(diagonal(lower))) ** 2 > noise:
        return None
    inverse = invert_lower_triangle(lower)
    trace = float(xp.sum(inverse * inverse))
    return inverse if trace * noise < covariance.shape[-1] else None


def rounding_noise(covariance: Array, precision: float | None) -> float:
    """Upper estimate of an eigenvalue that rounding of the entries alone produces."""
    xp = namespace(covariance)
    relative = float(xp.finfo(covariance.dtype).eps) if precision is None else precision
    return 30 * relative * math.sqrt(covariance.shape[-1]) * float(xp.max(diagonal(covariance)))
