"""All classes of a model side by side, so that a block of queries meets them in a few products.

Classes are grouped by the form of their factors; each group knows how to measure a block. Nothing
here grows with the number of queries: they come in blocks, and so do the classes where their rows
would fill more than a block's worth of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from fecam.core.arrays import (
    Array,
    contiguous,
    namespace,
    row_slices,
    to_backend_of,
    to_float64,
    zeros,
)
from fecam.core.factors import Factor, FramedFactor, apply_whitening
from fecam.core.thin import ThinFactor

AnyFactor = Factor | FramedFactor | ThinFactor

BLOCK_BYTES = 32 * 2**20
"""What the largest temporary array of one block may take."""
CACHE_BYTES = 2**20
"""What is used again at once should take no more: then it need not come from memory."""
REACH = 5.0
"""A class farther than the nearest by so many temperatures, 1/148 as likely, counts as unlikely."""


class Found(NamedTuple):
    """The nearest classes of each query."""

    order: Array
    """Their positions, nearest first."""
    distances: Array
    weights: Array
    """Of all likely classes together, that of the nearest being one; zero if nobody asked."""


class Group(Protocol):
    """Classes with factors of one form."""

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class of the group, without their scales."""


class Classes:
    """Factors of any form around centres, which are given in the coordinates of the queries."""

    def __init__(self, factors: Sequence[AnyFactor], centres: Array) -> None:
        kinds: dict[tuple[Any, ...], list[int]] = {}
        for position, factor in enumerate(factors):
            kinds.setdefault(_kind(factor), []).append(position)
        self._groups: list[Group] = []
        for (kind, *_), positions in kinds.items():
            places = namespace(centres).stack([centres[at, :] for at in positions], axis=0)
            self._groups.append(kind([factors[at] for at in positions], places))
        order = np.argsort([at for positions in kinds.values() for at in positions])
        self._order = None if len(kinds) == 1 else to_backend_of(order, centres)

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class, without their scales."""
        xp = namespace(block)
        parts = [xp.astype(group.measure(block), block.dtype) for group in self._groups]
        if self._order is None:
            return parts[0]
        return xp.take(xp.concat(parts, axis=1), self._order, axis=1)


class Panel:
    """All classes of a model, in their order."""

    def __init__(self, factors: Sequence[AnyFactor], dtype: Any) -> None:
        xp = namespace(factors[0].centre)
        centres = xp.stack([to_float64(factor.centre) for factor in factors], axis=0)
        # Far from zero, rounded coordinates would drown the differences between classes: so all
        # are shifted by a centre in the middle before anything is rounded.
        self.origin = middle(centres)
        self.centres = xp.astype(centres - self.origin, dtype)
        scales = xp.asarray([factor.scale for factor in factors], device=device(centres))
        self.scales = xp.astype(scales, dtype)
        self.factors = list(factors)
        self._classes = Classes(self.factors, self.centres)

    @property
    def block_rows(self) -> int:
        """How many queries at most are looked at together."""
        count, n_features = self.centres.shape
        return int(max(1, BLOCK_BYTES // (8 * max(count, n_features))))

    def shifted(self, queries: Array) -> Array:
        """Queries around the origin of the panel, in the precision of the model."""
        xp = namespace(queries)
        origin = xp.astype(self.origin, queries.dtype)
        return xp.astype(queries - origin, self.centres.dtype, copy=False)

    def blocks(self, queries: Array) -> Iterator[Array]:
        """The queries in blocks, shifted."""
        for some in row_slices(queries.shape[0], self.block_rows):
            yield self.shifted(queries[some, :])

    def distances(self, queries: Array) -> Array:
        """The squared distance of each query (row) to each class (column)."""
        parts = [self.measure(block) for block in self.blocks(queries)]
        return parts[0] if len(parts) == 1 else namespace(queries).concat(parts, axis=0)

    def measure(self, block: Array) -> Array:
        """The squared distances of one block."""
        return self._classes.measure(block) * self.scales

    def find(self, queries: Array, k: int, warmth: float = 0.0) -> Found:
        """The ``k`` nearest classes of each query; of a temperature the weights of the likely."""
        xp = namespace(queries)
        found = []
        for block in self.blocks(queries):
            distances = self.measure(block)
            order = nearest(distances, k)
            ranked = xp.take_along_axis(distances, order, axis=1)
            found.append(Found(order, ranked, total_weight(distances, warmth)))
        return Found(*(xp.concat(parts) for parts in zip(*found, strict=True)))


def middle(centres: Array) -> Array:
    """A point in the midst of most centres, however far away some lie."""
    half = centres.shape[0] // 2
    if isinstance(centres, np.ndarray):  # the array API only knows how to sort all of them
        return np.partition(centres, half, axis=0)[half, :]
    return namespace(centres).sort(centres, axis=0)[half, :]


def nearest(distances: Array, k: int) -> Array:
    """The columns of the ``k`` smallest distances of each row, nearest first; ties by column.

    Distances that differ by no more than rounding are a tie: in a product with many columns, two
    columns that are the same need not come out the same.
    """
    xp = namespace(distances)
    rounding = 1 + 32 * float(xp.finfo(distances.dtype).eps)
    if k == 1:
        tied = distances <= xp.min(distances, axis=1, keepdims=True) * rounding
        return xp.argmax(xp.astype(tied, xp.int8), axis=1)[:, None]
    order = xp.argsort(distances, axis=1, stable=True)
    ranked = xp.take_along_axis(distances, order, axis=1)
    apart = xp.astype(ranked[:, 1:] > ranked[:, :-1] * rounding, order.dtype)
    group = xp.concat([0 * order[:, :1], xp.cumulative_sum(apart, axis=1)], axis=1)
    again = xp.argsort(group * distances.shape[1] + order, axis=1)
    return xp.take_along_axis(order, again, axis=1)[:, :k]


def runs(columns: NDArray[Any]) -> Iterator[tuple[int, slice]]:
    """Where the same number stands again and again: that number, and from where to where.

    >>> list(runs(np.array([3, 3, 5])))
    [(3, slice(0, 2, None)), (5, slice(2, 3, None))]
    """
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    edges = pairwise([*starts.tolist(), len(columns)])
    for position, (start, end) in zip(columns[starts].tolist(), edges, strict=True):
        yield position, slice(start, end)


def likelihoods(distances: Array, warmth: float) -> Array:
    """How likely classes are, by their distances: the nearest of a row is one, unlikely ones zero.

    >>> likelihoods(np.array([[4.0, 2.0, 2.5, np.inf]]), 0.25).round(3).tolist()
    [[0.0, 1.0, 0.135, 0.0]]
    """
    xp = namespace(distances)
    farther = (distances - xp.min(distances, axis=1, keepdims=True)) / warmth
    return xp.exp(-farther) * xp.astype(farther <= REACH, distances.dtype)


def total_weight(distances: Array, warmth: float) -> Array:
    """How likely all classes are together; zero without a temperature."""
    if not warmth:
        return 0 * distances[:, 0]
    return namespace(distances).sum(likelihoods(distances, warmth), axis=1)


def _kind(factor: AnyFactor) -> tuple[Any, ...]:
    if isinstance(factor, FramedFactor):
        return FramedGroup, id(factor.frame)
    if isinstance(factor, ThinFactor):
        rows = 1 << max(factor.rows.shape[0] - 1, 0).bit_length()  # padded to as many
        kind = ThinGroup if factor.vectors is None else LeaningGroup
        return kind, rows, id(factor.vectors), factor.signs is None, str(factor.rows.dtype)
    return AlikeGroup, id(factor.whitening)


class AlikeGroup:
    r"""Classes under one whitening: whiten once, then one product for all distances.

    :math:`\lVert a - b \rVert^2 = \lVert a \rVert^2 - 2 a b^T + \lVert b \rVert^2` cancels badly
    in single precision, so this part runs in double; it is the cheap one.
    """

    def __init__(self, factors: list[Factor], centres: Array) -> None:
        self.whitening, self.centres = factors[0].whitening, centres

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class, without their scales."""
        xp = namespace(block)
        if self.centres.shape[0] == 1:
            white = apply_whitening(block - self.centres, self.whitening)
            return xp.sum(white * white, axis=1)[:, None]
        a = to_float64(apply_whitening(block, self.whitening))
        b = to_float64(apply_whitening(self.centres, self.whitening))
        square = xp.sum(a * a, axis=1)[:, None] - 2 * (a @ b.T) + xp.sum(b * b, axis=1)[None, :]
        return xp.maximum(square, 0 * square)


