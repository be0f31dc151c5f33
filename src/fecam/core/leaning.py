r"""Bounds for classes of few samples that lean on a prior: so tight that they are nearly distances.

Of :math:`d^2 = y^T B y - \lVert H (x - c) \rVert^2` with :math:`y = \sigma \circ (x - c)` (see
`fecam.core.thin`) the rows :math:`H` are few, but :math:`B` is a rotation by the prior's
eigenvectors :math:`Q`, once a query *and* class, for each class has its own deviations
:math:`\sigma`. They differ little from a multiple of what is usual,
:math:`\sigma = s \bar\sigma + \delta`. So with :math:`y = y_0 + e`,
:math:`y_0 = s \bar\sigma \circ (x - c)` and :math:`e = \delta \circ (x - c)`

.. math:: y^T B y = y_0^T B y_0 + 2 e^T B y_0 + e^T B e

The first term is a weighted sum of squares in coordinates that are the same for all classes. The
second would be a product of such coordinates, turned back once a query, if the weights
:math:`\omega` of all classes were multiples of one another; by how much they are not is known. The
third is small, and lies between the smallest and the largest weight times :math:`e^T e`. All are
products with all classes at once, and what is not known of a distance is of second order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import row_slices
from fecam.core.panel import BLOCK_BYTES, AnyFactor, Squares, WeightedSquares, runs
from fecam.core.thin import ThinFactor

Matrix = NDArray[Any]

ROUGHLY = 0.45
"""How far above the nearest, before anything is taken off, a class may still turn out nearest."""
FEW_ROWS = 32
"""Rows a class up to which a product with those of all classes is quick."""
ROUNDING = 1e-5
"""More than single precision may add to a squared norm that is the difference of two."""


class Bounded(NamedTuple):
    """What is known of squared distances, without their scales."""

    lower: Matrix
    upper: Matrix
    estimate: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Queries, as all classes that lean on a prior take them."""

    rows: Matrix
    rotated: Matrix
    """With the usual deviations, in the coordinates of the prior's eigenvectors."""
    back: Matrix
    """Weighed there as is usual, and turned back."""
    lengths: Matrix
    rotated_lengths: Matrix


def leans(factor: AnyFactor) -> bool:
    """Whether a factor needs the eigenvectors of a prior."""
    return isinstance(factor, ThinFactor) and factor.vectors is not None


