"""What is derived from a matrix to measure a distance fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fecam.core.arrays import (
    Array,
    add_to_diagonal,
    cholesky,
    diagonal,
    invert_lower_triangle,
    namespace,
    to_float64,
    zeros,
)
from fecam.errors import SingularMatrixError

FIRST_LEVEL = 128
"""Columns of the first block of a triangle: so many, or a quarter of all if that is less."""
LEVEL_GROWTH = 1.5
"""Each further block ends so many times as far as the one before."""


FLOOR_SHARE = 0.9
"""How much of the highest possible floor is taken: at the very highest a triangle is singular."""


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

    def lengths(self, differences: Array) -> Array:
        """The squared distances of rows that lie so far from the centre, without the scale."""
        white = apply_whitening(differences, self.whitening)
        return to_float64(namespace(white).sum(white * white, axis=-1))

    def precision(self, columns: Array) -> Array:
        r""":math:`\Sigma^{-1}` times columns."""
        if self.whitening is None:
            return columns
        whitening = to_float64(self.whitening)
        if whitening.ndim == 1:
            return whitening[:, None] ** 2 * columns
        return whitening @ (whitening.T @ columns)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Coordinates that all classes share: those in which samples differ most come first."""

    axes: Array
    """Orthogonal; a column is an axis."""
    classes: int
    """How many classes it was made for."""


@dataclass(frozen=True, slots=True, eq=False)
class FramedFactor:
    r"""One class in the coordinates of a frame, where its whitening is triangular.

    The squared distance is :math:`f\,\lVert z_{>m} \rVert^2 + \lVert z\,T \rVert^2` with :math:`T`
    upper triangular: so the first coordinates alone tell the first terms of a sum that only grows.
    The *floor* :math:`f` takes out of the rest, of which nothing is known by then, what every
    direction in it has at least. The columns of :math:`T` are kept in blocks, without the zeros.
    """

    centre: Array
    blocks: tuple[Array, ...]
    """The columns of the triangle one after another, each block down to its last row."""
    floor: float
    frame: Frame
    scale: float = 1.0

    def lengths(self, differences: Array) -> Array:
        """The squared distances of rows that lie so far from the centre, without the scale."""
        turned = differences @ namespace(differences).astype(self.frame.axes, differences.dtype)
        return self.turned_lengths(turned)

    def turned_lengths(self, turned: Array) -> Array:
        """The same for differences that are given in the coordinates of the frame."""
        xp = namespace(turned)
        rest = turned[..., self.blocks[0].shape[0] :]
        square = self.floor * to_float64(xp.vecdot(rest, rest))
        for block in self.blocks:
            white = turned[..., : block.shape[0]] @ block
            square = square + to_float64(xp.vecdot(white, white))
        return square

    def precision(self, columns: Array) -> Array:
        """The matrix of the squared distance times columns."""
        xp = namespace(columns)
        axes, first = to_float64(self.frame.axes), self.blocks[0].shape[0]
        turned = axes.T @ columns
        found = xp.concat([0 * turned[:first, :], self.floor * turned[first:, :]], axis=0)
        for block in map(to_float64, self.blocks):
            high = block.shape[0]
            part = block @ (block.T @ turned[:high, :])
            found = found + xp.concat([part, 0 * turned[high:, :]], axis=0)
        return axes @ found


def make_frame(within: Array, centres: Array) -> Frame:
    """The frame for classes with these centres and this covariance around them."""
    xp = namespace(within)
    apart = centres - xp.mean(centres, axis=0)
    between = apart.T @ apart / centres.shape[0]
    _, vectors = xp.linalg.eigh(within + between)
    return Frame(xp.asarray(xp.flip(vectors, axis=1), copy=True), centres.shape[0])


def frame_levels(n_features: int) -> list[int]:
    """Where the blocks of a triangle end: each is a step of a search that mostly ends early."""
    ends = [max(min(FIRST_LEVEL, n_features // 4), 1)]
    while ends[-1] < n_features:
        ends.append(min(math.ceil(ends[-1] * LEVEL_GROWTH), n_features))
    return ends


def framed_factor(
    covariance: Array, centre: Array, frame: Frame, dtype: object, scale: float = 1.0
) -> FramedFactor | None:
    """The factor of a class in a frame; None if its matrix has no Cholesky factor to be trusted."""
    xp = namespace(covariance)
    axes = frame.axes
    turned = axes.T @ covariance @ axes
    lower = _cholesky((turned + turned.T) / 2, _noise(covariance, float(xp.finfo(dtype).eps)))
    if lower is None:
        return None
    whitening = invert_lower_triangle(lower).T
    ends = frame_levels(covariance.shape[0])
    floor, lifted = _lifted(whitening, turned, ends[0])
    whitening = xp.astype(whitening if lifted is None else lifted, dtype)
    blocks = tuple(
        xp.asarray(whitening[:end, start:end], copy=True)
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )
    return FramedFactor(centre, blocks, floor, frame, scale)


def _lifted(whitening: Array, covariance: Array, start: int) -> tuple[float, Array | None]:
    """A floor for the coordinates from ``start`` on, and the triangle of what stands above it."""
    xp = namespace(whitening)
    rest = covariance[start:, start:]
    if rest.shape[0] == 0:
        return 0.0, None
    along = xp.ones_like(rest[:, 0])
    for _ in range(8):  # towards the direction in which the rest varies most
        along = rest @ along
        along = along / xp.linalg.vector_norm(along)
    floor = FLOOR_SHARE / float(xp.vecdot(along, rest @ along))
    precision = whitening @ whitening.T
    place = xp.concat([zeros((start,), precision), xp.ones_like(rest[:, 0])])
    # Cholesky's factor from the last coordinate backwards; there is none if the floor is too high.
    upper = cholesky(xp.flip(add_to_diagonal(precision, -floor * place)))
    return (0.0, None) if upper is None else (floor, xp.flip(upper))


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