class FramedGroup:
    """Classes with triangles in one frame: turn the queries once, then one product a block."""

    def __init__(self, factors: list[FramedFactor], centres: Array) -> None:
        xp = namespace(centres)
        self.factors = factors
        self.axes = xp.astype(factors[0].frame.axes, centres.dtype)
        self.places = xp.astype(
            to_float64(centres) @ to_float64(factors[0].frame.axes), centres.dtype
        )

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class, without their scales."""
        turned = block @ self.axes
        columns = [
            factor.turned_lengths(turned - self.places[position, :])
            for position, factor in enumerate(self.factors)
        ]
        return namespace(block).stack(columns, axis=1)


class WeightedSquares:
    """The squared lengths of what lies between queries and centres, weighed for each centre."""

    def __init__(self, roots: Array, centres: Array) -> None:
        xp = namespace(centres)
        self.omega = to_float64(roots) ** 2
        self.linear = -2 * self.omega * to_float64(centres)
        self.constant = xp.sum(self.omega * to_float64(centres) ** 2, axis=1)

    def measure(self, block: Array) -> Array:
        """(queries, centres), in double precision."""
        xp = namespace(block)
        fine = to_float64(block)
        terms = (fine * fine) @ self.omega.T + self.constant
        square = terms + fine @ self.linear.T
        # What is zero but for rounding is zero: for two classes alike, nothing else is a tie.
        return xp.where(square > 64 * xp.finfo(terms.dtype).eps * terms, square, 0 * square)


class Squares:
    """The squares along a few rows of each class, added up by their signs."""

    def __init__(self, rows: list[Array], signs: list[Array | None], centres: Array) -> None:
        padded = _padded(rows)
        count, self.few, n_features = padded.shape
        xp = namespace(padded)
        self.columns = contiguous(xp.reshape(padded, (count * self.few, n_features)).T)
        self.signs = _signs(signs, self.few)
        middle = xp.astype(centres, padded.dtype)
        self.bias = (padded @ middle[:, :, None])[:, :, 0]

    def measure(self, block: Array) -> Array:
        """(queries, classes), in double precision."""
        xp = namespace(block)
        block = xp.astype(block, self.columns.dtype, copy=False)
        few = self.few
        most = CACHE_BYTES if isinstance(block, np.ndarray) else BLOCK_BYTES
        step = max(1, most // (4 * max(block.shape[0] * few, 1)))
        parts = []
        for some in row_slices(self.bias.shape[0], step):
            columns = self.columns[:, some.start * few : some.stop * few]
            shape = (block.shape[0], some.stop - some.start, few)
            along = xp.reshape(block @ columns, shape) - self.bias[some, :]
            signed = along if self.signs is None else along * self.signs[some, :]
            parts.append(xp.vecdot(along, signed))
        return to_float64(xp.concat(parts, axis=1))


class ThinGroup:
    r"""Classes of few samples without a prior.

    A distance is :math:`\sum_j \omega_j (x_j - c_j)^2` less a few squares; both come from products
    with all classes at once.
    """

    def __init__(self, factors: list[ThinFactor], centres: Array) -> None:
        xp = namespace(centres)
        roots = [to_float64(one.deviations) * to_float64(one.weights) for one in factors]
        self.weighted = WeightedSquares(xp.stack(roots, axis=0), centres)
        rows = [
            one.rows * xp.astype(root, one.rows.dtype)
            for one, root in zip(factors, roots, strict=True)
        ]
        self.along = Squares(rows, [one.signs for one in factors], centres)

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class, without their scales."""
        square = self.weighted.measure(block) - self.along.measure(block)
        return namespace(block).maximum(square, 0 * square)


