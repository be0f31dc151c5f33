"""Transforms of raw features: Tukey's ladder of powers and unit length."""

from __future__ import annotations

from dataclasses import dataclass

from fecam.core.arrays import Array, namespace


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


@dataclass(frozen=True, slots=True)
class Transform:
    """The transform of raw features before statistics are computed."""

    power: float | None
    """Tukey's lambda; None for no transform."""
    unit: bool
    """Whether rows are then divided by their length."""

    def __call__(self, x: Array) -> Array:
        """Transform rows (or a single vector)."""
        y = x if self.power is None else tukey(x, self.power)
        return unit_length(y) if self.unit else y
