"""What is derived from a matrix to measure a distance fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fecam.core.arrays import Array, cholesky, diagonal, invert_lower_triangle, namespace
from fecam.errors import SingularMatrixError


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    r"""One class, ready to be measured against.

    :math:`d^2(x) = s\,\lVert (x - c)\,T \rVert^2` with centre :math:`c`, scale :math:`s` and a
    whitening :math:`T`: a matrix with :math:`T T^T = \Sigma^{-1}`, a vector (a diagonal one), or
    None (the identity).
    """

    centre: Array
    whitening: Array | None
    scale: float = 1.0


def apply_whitening(x: Array, whitening: Array | None) -> Array:
    """Rows (or a single vector) in coordinates in which the distance is the Euclidean one."""
    if whitening is None:
        return x
    return x * whitening if whitening.ndim == 1 else x @ whitening


def whiten(covariance: Array, precision: float | None = None) -> Array:
    r""":math:`T` with :math:`T T^T = \Sigma^{-1}`; the pseudo-inverse where a matrix is singular.

    A positive definite matrix goes through Cholesky's factor. Anything else is looked at through
    its eigenvalues: those that are zero up to rounding are left out, which is what the ablations
    without shrinkage measure, and a negative one is an error. ``precision`` is the relative error
    of the entries, that of the dtype they were kept in; by default that of the matrix itself.
    """
    if covariance.ndim == 1:
        return _whiten_diagonal(covariance)
    noise = _noise(covariance, precision)
    lower = _cholesky(covariance, noise)
    if lower is not None:
        return invert_lower_triangle(lower).T
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


def _cholesky(covariance: Array, noise: float) -> Array | None:
    """Cholesky's factor, or None where there is none that can be trusted."""
    lower = cholesky(covariance)
    if lower is None:
        return None
    # The squared pivots are the variances left once the features before are known.
    smallest = float(namespace(lower).min(diagonal(lower)))
    return lower if smallest**2 > noise else None


def _noise(covariance: Array, precision: float | None) -> float:
    """How large an eigenvalue can come of rounding alone: that of a random matrix, generously."""
    xp = namespace(covariance)
    relative = float(xp.finfo(covariance.dtype).eps) if precision is None else precision
    return 30 * relative * math.sqrt(covariance.shape[-1]) * float(xp.max(diagonal(covariance)))
