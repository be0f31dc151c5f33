"""Lower bounds of the distances to all classes, by one product with the queries' monomials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import row_slices, to_numpy
from fecam.core.factors import Factor, Frame, FramedFactor
from fecam.core.panel import AnyFactor
from fecam.core.thin import ThinFactor

Matrix = NDArray[Any]

PROBES = 16
"""Random directions for a mean precision."""
BLOCK_BYTES = 8 * 2**20
"""What the monomials of some queries may take: little enough to stay in the processor's cache."""


class Bounds:
    r"""Of each class the first terms of its squared distance, in the first coordinates of a frame.

    They are the squared distance in the *marginal* distribution of these coordinates,
    :math:`(z - p)^T M (z - p)` with :math:`M` the inverse of a leading block of the class's matrix:
    one constant, as many linear coefficients as coordinates, and one for each pair of coordinates.
    Of the other coordinates only the squared length is looked at: a class's floor times that length
    still belongs to the bound; its mean precision times that length makes an estimate of it.
    """

    def __init__(
        self,
        frame: Frame,
        size: int,
        originals: list[AnyFactor],
        factors: list[AnyFactor],
        places: Matrix,
        before: Bounds | None = None,
    ) -> None:
        self.size = size
        pairs = np.triu_indices(size)
        twice = 2.0 - np.eye(size)
        kept = {} if before is None else before._made
        self._made: dict[int, tuple[AnyFactor, Matrix, float]] = {}
        self.forms = np.empty((1 + size + len(pairs[0]), len(factors)), places.dtype)
        self.rest = np.ascontiguousarray(places[:, size:].T)
        self.rest_square = np.vecdot(places[:, size:], places[:, size:])
        self.floors, self.means = np.zeros((2, len(factors)), places.dtype)
        for column, (original, factor) in enumerate(zip(originals, factors, strict=True)):
            made = kept.get(id(original)) or (original, *_leading(factor, frame, size))
            self._made[id(original)] = made
            _, precision, self.means[column] = made
            place = places[column, :size].astype(np.float64)
            # What single precision may add to the product is taken off beforehand.
            error = 8 * np.finfo(places.dtype).eps * len(self.forms) ** 0.5
            error *= np.linalg.norm(precision)
            lowered = precision - error * np.eye(size)
            self.forms[0, column] = place @ precision @ place - error * (place @ place)
            self.forms[1 : 1 + size, column] = -2 * precision @ place
            self.forms[1 + size :, column] = (lowered * twice)[pairs]
            if isinstance(factor, FramedFactor):
                self.floors[column] = factor.floor

    def measure(self, turned: Matrix) -> tuple[Matrix, Matrix]:
        """Bounds and estimates for queries that are given in the coordinates of the frame."""
        step = max(1, BLOCK_BYTES // (turned.itemsize * len(self.forms)))
        parts = [
            _monomials(turned[some, : self.size]) @ self.forms
            for some in row_slices(len(turned), step)
        ]
        first = parts[0] if len(parts) == 1 else np.concatenate(parts)
        rest = turned[:, self.size :]
        square = np.vecdot(rest, rest)[:, None] + self.rest_square
        rounding = 32 * np.finfo(turned.dtype).eps * square
        square -= 2 * (rest @ self.rest)
        estimates = first + self.means * np.maximum(square, 0)
        return first + self.floors * np.maximum(square - rounding, 0), estimates


def _monomials(x: Matrix) -> Matrix:
    """One, the coordinates, and the products of each with itself and those after it."""
    n, size = x.shape
    result = np.empty((n, 1 + size + size * (size + 1) // 2), x.dtype)
    result[:, 0] = 1
    result[:, 1 : 1 + size] = x
    at = 1 + size
    for i in range(size):
        np.multiply(x[:, i : i + 1], x[:, i:], out=result[:, at : at + size - i])
        at += size - i
    return result


def as_numpy(factor: AnyFactor, frame: Frame) -> AnyFactor:
    """The same factor in NumPy arrays, which share their memory where they can, and their frame."""
    changes: dict[str, Any] = {"centre": to_numpy(factor.centre)}
    if isinstance(factor, FramedFactor):
        changes["blocks"] = tuple(to_numpy(block) for block in factor.blocks)
        changes["frame"] = frame
    elif isinstance(factor, ThinFactor):
        for name in ("deviations", "weights", "rows", "signs", "vectors"):
            value = getattr(factor, name)
            changes[name] = None if value is None else to_numpy(value)
    elif factor.whitening is not None:
        changes["whitening"] = to_numpy(factor.whitening)
    return replace(factor, **changes)


def _leading(factor: AnyFactor, frame: Frame, size: int) -> tuple[Matrix, float]:
    """The marginal precision of the leading coordinates, and the mean one of all others."""
    if isinstance(factor, FramedFactor):
        triangle = factor.blocks[0].astype(np.float64)
        rest = sum(float(np.sum(block[size:].astype(np.float64) ** 2)) for block in factor.blocks)
        width = factor.blocks[-1].shape[0]
        return triangle @ triangle.T, factor.floor + rest / max(width - size, 1)
    if isinstance(factor, Factor):
        raise TypeError("a factor without a triangle or rows has no bound")
    axes = to_numpy(frame.axes)
    # An estimate will do: lengths along random sums of the other axes instead of along each.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(PROBES, axes.shape[1] - size))
    rest = factor.lengths((signs @ axes[:, size:].T).astype(factor.rows.dtype))
    mean = float(np.mean(rest)) / max(axes.shape[1] - size, 1)
    return _marginal_precision(factor, axes[:, :size]), mean


def _marginal_precision(factor: ThinFactor, axes: Matrix) -> Matrix:
    """The inverse of what a class's matrix is along some axes."""
    axes = axes / factor.deviations.astype(np.float64)[:, None]
    if factor.vectors is not None:
        axes = factor.vectors.T.astype(np.float64) @ axes
    axes = axes / factor.weights.astype(np.float64)[:, None]
    matrix = axes.T @ axes
    rows = factor.rows.astype(np.float64)
    if len(rows):
        signs = np.ones(len(rows)) if factor.signs is None else factor.signs
        along = rows @ axes
        matrix += along.T @ np.linalg.solve(np.diag(signs) - rows @ rows.T, along)
    return np.asarray(np.linalg.inv((matrix + matrix.T) / 2))
