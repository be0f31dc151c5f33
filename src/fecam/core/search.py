r"""The nearest classes without measuring every class, and with proof.

A squared distance in the coordinates of a frame is a sum of squares, one a coordinate, that only
grows (see `fecam.core.factors`). So its first :math:`m` terms are a lower bound. They are a
quadratic form in :math:`m` numbers, that is, one product of the queries' monomials with all
classes at once, and far cheaper than the distances themselves. The class that looks nearest is then
measured exactly; a class whose bound lies above that distance cannot win. Those that can are
followed further, block by block, until the sum has grown too large or is the distance.

A class of few samples has no triangle; after its bound it is measured through its rows. Where it
leans on a prior, that takes a rotation of its own, so there is one more bound before
(`fecam.core.leaning`).

A *shortlist* does the same, but follows a class only while its sum stays within a margin of the
sum that the class that looks nearest had at the same point: no proof, but far fewer classes.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import row_slices, to_numpy
from fecam.core.bounds import Bounds, Leading, as_numpy
from fecam.core.factors import Frame, FramedFactor, frame_levels
from fecam.core.leaning import Leaning, leans
from fecam.core.panel import REACH, AnyFactor, Classes, Found, Panel, nearest, total_weight
from fecam.core.thin import ThinFactor
from fecam.core.threads import in_parallel

Matrix = NDArray[Any]
BySize = dict[int, tuple[list[int], Bounds]]

FEW = 32
"""A class of at most so many rows is cheaper to measure than to bound by monomials."""
FINE = 0.25
"""So many temperatures a distance may be unsure by, where it only counts for a probability."""
SLACK = 1e-4
"""How far a sum may lie above a distance before it counts as larger: more than any rounding."""
TIE = 1e-5
"""Distances closer than this are measured again, side by side."""
THIN_SIZE = 64
"""Coordinates that bound classes without a triangle at first: fewer, for they lie farther apart."""
BLOCK_ROWS = 4096
"""At most so many queries are looked at together; an even number of blocks shares the work well."""
LEANING_ARRAYS = 4
"""So many times fewer queries where classes lean on a prior: their bounds have as many terms."""
SMALL_BLOCK = 1024
"""Fewer queries are not shared out: that would take longer than it saves."""
MARGINS = (0.16, 0.2, 0.1, 0.04, 0.02)
"""How far above the sum of the seemingly nearest class a shortlist looks, level by level."""
THIN_MARGIN = 0.27
"""The same for the estimates of classes without levels."""
LEANING_MARGIN = 0.06
"""The same where they lean on a prior, which makes better estimates."""


class Search:
    """The classes of a panel, with what proves most of them too far away."""

    def __init__(self, panel: Panel, frame: Frame, before: Search | None = None) -> None:
        self.panel, self.frame = panel, frame
        axes = to_numpy(frame.axes)
        here = Frame(axes, frame.classes)
        self.factors = [as_numpy(factor, here) for factor in panel.factors]
        self.centres, scales = to_numpy(panel.centres), to_numpy(panel.scales)
        self.scales = scales.astype(np.float64)
        self.axes = axes.astype(self.centres.dtype)
        self.places = (self.centres.astype(np.float64) @ axes).astype(self.centres.dtype)
        self.lengths = np.linalg.norm(self.places, axis=1)
        positions = range(len(self.factors))
        leaning = [at for at in positions if leans(self.factors[at])]
        few = [at for at in positions if _rows(self.factors[at]) <= FEW]
        self.direct = np.setdiff1d(few, leaning).astype(int).tolist()
        # Only what was made of single classes is taken over, or each search would keep the last.
        again = before is not None and before.frame is frame and "bounds" in vars(before)
        self._kept = before.bounds if before is not None and again else {}
        self.is_framed = np.asarray([isinstance(one, FramedFactor) for one in self.factors])
        margins = np.where(self.is_framed, MARGINS[0], THIN_MARGIN)
        margins[leaning] = LEANING_MARGIN
        self.margins = margins.astype(self.centres.dtype)
        self.leaning: Leaning | None = None
        if leaning:
            with np.errstate(all="ignore"):  # of features so small, nothing is known beforehand
                self.leaning = Leaning(
                    leaning,
                    [cast(ThinFactor, self.factors[at]) for at in leaning],
                    self.centres[leaning],
                    [panel.factors[at] for at in leaning],
                    None if before is None else before.leaning,
                )
        if self.direct:
            some = [self.factors[at] for at in self.direct]
            self.measured = Classes(some, self.centres[self.direct])

    @cached_property
    def bounds(self) -> BySize:
        """By their size: positions of classes, and what bounds them; made when first needed."""
        full = frame_levels(self.centres.shape[1])[0]
        positions: dict[int, list[int]] = {}
        for at, factor in enumerate(self.factors):
            if _rows(factor) > FEW and not leans(factor):
                size = full if isinstance(factor, FramedFactor) else min(full, THIN_SIZE)
                positions.setdefault(size, []).append(at)
        kept, self._kept = self._kept, {}
        return {
            size: (
                some,
                Bounds(
                    self.frame,
                    size,
                    [self.panel.factors[at] for at in some],
                    [self.factors[at] for at in some],
                    self.places[some],
                    self.scales[some],
                    kept[size][1] if size in kept else None,
                ),
            )
            for size, some in positions.items()
        }

    @cached_property
    def further(self) -> dict[int, Leading]:
        """What bounds classes without a triangle once more, by their positions."""
        return {
            at: leading
            for some, bounds in self.bounds.values()
            for at, leading in zip(some, bounds.leading, strict=True)
            if leading.further is not None
        }

    def prepare(self) -> None:
        """Make what is made when first needed."""
        with np.errstate(over="ignore", invalid="ignore"):
            _ = self.further

    def is_worth_it(self, n: int) -> bool:
        """Whether so many queries are answered faster than by measuring every class.

        Triangles always are too much to read. Rows are few, so measuring them all is hard to beat:
        without a prior by less than hundreds of queries, with one by very few.
        """
        if self.is_framed.any():
            return True
        if self.leaning is not None:
            return n * len(self.factors) >= 250
        return n >= 600 and len(self.factors) >= 100

    def find(self, queries: Any, k: int, warmth: float = 0.0, *, certain: bool = True) -> Found:
        """The ``k`` nearest classes of each query; of a temperature the weights of the likely."""
        self.prepare()  # here, not by each thread

        def hunt(some: slice) -> Found:
            block = to_numpy(self.panel.shifted(queries[some, :]))
            with np.errstate(over="ignore", invalid="ignore"):
                return _Hunt(self, block, certain=certain).nearest(k, warmth)

        most = self.panel.block_rows
        if self.leaning is not None:
            most = max(1, most // LEANING_ARRAYS)
        rows = min(_block_rows(queries.shape[0]), most)
        found = in_parallel(hunt, row_slices(queries.shape[0], rows))
        return Found(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _block_rows(n: int) -> int:
    """Whatever the number of threads, so that no number depends on it."""
    if n < 2 * SMALL_BLOCK:
        return max(n, 1)
    pairs = -(-n // (2 * BLOCK_ROWS))
    return -(-n // (2 * pairs))


class _Hunt:
    """One block of queries on its way through the classes."""

    def __init__(self, search: Search, block: Matrix, *, certain: bool) -> None:
        self.search, self.block, self.certain = search, block, certain
        if search.bounds:
            self.turned = block @ search.axes
            self.lengths = np.linalg.norm(self.turned, axis=1)
        shape = (len(block), len(search.factors))
        self.lower, self.estimates = np.zeros((2, *shape), block.dtype)
        self.distances = np.full(shape, np.inf)
        for at, bounds in search.bounds.values():
            columns = slice(None) if len(at) == shape[1] else at
            self.lower[:, columns], self.estimates[:, columns] = bounds.measure(self.turned)
        if search.leaning is not None:
            self.known = search.leaning.bound(search.leaning.asked(block))
            places = search.leaning.places
            self.lower[:, places] = self.known.lower * search.scales[places]
            self.estimates[:, places] = self.known.estimate * search.scales[places]
        if search.direct:
            exact = search.measured.measure(block) * search.scales[search.direct]
            self.distances[:, search.direct] = exact
            self.lower[:, search.direct] = self.estimates[:, search.direct] = exact
        # Of features so small that a bound overflows, nothing is known before they are measured.
        for array in (self.lower, self.estimates):
            if not np.isfinite(np.sum(array)):
                np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def nearest(self, k: int, warmth: float) -> Found:
        """The ``k`` nearest classes of each query, and the weights of all that are likely."""
        reach = REACH * warmth
        self.fine = FINE * warmth
        if k == 1:
            guesses = np.argmin(self.estimates, axis=1)[:, None]
        else:
            guesses = np.argpartition(self.estimates, k - 1, axis=1)[:, :k]
        # What a shortlist goes by: the sums of the classes that look nearest, level by level.
        self.sums = np.zeros((len(self.block), len(MARGINS)))
        self.limit = np.full(len(self.block), np.inf)
        asked = np.zeros(self.lower.shape, bool)
        np.put_along_axis(asked, guesses, True, axis=1)
        asked[:, self.search.direct] = False
        self._settle_leaning(asked)
        for position in np.flatnonzero(asked.any(axis=0)).tolist():
            self._settle(position, np.flatnonzero(asked[:, position]), guess=True)
        measured = np.take_along_axis(self.distances, guesses, axis=1)
        self.farthest = measured.max(axis=1)
        self.limit = np.maximum(self.farthest, measured.min(axis=1) + reach)
        without_levels = ~self.search.is_framed[guesses].any(axis=1)
        self.sums[without_levels] = self.limit[without_levels, None]
        follow = self.lower <= (self.limit * (1 + SLACK)).astype(self.lower.dtype)[:, None]
        if not self.certain:
            nearest_ones = np.take_along_axis(self.estimates, guesses, axis=1).max(axis=1)
            follow &= self.estimates <= nearest_ones[:, None] * (1 + self.search.margins)
        # What is measured already.
        follow[:, self.search.direct] = False
        np.put_along_axis(follow, guesses, False, axis=1)
        self._settle_leaning(follow, roughly=warmth > 0)
        by_class = np.ascontiguousarray(follow.T)
        for position in np.flatnonzero(by_class.any(axis=1)).tolist():
            rows = np.flatnonzero(by_class[position])
            self._settle(position, rows, guess=False)
            if k == 1:
                farthest = self.distances[rows, position] + reach
                self.limit[rows] = np.minimum(self.limit[rows], farthest)
        order = np.argsort(self.distances, axis=1)[:, :k] if k > 1 else self._first()
        tied = self._settle_ties(np.take_along_axis(self.distances, order, axis=1))
        order[tied] = nearest(self.distances[tied].astype(self.block.dtype), k)
        ranked = np.take_along_axis(self.distances, order, axis=1)
        return Found(order, ranked, total_weight(self.distances, warmth))

    def _first(self) -> Matrix:
        return np.asarray(np.argmin(self.distances, axis=1)[:, None])

    def _settle_ties(self, ranked: Matrix) -> Matrix:
        """Measure near ties again, side by side: so classes that are the same stay a tie.

        Given are the smallest distances of each row in their order, returned are rows with ties.
        """
        close = self.distances <= ranked[:, -1:] * (1 + TIE)
        tied = np.count_nonzero(close, axis=1) > ranked.shape[1]
        tied |= np.any(ranked[:, 1:] <= ranked[:, :-1] * (1 + TIE), axis=1)
        rows = np.flatnonzero(tied)
        if len(rows):
            search, columns = self.search, np.flatnonzero(close[rows].any(axis=0))
            some = Classes([search.factors[at] for at in columns], search.centres[columns])
            again = some.measure(self.block[rows]) * search.scales[columns]
            old = self.distances[np.ix_(rows, columns)]
            self.distances[np.ix_(rows, columns)] = np.where(np.isinf(old), old, again)
        return rows

    def _may_win(self, sums: Matrix, rows: Any, level: int) -> Matrix:
        """Which sums are small enough for their classes to be followed further."""
        most = self.limit[rows] * (1 + SLACK)
        if not self.certain:
            most = np.minimum(most, self.sums[rows, level] * (1 + MARGINS[level]))
        return np.asarray(sums <= most)

    def _settle(self, position: int, rows: Matrix, *, guess: bool) -> None:
        """Measure a class for some rows, but those for which it proves to be too far away."""
        factor, scale = self.search.factors[position], self.search.scales[position]
        if self.certain and not guess and position in self.search.further:
            rows = self._look_further(position, rows)
        if isinstance(factor, FramedFactor):
            rows, square = self._follow(factor, position, rows, guess=guess)
            self.distances[rows, position] = square
        else:
            apart = self.block[rows]
            apart -= self.search.centres[position]
            self.distances[rows, position] = factor.lengths(apart) * scale

    def _settle_leaning(self, follow: Matrix, *, roughly: bool = False) -> None:
        """Measure classes that lean on a prior, where they are to be followed.

        ``roughly``: of those that only count for a probability, a good estimate will do.
        """
        leaning = self.search.leaning
        if leaning is None:
            return
        rows, columns = np.nonzero(follow[:, leaning.places])
        follow[:, leaning.places] = False
        places = leaning.places[columns]
        scales = self.search.scales[places]
        if roughly:
            lower, upper, estimate = (one[rows, columns] * scales for one in self.known)
            only = lower > self.farthest[rows] * (1 + SLACK)
            enough = only & (upper - lower <= self.fine)
            self.distances[rows[enough], places[enough]] = estimate[enough]
            left = ~enough
            rows, columns, places, scales = rows[left], columns[left], places[left], scales[left]
        self.distances[rows, places] = leaning.measure(self.block, rows, columns) * scales

    def _look_further(self, position: int, rows: Matrix) -> Matrix:
        """The rows that are left when some more coordinates have been looked at."""
        search, leading = self.search, self.search.further[position]
        assert leading.further is not None
        size = len(leading.further)
        apart = self.turned[:, :size][rows]
        apart -= search.places[position, :size]
        white = apart @ leading.further
        noise = leading.noise * (self.lengths[rows] + search.lengths[position])
        beyond = np.maximum(np.sqrt(np.vecdot(white, white)) - noise, 0)
        lower = self.lower[rows, position] + search.scales[position] * beyond * beyond
        return np.asarray(rows[lower <= self.limit[rows] * (1 + SLACK)])

    def _follow(
        self, factor: FramedFactor, position: int, rows: Matrix, *, guess: bool
    ) -> tuple[Matrix, Matrix]:
        """The rows that are left at the end of a triangle, and their distances."""
        scale, place = self.search.scales[position], self.search.places[position]
        rows = rows[self.lower[rows, position] <= self.limit[rows] * (1 + SLACK)]
        lower = self.lower[rows, position].astype(np.float64)
        beyond = np.zeros(len(rows))
        for level, block in enumerate(factor.blocks[1:], start=1):
            # Only as many coordinates are fetched as this level needs: most rows end here.
            high = block.shape[0]
            apart = self.turned[:, :high][rows]
            apart -= place[:high]
            white = apart @ block
            beyond += scale * np.vecdot(white, white)
            level = min(level, len(MARGINS) - 1)
            if guess:
                self.sums[rows, level] = np.maximum(self.sums[rows, level], lower + beyond)
                continue
            keep = np.flatnonzero(self._may_win(lower + beyond, rows, level))
            rows, lower, beyond = rows[keep], lower[keep], beyond[keep]
            if not len(rows):
                return rows, beyond
        apart = self.turned[rows] - place
        first = apart[:, : len(factor.blocks[0])] @ factor.blocks[0]
        rest = apart[:, len(factor.blocks[0]) :]
        return rows, beyond + scale * (
            np.vecdot(first, first) + factor.floor * np.vecdot(rest, rest)
        )


def _rows(factor: AnyFactor) -> float:
    """How many rows a class is measured through: those of a factor without a bound count as 0."""
    if isinstance(factor, ThinFactor):
        return float(len(factor.rows))
    return math.inf if isinstance(factor, FramedFactor) else 0
