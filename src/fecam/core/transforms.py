"""Transforms of raw features: Tukey's ladder of powers, unit length and a projection."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fecam.core.arrays import Array, namespace, to_backend_of


def tukey(x: Array, power: float) -> Array:
    r"""Tukey's ladder of powers, Eq. 9: :math:`x^\lambda`, or :math:`\log x` for 0.

    It reduces the skew of features after a ReLU. Values must be in the domain of the transform,
    see `outside_domain`.

    >>> import numpy as np
    >>> tukey(np.array([0.0, 4.0, 9.0]), 0.5)
    array([0., 2., 3.])
    """
    xp = namespace(x)
    if power == 0.5:
        return xp.sqrt(x)
    return xp.log(x) if power == 0 else x**power


def auto_power(x: Array) -> float | None:
    """Return the power of ``tukey="auto"``: 0.5 if no value is negative, otherwise none."""
    return 0.5 if float(namespace(x).min(x)) >= 0 else None


def outside_domain(x: Array, power: float) -> Array:
    """Return a mask of the values for which Tukey's transform is undefined."""
    return x <= 0 if power <= 0 else x < 0


def unit_length(x: Array) -> Array:
    """Return each row divided by its Euclidean length; a row of zeros is unchanged.

    >>> import numpy as np
    >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp = namespace(x)
    length = xp.linalg.vector_norm(x, axis=-1, keepdims=True)
    return x / xp.where(length > 0, length, xp.ones_like(length))


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """The transform of raw features before statistics are computed."""

    power: float | None
    """Tukey's lambda; None for no transform."""
    unit: bool
    """Whether rows are then divided by their length."""
    projection: Array | None = None
    """A matrix of shape (n_features_in, n_components) that rows are then multiplied by; see
    `fecam.core.compression`. None keeps all features."""

    def __call__(self, x: Array) -> Array:
        """Transform rows (or a single vector)."""
        y = x if self.power is None else tukey(x, self.power)
        y = unit_length(y) if self.unit else y
        return y if self.projection is None else project_rows(y, self.projection)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transform):
            return NotImplemented
        return (self.power, self.unit) == (other.power, other.unit) and self.same_projection(other)

    __hash__ = None  # type: ignore[assignment]

    def same_projection(self, other: Transform) -> bool:
        """Return whether both project to the same coordinates, or neither projects."""
        a, b = self.projection, other.projection
        if a is None or b is None or a is b:
            return a is b
        return a.shape == b.shape and bool(namespace(a).all(a == to_backend_of(b, a)))

    def to(self, like: Array) -> Transform:
        """Return the transform for arrays of this library and device."""
        if self.projection is None:
            return self
        matrix = to_backend_of(self.projection, like)
        return replace(self, projection=namespace(like).astype(matrix, like.dtype, copy=False))


def project_rows(rows: Array, projection: Array) -> Array:
    """Return rows (or a single vector) times a projection, in the more precise of both dtypes."""
    xp = namespace(rows)
    dtype = xp.result_type(rows.dtype, projection.dtype)
    return xp.astype(rows, dtype, copy=False) @ xp.astype(projection, dtype, copy=False)