class Leaning:
    """All classes of a search that lean on a prior, and their ``places`` in it.

    ``originals`` tells which classes are the same as in the search before.
    """

    def __init__(
        self,
        places: list[int],
        factors: list[ThinFactor],
        centres: Matrix,
        originals: list[AnyFactor],
        before: Leaning | None = None,
    ) -> None:
        self.places = np.asarray(places)
        dtype = centres.dtype
        deviations = np.stack([one.deviations for one in factors]).astype(np.float64)
        usual = deviations.mean(axis=0)
        multiples = deviations @ usual / (usual @ usual)
        deltas = deviations - multiples[:, None] * usual
        weights = np.stack([one.weights for one in factors]).astype(np.float64)
        omegas = weights**2
        usual_omega = omegas.mean(axis=0)
        shares = omegas @ usual_omega / (usual_omega @ usual_omega)
        assert factors[0].vectors is not None, "they lean"
        self.vectors: Matrix = factors[0].vectors
        self.usual, self.usual_omega = usual.astype(dtype), usual_omega.astype(dtype)
        self._deviations, self._weights = deviations.astype(dtype), weights.astype(dtype)
        self._centres = here = self.asked(centres)
        self._rows = rows = self._made_rows(factors, deviations, originals, before)
        self._factors, self._along = factors, _by_rows(factors, rows, here.rows)
        self.is_quick = sum(len(some) for some in rows) <= FEW_ROWS * len(rows)
        """Whether bounds take no longer than estimates."""
        self._plain = WeightedSquares(weights * multiples[:, None], here.rotated)
        self._bent = WeightedSquares(deltas, here.rows)
        slopes = 2 * (multiples * shares)[:, None] * deltas
        cross = np.concatenate([slopes, -slopes * here.rows, -slopes * here.back], axis=1)
        self._cross = cross.astype(dtype).T
        self._cross_constant = np.sum(slopes * here.rows * here.back, axis=1)
        self._least, self._most = omegas.min(axis=1), omegas.max(axis=1)
        self._mean = omegas.mean(axis=1)
        self._unlike = np.max(np.abs(omegas - shares[:, None] * usual_omega) / weights, axis=1)
        # What rounding adds before anything is subtracted, for each unit of length.
        rounding = 4 * np.finfo(dtype).eps * centres.shape[1] ** 0.5
        self._noise = rounding * self._most**0.5 * np.abs(multiples)
        self._bent_noise = rounding * self._most**0.5 * np.abs(deltas).max(axis=1)
        self._cross_noise = rounding * np.abs(slopes).max(axis=1) * usual_omega.max()
        self._row_noise = rounding * np.asarray([np.linalg.norm(some) for some in rows])

    def _made_rows(
        self,
        factors: list[ThinFactor],
        deviations: Matrix,
        originals: list[AnyFactor],
        before: Leaning | None,
    ) -> list[Matrix]:
        """The rows of each class in the coordinates of the queries."""
        kept = {} if before is None else before._made
        self._made: dict[int, tuple[AnyFactor, Matrix]] = {}
        rows = []
        for original, one, own in zip(originals, factors, deviations, strict=True):
            if id(original) in kept:
                made = kept[id(original)][1]
            else:
                turned = (one.rows * one.weights) @ self.vectors.T
                made = (turned * own).astype(one.rows.dtype)
            self._made[id(original)] = (original, made)
            rows.append(made)
        return rows

    def asked(self, rows: Matrix) -> Asked:
        """Queries, ready to be measured."""
        rotated = (rows * self.usual) @ self.vectors
        back = (rotated * self.usual_omega) @ self.vectors.T
        lengths, turned = np.linalg.norm(rows, axis=1), np.linalg.norm(rotated, axis=1)
        return Asked(rows, rotated, back, lengths, turned)

    def estimate(self, asked: Asked) -> Matrix:
        """The distance of each query to each class without proof, and only well where it is small.

        What is taken off along a class's rows is most of the work, and left out for classes that
        are too far away without it.
        """
        near = self._plain.measure(asked.rotated) + self._cross_of(asked)
        near += self._mean * self._bent.measure(asked.rows)
        few = near <= near.min(axis=1, keepdims=True) * (1 + ROUGHLY)
        columns, rows = np.nonzero(few.T)
        for position, some in runs(columns):
            apart = asked.rows[rows[some]] - self._centres.rows[position]
            taken = _along(apart, self._rows[position], self._factors[position].signs)
            near[rows[some], position] -= taken
        return np.asarray(np.maximum(near, 0))

    def _cross_of(self, asked: Asked) -> Matrix:
        """The second term, of each query and class."""
        both = np.concatenate([asked.rows * asked.back, asked.back, asked.rows], axis=1)
        return np.asarray((both @ self._cross).astype(np.float64) + self._cross_constant)

    def bound(self, asked: Asked) -> Bounded:
        """What is known of the distance of each query to each class, rounding included."""
        here, most = self._centres, self._most
        cross = self._cross_of(asked)
        plain, bent = self._plain.measure(asked.rotated), self._bent.measure(asked.rows)
        taken = np.empty(plain.shape)
        for at, squares in self._along:
            taken[:, at] = squares.measure(asked.rows)
        far = asked.lengths[:, None] + here.lengths
        turned = asked.rotated_lengths[:, None] + here.rotated_lengths
        length, bend = np.sqrt(plain), np.sqrt(bent)
        noise = self._noise * turned + self._bent_noise * far
        row_noise = self._row_noise * far
        doubt = 2 * self._unlike * bend * length
        doubt += noise * (2 * (length + np.sqrt(most) * bend) + noise)
        doubt += row_noise * (2 * np.sqrt(np.abs(taken)) + row_noise)
        doubt += self._cross_noise * far * turned
        doubt += ROUNDING * (plain + np.abs(taken) + most * bent)
        near = plain + cross - taken
        lower = np.maximum(near + self._least * bent - doubt, 0)
        return Bounded(lower, near + most * bent + doubt, near + self._mean * bent)

    def measure(self, block: Matrix, rows: Matrix, columns: Matrix) -> Matrix:
        """The squared distance of some rows of a block to a class each, without its scale."""
        found = np.empty(len(rows))
        by_class = np.argsort(columns, kind="stable")
        for some in row_slices(len(rows), max(1, BLOCK_BYTES // (8 * block.shape[1]))):
            pairs = by_class[some]
            at = columns[pairs]
            u = block[rows[pairs]] - self._centres.rows[at]
            u *= self._deviations[at]
            u = u @ self.vectors
            u *= self._weights[at]
            for position, run in runs(at):
                factor, part = self._factors[position], u[run]
                taken = _along(part, factor.rows, factor.signs)
                found[pairs[run]] = np.vecdot(part, part) - taken
        return np.maximum(found, 0)


def _along(apart: Matrix, rows: Matrix, signs: Matrix | None) -> Matrix:
    """The squares of differences along the rows of a class, added up by their signs."""
    along = apart @ rows.T
    return np.asarray(np.vecdot(along, along if signs is None else along * signs))


def _by_rows(
    factors: list[ThinFactor], rows: list[Matrix], centres: Matrix
) -> list[tuple[list[int], Squares]]:
    """The classes of about as many rows together: they are filled up to as many each."""
    alike: dict[int, list[int]] = {}
    for at, some in enumerate(rows):
        alike.setdefault(1 << max(len(some) - 1, 0).bit_length(), []).append(at)
    return [
        (
            some,
            Squares([rows[at] for at in some], [factors[at].signs for at in some], centres[some]),
        )
        for some in alike.values()
    ]
