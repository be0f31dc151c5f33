r"""Linear maps between the features of two encoders, from the same samples before and after.

With centered features :math:`X` before and :math:`Y` after, the map is the ridge estimate in closed
form, shrunk towards a target :math:`P_0`: the identity if both have the same width, else zero.

.. math:: P = P_0 + (X^T X + \lambda I)^{-1} X^T (Y - X P_0), \qquad b = \bar y - \bar x P

The penalty :math:`\lambda` is the one with the smallest leave-one-out error, also in closed form:
the residual of a left-out sample is :math:`e_i / (1 - h_i)` with its leverage :math:`h_i`.
:math:`\lambda = \infty` is a candidate: then only the offset moves. Everything has double precision
and the library and device of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fecam.core.arrays import Array, diagonal, eye, namespace, to_backend_of, to_float64, zeros
from fecam.errors import InputError

RIDGES = (float("inf"), *(10.0**power for power in range(3, -13, -1)))
"""Candidates for the penalty, relative to the mean diagonal entry of the Gram matrix."""
BANDWIDTHS = (float("inf"), 1.0, 0.7, 0.5, 0.35, 0.25, 0.18)
"""Candidates for the width of the kernel of `LocalMap`, relative to the mean distance of two
samples. Below the last one, a mean moves by the drift of a few samples."""
MAX_LEFT_OUT = 1000
"""Number of samples or groups that are left out to compare penalties."""
_FULL_LEVERAGE = 1e-9
"""A sample whose leverage is this close to 1 determines its own fit: no residual is left."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """An affine map of features, ``x @ matrix + offset``, with its residuals and uncertainty."""

    matrix: Array
    """Shape (features before, features after)."""
    offset: Array
    ridge: float
    """The penalty, relative to the mean diagonal entry of the Gram matrix."""
    error: float
    """The mean squared error of samples, or group means, that were left out."""
    residual_covariance: Array
    """Covariance of the residuals: what of the features after is not a map of those before."""
    n_samples: float
    """Number of samples, or with weights the effective number."""
    center: Array
    axes: Array
    """Directions in which the features before vary, as columns."""
    precision: Array
    """The posterior precision along each direction."""
    rest_precision: float
    """The posterior precision along all other directions."""

    def __call__(self, x: Array) -> Array:
        """Return mapped rows, or a mapped vector."""
        return to_float64(x) @ self.matrix + self.offset

    def variance(self, x: Array) -> Array:
        r"""Return the variance of mapped rows because the map is an estimate.

        In units of the residual covariance, as of Bayesian linear regression:
        :math:`1/n + (x - \bar x)^T (X^T X + \lambda I)^{-1} (x - \bar x)`. It is small near samples
        and grows in directions that no sample covers.
        """
        xp = namespace(self.center)
        z = to_float64(x) - self.center
        along = z @ self.axes
        squares = along * along
        rest = xp.maximum(xp.sum(z * z, axis=-1) - xp.sum(squares, axis=-1), 0 * z[..., 0])
        rest = xp.where(rest > 1e-12 * xp.sum(z * z, axis=-1), rest, 0 * rest)  # rounding
        covered = xp.sum(squares / self.precision, axis=-1)
        return 1 / self.n_samples + covered + rest / self.rest_precision

    def left_out_residuals(self, before: Array, after: Array) -> Array:
        """Return the residual of each sample of the fit, as if the map were fitted without it.

        For samples of equal weight, whose leverage is `variance`.
        """
        xp = namespace(self.center)
        free = 1 - self.variance(before)
        free = xp.maximum(free, 0 * free + _FULL_LEVERAGE)
        return (to_float64(after) - self(before)) / free[:, None]


def fit_linear_map(
    before: Array,
    after: Array,
    *,
    ridge: float | Literal["auto"] = "auto",
    toward_identity: bool | None = None,
    offset: bool = True,
    weights: Array | None = None,
    groups: Array | None = None,
    rank: int | None = None,
) -> LinearMap:
    """Return the ridge estimate of the map from features ``before`` to those ``after``.

    ``before`` (n, d) and ``after`` (n, e) have a row per sample. ``ridge`` is relative to the mean
    diagonal entry of the Gram matrix, and "auto" chooses it by leave-one-out. ``toward_identity``
    is by default true if d = e. ``weights`` (n) count samples more or less. With ``groups`` (n),
    such as the labels, a whole group is left out at a time and the error is that of its mean: the
    map is to be used for other groups. ``rank`` limits the rank of the correction of the target.

    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> fit_linear_map(x, x @ [[2.0, 1.0], [0.5, 1.0]]).matrix.round(6)
    array([[2. , 1. ],
           [0.5, 1. ]])
    >>> fit_linear_map(x, x).matrix
    array([[1., 0.],
           [0., 1.]])
    """
    check_same_samples(before, after)
    fit = _Regression.of(before, after, toward_identity, offset, weights)
    if ridge == "auto":
        ridge, error = _best_ridge(fit, _groups(groups, fit))
    else:
        error = _left_out_error(fit, float(ridge), _groups(groups, fit))
    return fit.at(float(ridge), error, rank)


@dataclass(frozen=True, slots=True, eq=False)
class LocalMap:
    r"""A `LinearMap` plus the drift that it leaves, averaged over the samples near a row.

    .. math:: g(x) = x P + b + \frac{\sum_i w_i(x) e_i}{\sum_i w_i(x)}, \qquad
              w_i(x) = \exp\left(-\frac{\|x - x_i\|^2}{2 \sigma^2}\right)

    with the residuals :math:`e_i`. With :math:`\sigma = \infty` it is the
    global map; with :math:`P = I` and a finite one it is semantic drift compensation (Yu et al.
    2020).
    """

    base: LinearMap
    before: Array
    residuals: Array
    bandwidth: float
    """The width of the kernel; infinity for the global map."""

    def __call__(self, x: Array) -> Array:
        """Return mapped rows."""
        if self.bandwidth == float("inf"):
            return self.base(x)
        rows = to_float64(x)
        return self.base(rows) + kernel_average(rows, self.before, self.residuals, self.bandwidth)


def fit_local_map(
    base: LinearMap, before: Array, after: Array, bandwidth: float | Literal["auto"] = "auto"
) -> LocalMap:
    """Return the map with local drift; its bandwidth has the smallest leave-one-out error.

    ``bandwidth`` is relative to the mean distance of two samples.
    """
    check_same_samples(before, after)
    before = to_float64(before)
    residuals = to_float64(after) - base(before)
    xp = namespace(before)
    squares = xp.sum((before - xp.mean(before, axis=0)) ** 2)
    spread = float(2 * squares / max(before.shape[0] - 1, 1)) ** 0.5
    if not spread:  # all samples are alike: every average is the mean
        return LocalMap(base, before, residuals, float("inf"))
    if bandwidth == "auto":
        chosen = _evenly_spaced(before.shape[0])
        errors = [_kernel_error(before, residuals, chosen, spread * width) for width in BANDWIDTHS]
        bandwidth = BANDWIDTHS[int(np.argmin(errors))]
    return LocalMap(base, before, residuals, spread * float(bandwidth))


def kernel_average(x: Array, points: Array, values: Array, width: float) -> Array:
    r"""Return the mean of values at points, weighted per row by :math:`e^{-\|x-p\|^2/2\sigma^2}`.

    The weights are normalized before they are exponentiated, so no sum is 0. An infinite width
    gives the mean of the values, a small one the value at the nearest point.
    """
    return _kernel_weights(squared_distances(x, points), width) @ values


def squared_distances(a: Array, b: Array) -> Array:
    """Return the squared distances between the rows of two arrays."""
    xp = namespace(a)
    squares = xp.sum(a * a, axis=1)[:, None] + xp.sum(b * b, axis=1)[None, :] - 2 * a @ b.T
    return xp.maximum(squares, 0 * squares)


def check_same_samples(before: Array, after: Array) -> None:
    """Raise unless both have rows, and as many."""
    if before.ndim != 2 or after.ndim != 2 or before.shape[0] != after.shape[0]:
        raise InputError(
            f"features before have shape {tuple(before.shape)} and after {tuple(after.shape)}: "
            "both must be the features of the same samples, a row each."
        )
    if not before.shape[0]:
        raise InputError("there are no samples: give the features of at least one.")


def _kernel_weights(squares: Array, width: float) -> Array:
    xp = namespace(squares)
    exponents = squares * (-0.5 / width**2 if width not in (0.0, float("inf")) else 0.0)
    weights = xp.exp(exponents - xp.max(exponents, axis=1, keepdims=True))
    return weights / xp.sum(weights, axis=1, keepdims=True)


def _kernel_error(before: Array, residuals: Array, chosen: Array, width: float) -> float:
    """Return the mean squared error of residuals that are predicted from those of the others."""
    xp = namespace(before)
    if width == float("inf"):
        return float(xp.sum(residuals[chosen] ** 2)) / len(chosen)
    squares = squared_distances(before[chosen], before)
    squares[xp.arange(len(chosen)), chosen] = float("inf")
    difference = residuals[chosen] - _kernel_weights(squares, width) @ residuals
    return float(xp.sum(difference * difference)) / len(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _Regression:
    """The decomposition of a ridge regression, in which each penalty is cheap.

    Rows are multiplied by the roots of their weights. ``rotated`` are the features in the
    directions in which they vary, ``change`` what the target leaves to explain.
    """

    target: Array
    center: Array
    after_center: Array
    axes: Array
    values: Array
    """Eigenvalues of the Gram matrix."""
    rotated: Array
    change: Array
    moment: Array
    intercept: Array
    """What the offset adds to each leverage; zeros without one."""
    scale: float
    """The mean diagonal entry of the Gram matrix."""
    n_samples: float

    @classmethod
    def of(
        cls,
        before: Array,
        after: Array,
        toward_identity: bool | None,
        offset: bool,
        weights: Array | None,
    ) -> _Regression:
        xp = namespace(before)
        before, after = to_float64(before), to_float64(after)
        d = int(before.shape[1])
        if toward_identity is None:
            toward_identity = d == after.shape[1]
        if toward_identity and d != after.shape[1]:
            raise InputError(
                f"a map from {d} to {after.shape[1]} features has no identity to shrink towards."
            )
        target = eye(d, before) if toward_identity else zeros((d, int(after.shape[1])), before)
        share = xp.ones_like(before[:, 0]) if weights is None else to_float64(weights)
        share = share / xp.sum(share)
        n_samples = float(1 / xp.sum(share * share))
        center, after_center = 0 * before[0, :], 0 * after[0, :]
        intercept = 0 * share
        if offset:
            center, after_center, intercept = share @ before, share @ after, share
        root = xp.sqrt(share * n_samples)[:, None]
        x = (before - center) * root
        change = (after - after_center) * root
        change = change - (x if toward_identity else x @ target)
        values, axes, rotated = _decomposed(x)
        scale = float(xp.sum(x * x)) / d
        moment = rotated.T @ change
        return cls(
            *(target, center, after_center, axes, values, rotated, change, moment),
            *(intercept, scale, n_samples),
        )

    def filter(self, ridge: float) -> Array:
        """Return the inverse of the penalized eigenvalues."""
        return 1 / (self.values + ridge * self.scale) if self.scale else 0 * self.values

    def residuals(self, ridge: float, rows: Any) -> tuple[Array, Array]:
        """Return the residuals of some rows and their leverages."""
        xp = namespace(self.rotated)
        z = self.rotated[rows, :]
        filtered = z * self.filter(ridge)
        leverages = xp.sum(filtered * z, axis=1) + self.intercept[rows]
        return self.change[rows, :] - filtered @ self.moment, leverages

    def at(self, ridge: float, error: float, rank: int | None) -> LinearMap:
        xp = namespace(self.rotated)
        inverse = self.filter(ridge)
        correction = self.axes @ (inverse[:, None] * self.moment)
        residuals, leverages = self.residuals(ridge, slice(None))
        if rank is not None and rank < min(correction.shape):
            fitted = self.rotated @ (inverse[:, None] * self.moment)
            _, vectors = xp.linalg.eigh(fitted.T @ fitted)
            kept = vectors[:, -rank:] if rank else vectors[:, :0]
            correction = (correction @ kept) @ kept.T
            residuals = residuals + fitted - (fitted @ kept) @ kept.T
        matrix = self.target + correction
        free = xp.maximum(1 - leverages, 0 * leverages + _FULL_LEVERAGE)
        scaled = residuals / xp.sqrt(free)[:, None]
        penalty = ridge * self.scale if self.scale else 0.0  # 0 times infinity without variance
        return LinearMap(
            matrix=matrix,
            offset=self.after_center - self.center @ matrix,
            ridge=ridge,
            error=error,
            residual_covariance=scaled.T @ scaled / self.change.shape[0],
            n_samples=self.n_samples if bool(xp.any(self.intercept > 0)) else float("inf"),
            center=self.center,
            axes=self.axes,
            precision=self.values + penalty,
            rest_precision=penalty if penalty else float("inf"),
        )


def _decomposed(x: Array) -> tuple[Array, Array, Array]:
    """Return eigenvalues and eigenvectors of the Gram matrix, and the rows in these directions."""
    xp = namespace(x)
    n, d = map(int, x.shape)
    values, vectors = xp.linalg.eigh(x.T @ x if n >= d else x @ x.T)
    largest = float(values[-1]) if values.shape[0] else 0.0
    nonzero = values > max(n, d) * float(xp.finfo(x.dtype).eps) * largest
    values, vectors = values[nonzero], vectors[:, nonzero]
    if n >= d:
        return values, vectors, x @ vectors
    axes = x.T @ vectors / xp.sqrt(values)
    return values, axes, vectors * xp.sqrt(values)


def _best_ridge(fit: _Regression, groups: list[Any]) -> tuple[float, float]:
    """Return the penalty with the smallest error; the largest of equally good ones."""
    errors = [_left_out_error(fit, ridge, groups) for ridge in RIDGES]
    best = int(np.argmin(errors))
    refined = [RIDGES[best]]
    if best > 1:
        refined.append(RIDGES[best] * 10**0.5)
    if 0 < best < len(RIDGES) - 1:
        refined.append(RIDGES[best] / 10**0.5)
    candidates = {ridge: _left_out_error(fit, ridge, groups) for ridge in refined[1:]}
    candidates[RIDGES[best]] = errors[best]
    ridge = min(candidates, key=lambda ridge: (candidates[ridge], -ridge))
    return ridge, candidates[ridge]


def _left_out_error(fit: _Regression, ridge: float, groups: list[Any]) -> float:
    """Return the mean squared error of left-out samples, or of the means of left-out groups."""
    xp = namespace(fit.rotated)
    if not groups:
        rows = _evenly_spaced(int(fit.rotated.shape[0]))
        residuals, leverages = fit.residuals(ridge, rows)
        free = 1 - leverages
        if float(xp.min(free)) < _FULL_LEVERAGE:
            return float("inf") if bool(xp.any(residuals != 0)) else 0.0
        return float(xp.sum(xp.sum(residuals**2, axis=1) / free**2)) / len(rows)
    total = 0.0
    inverse = fit.filter(ridge)
    for rows in groups:
        residuals, _ = fit.residuals(ridge, rows)
        z = fit.rotated[rows, :]
        root = xp.sqrt(fit.intercept[rows])
        hat = (z * inverse) @ z.T + root[:, None] * root[None, :]
        free = eye(len(rows), z) - hat
        if float(xp.min(diagonal(free))) < _FULL_LEVERAGE:
            return float("inf")
        left_out = xp.mean(xp.linalg.solve(free, residuals), axis=0)
        total += float(xp.sum(left_out * left_out))
    return total / len(groups)


def _groups(groups: Array | None, fit: _Regression) -> list[Any]:
    """Return the rows of each group; none if samples are left out one by one."""
    if groups is None:
        return []
    labels = np.asarray(groups)
    if len(labels) != fit.rotated.shape[0]:
        raise InputError(
            f"groups has {len(labels)} entries for {fit.rotated.shape[0]} samples: give one each."
        )
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if len(rows) < 2:
        return []  # nothing would be left
    return [to_backend_of(indices, fit.rotated) for indices in rows[:MAX_LEFT_OUT]]


def _evenly_spaced(n: int) -> Any:
    """Return the indices of the rows that are left out, all if there are not too many."""
    chosen = min(n, MAX_LEFT_OUT)
    return np.arange(chosen) * n // chosen
