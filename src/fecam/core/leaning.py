r"""Bounds for classes of few samples that lean on a prior.

The deviations :math:`\sigma_c` of such a class differ little from a multiple of what is usual,
:math:`\sigma_c = s_c \sigma + \delta_c`. With :math:`s_c \sigma` in their place, the
rotation by the prior's eigenvectors is the same for all classes, and done once a query. A squared
distance is the square of a norm, so by the triangle inequality

.. math:: d \ge d_s - w_{max} \lVert \delta_c \circ (x - c) \rVert

where :math:`d_s` is the distance with the usual deviations and :math:`w_{max}` the largest
weight (and more where a row's square is added, see `fecam.core.thin`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.panel import BLOCK_BYTES, AnyFactor, Classes, ThinGroup
from fecam.core.thin import ThinFactor

Matrix = NDArray[Any]

ROUNDING = 1e-5
"""More than single precision may add to a squared norm that is the difference of two."""


def leans(factor: AnyFactor) -> bool:
    """Whether a factor needs the eigenvectors of a prior."""
    return isinstance(factor, ThinFactor) and factor.vectors is not None


class Leaning:
    """All classes of a search that lean on a prior."""

    def __init__(
        self, factors: list[Any], centres: Matrix, positions: list[int], few: list[int]
    ) -> None:
        deviations = np.stack([factors[at].deviations for at in positions]).astype(np.float64)
        usual = deviations.mean(axis=0)
        multiples = deviations @ usual / (usual @ usual)
        self.vectors = factors[positions[0]].vectors
        self.usual = usual.astype(centres.dtype)
        self.centres = centres
        self.rotated_centres = self.rotated(centres)
        self._lengths = np.linalg.norm(self.rotated_centres, axis=1)
        self._at = {position: at for at, position in enumerate(positions)}
        self._factors = [factors[at] for at in positions]
        self._weights = np.stack([one.weights for one in self._factors])
        self._weights *= multiples[:, None].astype(centres.dtype)
        highest = np.asarray([one.weights.max() for one in self._factors], np.float64)
        # A row whose square is added makes the norm larger than the weights alone.
        self._lifts = np.asarray([1 + _added(one) for one in self._factors])
        self._gaps = (deviations - multiples[:, None] * usual) ** 2
        self._gaps *= (highest**2 * self._lifts)[:, None]
        self._gaps = self._gaps.astype(centres.dtype)
        # Rotated rows and centres are rounded before they are subtracted.
        rounding = 4 * np.finfo(centres.dtype).eps * centres.shape[1] ** 0.5
        self._noise = rounding * highest * np.abs(multiples) * self._lifts**0.5
        self.few = [at for at in positions if at in set(few)]
        if self.few:
            some = [self._at[position] for position in self.few]
            ones = np.ones_like(self.usual)
            plain = [
                ThinFactor(one.centre, ones, self._weights[at], one.rows, one.signs, None)
                for at, one in zip(some, (self._factors[at] for at in some), strict=True)
            ]
            self._near = Classes(plain, self.rotated_centres[self.few])
            roots = [
                ThinFactor(one.centre, np.sqrt(self._gaps[at]), ones, one.rows[:0], None, None)
                for at, one in zip(some, plain, strict=True)
            ]
            self._apart = ThinGroup(roots, centres[self.few])
            self._norms = ThinGroup(
                [ThinFactor(o.centre, ones, o.weights, o.rows[:0], None, None) for o in plain],
                self.rotated_centres[self.few],
            )

    def rotated(self, rows: Matrix) -> Matrix:
        """Rows with the usual deviations, in the coordinates of the prior's eigenvectors."""
        return np.asarray((rows * self.usual) @ self.vectors)

    def bounds_of_few(
        self, block: Matrix, rotated: Matrix, lengths: Matrix
    ) -> tuple[Matrix, Matrix]:
        """Bounds and estimates, without their scales, for all classes of very few rows."""
        some = [self._at[position] for position in self.few]
        near = self._near.measure(rotated)
        norm, gap = self._norms.measure(rotated) * self._lifts[some], self._apart.measure(block)
        far = lengths[:, None] + self._lengths[self.few]
        return _lower(near, norm, gap, self._noise[some] * far), near

    def bound(
        self, position: int, rows: Matrix, rotated: Matrix, lengths: Matrix
    ) -> tuple[Matrix, Matrix]:
        """Bounds and estimates, without the scale, of some rows for one class.

        ``rotated`` are the same rows, of these ``lengths``; both are overwritten.
        """
        at = self._at[position]
        factor = self._factors[at]
        rotated -= self.rotated_centres[position]
        rotated *= self._weights[at]
        norm = np.vecdot(rotated, rotated)
        along = rotated @ factor.rows.T
        near = norm - np.vecdot(along, along if factor.signs is None else along * factor.signs)
        far = lengths + self._lengths[position]
        rows -= self.centres[position]
        rows *= rows
        gap = rows @ self._gaps[at]
        return _lower(near, norm * self._lifts[at], gap, self._noise[at] * far), near

    def measure(
        self, block: Matrix, pairs: list[tuple[int, Matrix]]
    ) -> Iterator[tuple[int, Matrix, Matrix]]:
        """Squared distances, without their scales, of some rows to each of some classes."""
        most = max(1, BLOCK_BYTES // (8 * block.shape[1]))
        while pairs:
            some: list[tuple[int, Matrix]] = []
            count = 0
            while pairs and (not some or count + len(pairs[0][1]) <= most):
                count += len(pairs[0][1])
                some.append(pairs.pop(0))
            yield from self._measure(block, some)

    def _measure(
        self, block: Matrix, pairs: list[tuple[int, Matrix]]
    ) -> Iterator[tuple[int, Matrix, Matrix]]:
        parts = []
        for position, rows in pairs:
            apart = block[rows]
            apart -= self.centres[position]
            apart *= self._factors[self._at[position]].deviations
            parts.append(apart)
        turned = np.concatenate(parts) @ self.vectors
        start = 0
        for position, rows in pairs:
            factor = self._factors[self._at[position]]
            u = turned[start : start + len(rows)] * factor.weights
            along = u @ factor.rows.T
            along *= along
            if factor.signs is not None:
                along *= factor.signs
            start += len(rows)
            yield position, rows, np.maximum(np.vecdot(u, u) - along.sum(axis=1), 0)


def _added(factor: ThinFactor) -> float:
    """The squared lengths of the rows whose squares are added."""
    if factor.signs is None:
        return 0.0
    return float(np.sum(factor.rows.astype(np.float64)[factor.signs < 0] ** 2))


def _lower(near: Matrix, norm: Matrix, gap: Matrix, noise: Matrix) -> Matrix:
    """The square of what is left of a norm when others are taken off, rounding included."""
    root = np.sqrt(np.maximum(near - ROUNDING * norm, 0))
    return np.asarray(np.maximum(root - np.sqrt(gap) * (1 + 1e-3) - noise, 0) ** 2)
