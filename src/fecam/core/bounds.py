"""Lower bounds of the distances to all classes, by one product with the queries' monomials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import cholesky, invert_lower_triangle, row_slices, to_numpy
from fecam.core.factors import Factor, Frame, FramedFactor, frame_levels
from fecam.core.panel import AnyFactor
from fecam.core.thin import ThinFactor

Matrix = NDArray[Any]

PROBES = 16
"""Random directions for a mean precision."""
BLOCK_BYTES = 8 * 2**20
"""What the monomials of some queries may take: little enough to stay in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """What is known of a class's distances by the leading coordinates of a frame."""

    precision: Matrix
    """That of the marginal distribution of these coordinates."""
    mean: float
    """The mean precision of all other coordinates."""
    further: Matrix | None = None
    """Of a class without a triangle: what more coordinates add, as columns of one."""
    noise: float = 0.0
    """What rounding may add to a product with it, for each unit of a query's length."""


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
        scales: Matrix,
        before: Bounds | None = None,
    ) -> None:
        self.size = size
        pairs = np.triu_indices(size)
        twice = 2.0 - np.eye(size)
        kept = {} if before is None else before._made
        self._made: dict[int, tuple[AnyFactor, Leading]] = {}
        self.forms = np.empty((1 + size + len(pairs[0]), len(factors)), places.dtype)
        self.rest = np.ascontiguousarray(places[:, size:].T)
        self.rest_square = np.vecdot(places[:, size:], places[:, size:])
        self.floors, self.means = np.zeros((2, len(factors)), places.dtype)
        self.leeway = np.zeros(len(factors))
        """How much bounds are lowered, for each unit of a query's and a place's squared length."""
        self.leading: list[Leading] = []
        for column, (original, factor) in enumerate(zip(originals, factors, strict=True)):
            if id(original) in kept:
                leading = kept[id(original)][1]
            else:
                leading = _leading(factor, frame, size, places.dtype)
            self._made[id(original)] = (original, leading)
            self.leading.append(leading)
            precision, scale = leading.precision, scales[column]
            place = places[column, :size].astype(np.float64)
            # What single precision may add to the product is taken off beforehand.
            error = 8 * np.finfo(places.dtype).eps * len(self.forms) ** 0.5
            error *= np.linalg.norm(precision)
            self.leeway[column] = scale * error
            lowered = precision - error * np.eye(size)
            self.forms[0, column] = scale * (place @ precision @ place - error * (place @ place))
            self.forms[1 : 1 + size, column] = -2 * scale * (precision @ place)
            self.forms[1 + size :, column] = scale * (lowered * twice)[pairs]
            self.means[column] = scale * leading.mean
            if isinstance(factor, FramedFactor):
                self.floors[column] = scale * factor.floor

    def measure(self, turned: Matrix) -> tuple[Matrix, Matrix]:
        """Bounds and estimates for queries that are given in the coordinates of the frame."""
        lower, estimates = np.empty((2, len(turned), self.forms.shape[1]), turned.dtype)
        # All of it in small blocks: what is used again at once need not come from memory.
        step = max(1, BLOCK_BYTES // (turned.itemsize * len(self.forms)))
        for some in row_slices(len(turned), step):
            first = np.matmul(_monomials(turned[some, : self.size]), self.forms, out=lower[some])
            rest = turned[some, self.size :]
            lengths = np.vecdot(rest, rest)[:, None] + self.rest_square
            square = rest @ self.rest
            square *= -2
            square += lengths
            np.maximum(square, 0, out=square)
            np.multiply(self.means, square, out=estimates[some])
            estimates[some] += first
            if self.floors.any():
                square -= 32 * np.finfo(turned.dtype).eps * lengths
                first += self.floors * np.maximum(square, 0, out=square)
        return lower, estimates


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


def _leading(factor: AnyFactor, frame: Frame, size: int, dtype: Any) -> Leading:
    """What is known of one class."""
    if isinstance(factor, FramedFactor):
        triangle = factor.blocks[0].astype(np.float64)
        rest = sum(float(np.sum(block[size:].astype(np.float64) ** 2)) for block in factor.blocks)
        n_features = factor.blocks[-1].shape[0]
        return Leading(triangle @ triangle.T, factor.floor + rest / max(n_features - size, 1))
    if isinstance(factor, Factor):
        raise TypeError("a factor without a triangle or rows has no bound")
    axes = to_numpy(frame.axes)
    # An estimate will do: lengths along random sums of the other axes instead of along each.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(PROBES, axes.shape[1] - size))
    rest = factor.lengths((signs @ axes[:, size:].T).astype(factor.rows.dtype))
    mean = float(np.mean(rest)) / max(axes.shape[1] - size, 1)
    triangle = _marginal_triangle(factor, axes[:, : frame_levels(axes.shape[1])[0]])
    first, further = triangle[:size, :size], triangle[:, size:]
    noise = 4 * np.finfo(dtype).eps * len(triangle) ** 0.5 * float(np.linalg.norm(further))
    return Leading(first @ first.T, mean, further.astype(factor.rows.dtype), noise)


def _marginal_triangle(factor: ThinFactor, axes: Matrix) -> Matrix:
    """The upper triangle whose square inverts what a class's matrix is along some axes."""
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
    lower = cholesky((matrix + matrix.T) / 2)
    if lower is None:  # of features so small that it overflowed: nothing is known
        return np.zeros_like(matrix)
    return np.asarray(invert_lower_triangle(lower).T)
