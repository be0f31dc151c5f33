"""`Hunt`: one block of queries on its way through the classes of a search.

Classes whose sums of terms grow beyond a limit are left behind, by proof. What is left is measured
as well as it is worth: exactly if it may be nearest, closely if it only counts for a probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.panel import REACH, Found, nearest, runs, total_weight

if TYPE_CHECKING:
    from fecam.core.search import Search

Matrix = NDArray[Any]

FINE = 0.25
"""So many temperatures a distance may be unsure by, where it only counts for a probability."""
SLACK = 1e-4
"""How far a sum may lie above a distance before it counts as larger: more than any rounding."""
TIE = 1e-5
"""Distances closer than this are measured again, in the same way."""
MARGINS = (0.16, 0.2, 0.1, 0.04, 0.02)
"""How far above the sum of the seemingly nearest class a shortlist looks, level by level."""


class Hunt:
    """One block of queries on its way through the classes."""

    def __init__(
        self, search: Search, block: Matrix, *, warmth: float = 0.0, certain: bool = True
    ) -> None:
        self.search, self.block, self.warmth, self.certain = search, block, warmth, certain
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
            places, asked = search.leaning.places, search.leaning.asked(block)
            # Many classes are likely, and to bound them all is cheaper than to measure these.
            proof = certain or warmth > 0 or search.leaning.is_quick
            self.known = search.leaning.bound(asked) if proof else None
            estimate = search.leaning.estimate(asked) if self.known is None else self.known.estimate
            self.estimates[:, places] = estimate * search.scales[places]
            if self.known is not None:
                self.lower[:, places] = self.known.lower * search.scales[places]
        if search.direct:
            exact = search.measured.measure(block) * search.scales[search.direct]
            self.distances[:, search.direct] = exact
            self.lower[:, search.direct] = self.estimates[:, search.direct] = exact
        # Of features so small that a bound overflows, nothing is known before they are measured.
        for array in (self.lower, self.estimates):
            if not np.isfinite(np.sum(array)):
                np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def nearest(self, k: int) -> Found:
        """The ``k`` nearest classes of each query, and the weights of all that are likely."""
        search, warmth, self.single = self.search, self.warmth, k == 1
        if self.single:
            guesses = np.argmin(self.estimates, axis=1)[:, None]
        else:
            guesses = np.argpartition(self.estimates, k - 1, axis=1)[:, :k]
        self.farthest = self.limit = np.full(len(self.block), np.inf)
        self.guessed = np.zeros(self.lower.shape, bool)
        np.put_along_axis(self.guessed, guesses, True, axis=1)
        # A shortlist goes by the sums of the guesses: they are followed along with the others.
        asked = self.guessed if self.certain else self.guessed & ~search.is_framed
        self._settle(asked.copy(), guess=True)
        measured = np.take_along_axis(self.distances, guesses, axis=1)
        self.farthest = measured.max(axis=1)
        self.limit = np.maximum(self.farthest, measured.min(axis=1) + REACH * warmth)
        follow = self.lower <= (self.limit * (1 + SLACK)).astype(self.lower.dtype)[:, None]
        if not self.certain:
            nearest_ones = np.take_along_axis(self.estimates, guesses, axis=1).max(axis=1)
            likely = (nearest_ones + REACH * warmth)[:, None]
            likely = likely + np.abs(likely) * search.margins
            if search.bounds:
                likely = likely + 2 * self._leeway(*np.ogrid[: len(follow), : follow.shape[1]])
            follow &= self.estimates <= likely
        follow |= self.guessed  # whatever the estimates are: near a centre they may be below zero
        follow &= ~asked  # but those that are measured already
        self._settle(follow, guess=False)
        order = np.argsort(self.distances, axis=1)[:, :k] if k > 1 else self._first()
        tied = self._settle_ties(np.take_along_axis(self.distances, order, axis=1))
        order[tied] = nearest(self.distances[tied].astype(self.block.dtype), k)
        ranked = np.take_along_axis(self.distances, order, axis=1)
        return Found(order, ranked, total_weight(self.distances, warmth))

    def _first(self) -> Matrix:
        return np.asarray(np.argmin(self.distances, axis=1)[:, None])

    def _settle_ties(self, ranked: Matrix) -> Matrix:
        """Measure near ties again, each class alone: so classes that are the same stay a tie.

        Given are the smallest distances of each row in their order, returned are rows with ties.
        """
        close = self.distances <= ranked[:, -1:] * (1 + TIE)
        tied = np.count_nonzero(close, axis=1) > ranked.shape[1]
        tied |= np.any(ranked[:, 1:] <= ranked[:, :-1] * (1 + TIE), axis=1)
        rows = np.flatnonzero(tied)
        if len(rows):
            for position in np.flatnonzero(close[rows].any(axis=0)).tolist():
                some = rows[np.isfinite(self.distances[rows, position])]
                self._measure_alone(position, some)
        return rows

    def _settle(self, asked: Matrix, *, guess: bool) -> None:
        """Measure classes for the rows they are asked for, but where they prove too far away."""
        search = self.search
        asked[:, search.direct] = False
        self._settle_leaning(asked, guess=guess)
        columns, rows = np.nonzero(asked.T)  # class by class
        framed = search.is_framed[columns]
        thin = rows[~framed]
        for position, some in runs(columns[~framed]):
            self._settle_thin(position, thin[some], guess=guess)
        if framed.any():
            (self._measure if guess else self._follow)(rows[framed], columns[framed])

    def _settle_thin(self, position: int, rows: Matrix, *, guess: bool) -> None:
        """Measure a class of few samples that leans on no prior."""
        search = self.search
        if self.certain and not guess and position in search.further:
            rows = self._look_further(position, rows)
        self._measure_alone(position, rows)
        if self.single and not guess:
            farthest = self.distances[rows, position] + REACH * self.warmth
            self.limit[rows] = np.minimum(self.limit[rows], farthest)

    def _measure_alone(self, position: int, rows: Matrix) -> None:
        """Measure one class for some rows, the same way for each class."""
        apart = self.block[rows]
        apart -= self.search.centres[position]
        found = self.search.factors[position].lengths(apart) * self.search.scales[position]
        self.distances[rows, position] = found

    def _settle_leaning(self, asked: Matrix, *, guess: bool) -> None:
        """Measure classes that lean on a prior.

        Of those that only count for a probability, a good estimate will do.
        """
        leaning = self.search.leaning
        if leaning is None:
            return
        rows, columns = np.nonzero(asked[:, leaning.places])
        asked[:, leaning.places] = False
        places = leaning.places[columns]
        scales = self.search.scales[places]
        if self.warmth and not guess and self.known is not None:
            lower, upper, estimate = (one[rows, columns] * scales for one in self.known)
            only = lower > self.farthest[rows] * (1 + SLACK)
            enough = only & (upper - lower <= FINE * self.warmth)
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

    def _measure(self, rows: Matrix, columns: Matrix) -> None:
        """Measure pairs of a row and a class with a triangle; they come class by class."""
        search = self.search
        for position, some in runs(columns):
            factor, asked, scale = search.triangle(position), rows[some], search.scales[position]
            apart = self.turned[asked]
            apart -= search.places[position]
            terms = [_squares(apart[:, : len(block)] @ block) for block in factor.blocks]
            rest = factor.floor * _squares(apart[:, len(factor.blocks[0]) :])
            self.distances[asked, position] = scale * np.sum([*terms, rest], axis=0, dtype=float)

    def _follow(self, rows: Matrix, columns: Matrix) -> None:
        """The same, but only of those that are left at the end.

        All go one level further before any goes on to the next, so that what is left of them is
        looked at for all classes at once.
        """
        search = self.search
        lower = self.lower[rows, columns].astype(np.float64)
        beyond = np.zeros(len(rows))
        for level in range(1, len(search.levels)):
            beyond += search.scales[columns] * self._terms(level, rows, columns)
            keep = np.flatnonzero(self._may_win(lower + beyond, level, rows, columns))
            rows, columns, lower, beyond = rows[keep], columns[keep], lower[keep], beyond[keep]
        # Bounds are lowered by what rounding could add. Where only a probability is at stake, it is
        # enough to take that back; of what may be nearest, the first terms are measured.
        near = np.flatnonzero(lower + beyond <= self.farthest[rows] * (1 + SLACK))
        first = self._terms(0, rows[near], columns[near])
        found = lower + beyond + self._leeway(rows, columns)
        found[near] = beyond[near] + search.scales[columns[near]] * first
        self.distances[rows, columns] = found

    def _terms(self, level: int, rows: Matrix, columns: Matrix) -> Matrix:
        """What a level adds to the squared distances of pairs; the first has the floor, too."""
        search = self.search
        found = np.empty(len(rows))
        high = search.levels[level]
        fetched = high if level else self.turned.shape[1]
        turned, places = self.turned[:, :fetched], search.places[:, :fetched]
        for position, some in runs(columns):
            factor = search.triangle(position)
            apart = turned[rows[some]]
            apart -= places[position]
            found[some] = _squares(apart[:, :high] @ factor.blocks[level])
            if not level:
                found[some] += factor.floor * _squares(apart[:, high:])
        return found

    def _leeway(self, rows: Matrix, columns: Matrix) -> Matrix:
        """By how much bounds, and the estimates made of them, were lowered for some pairs."""
        search, size = self.search, self.search.levels[0]
        squares = _squares(self.turned[:, :size])[rows] + _squares(search.places[:, :size])[columns]
        return np.asarray(search.leeway[columns] * squares)

    def _may_win(self, sums: Matrix, level: int, rows: Matrix, columns: Matrix) -> Matrix:
        """Which sums are small enough for their classes to be followed further."""
        keep = sums <= self.limit[rows] * (1 + SLACK)
        if not self.certain:
            # The last margins are for the last levels, however many there are.
            early = max(len(self.search.levels) - len(MARGINS), 0)
            guessed = self.guessed[rows, columns]
            best = np.zeros(len(self.block))
            np.maximum.at(best, rows[guessed], sums[guessed])
            best[best == 0] = np.inf  # of those whose guesses have no levels
            best += REACH * self.warmth  # what is likely counts for a probability
            keep &= sums <= best[rows] * (1 + MARGINS[max(level - early, 1)])
        return np.asarray(keep)


def _squares(rows: Matrix) -> Matrix:
    """Their squared lengths."""
    return np.asarray(np.vecdot(rows, rows))