class LeaningGroup:
    """Classes of few samples that lean on a prior: through the eigenvectors they share.

    Several centres of one class share its rotation as well.
    """

    def __init__(self, factors: list[ThinFactor], centres: Array) -> None:
        xp = namespace(centres)
        kin: dict[int, list[int]] = {}
        for position, factor in enumerate(factors):
            kin.setdefault(id(factor.deviations), []).append(position)
        self.kin = None if len(kin) == len(factors) else list(kin.values())
        self.factors, self.vectors = factors, factors[0].vectors
        self.centres = centres
        self.deviations = xp.stack([one.deviations for one in factors], axis=0)
        self.weights = xp.stack([one.weights for one in factors], axis=0)
        self.rows = _padded([one.rows for one in factors])
        self.signs = _signs([one.signs for one in factors], self.rows.shape[1])

    def measure(self, block: Array) -> Array:
        """The squared distance of each row to each class, without their scales."""
        xp = namespace(block)
        if self.kin is not None:
            columns = {at: found for some in self.kin for at, found in self._to_kin(block, some)}
            return xp.stack([columns[at] for at in range(len(columns))], axis=1)
        count, n_features = self.centres.shape
        step = max(1, BLOCK_BYTES // (8 * block.shape[0] * n_features))
        parts = [
            self.between(block[None, :, :] - self.centres[some, None, :], some)
            for some in row_slices(count, step)
        ]
        return xp.concat(parts, axis=0).T

    def between(self, differences: Array, some: slice) -> Array:
        """The squared lengths of (classes, rows, width) differences of some classes."""
        xp = namespace(differences)
        u = differences * self.deviations[some, None, :]
        u = xp.reshape(xp.reshape(u, (-1, u.shape[2])) @ self.vectors, u.shape)
        u = u * self.weights[some, None, :]
        signs = None if self.signs is None else self.signs[some, None, :]
        return _less_squares(u, self.rows[some, :, :], signs)

    def _to_kin(self, block: Array, some: list[int]) -> Iterator[tuple[int, Array]]:
        """The squared lengths from each row to each of several centres of one class."""
        one = self.factors[some[0]]
        turned = ((block * one.deviations) @ self.vectors) * one.weights
        for at in some:
            centre = ((self.centres[at, :] * one.deviations) @ self.vectors) * one.weights
            yield at, _less_squares(turned - centre, one.rows, one.signs)


def _less_squares(u: Array, rows: Array, signs: Array | None) -> Array:
    """The squared lengths of vectors, less their squares along some rows."""
    xp = namespace(u)
    along = u @ xp.matrix_transpose(rows)
    along = along * along
    along = along if signs is None else along * signs
    square = to_float64(xp.sum(u * u, axis=-1)) - to_float64(xp.sum(along, axis=-1))
    return xp.maximum(square, 0 * square)


def _padded(rows: list[Array]) -> Array:
    """Rows of several classes, filled up with zeros to as many each."""
    xp = namespace(rows[0])
    most = max(some.shape[0] for some in rows)
    full = [
        some
        if some.shape[0] == most
        else xp.concat([some, zeros((most - some.shape[0], some.shape[1]), some)], axis=0)
        for some in rows
    ]
    return xp.stack(full, axis=0)


def _signs(given: list[Array | None], most: int) -> Array | None:
    """The signs of the rows: one is negative, wherever it stands; without any, all are positive."""
    some = next((signs for signs in given if signs is not None), None)
    if some is None:
        return None
    xp = namespace(some)
    ones = 1 + zeros((most,), some)
    padded = [
        ones if signs is None else xp.concat([signs, zeros((most - signs.shape[0],), signs)])
        for signs in given
    ]
    return xp.stack(padded, axis=0)
