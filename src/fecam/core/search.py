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
from fecam.core.hunt import MARGINS, Hunt
from fecam.core.leaning import Leaning, leans
from fecam.core.panel import AnyFactor, Classes, Found, Panel
from fecam.core.thin import ThinFactor
from fecam.core.threads import in_parallel

Matrix = NDArray[Any]
BySize = dict[int, tuple[list[int], Bounds]]

FEW = 32
"""A class of at most so many rows is cheaper to measure than to bound by monomials."""
THIN_SIZE = 64
"""Coordinates that bound classes without a triangle at first: fewer, for they lie farther apart."""
BLOCK_ROWS = 4096
"""At most so many queries are looked at together; an even number of blocks shares the work well."""
LEANING_ARRAYS = 4
"""So many times fewer queries where classes lean on a prior: their bounds have as many terms."""
SMALL_BLOCK = 256
"""Fewer queries are not shared out: that would take longer than it saves."""
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
        self.levels = frame_levels(axes.shape[1])
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
        full = self.levels[0]
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

    @cached_property
    def leeway(self) -> Matrix:
        """By how much the bound of each class with a triangle is lowered: see `Bounds.leeway`."""
        found = np.zeros(len(self.factors))
        for some, bounds in self.bounds.values():
            found[some] = bounds.leeway
        return found

    def triangle(self, position: int) -> FramedFactor:
        """The factor of a class that has a triangle."""
        return cast(FramedFactor, self.factors[position])

    def prepare(self) -> None:
        """Make what is made when first needed."""
        with np.errstate(over="ignore", invalid="ignore"):
            _ = self.further, self.leeway

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
                return Hunt(self, block, warmth=warmth, certain=certain).nearest(k)

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


def _rows(factor: AnyFactor) -> float:
    """How many rows a class is measured through: those of a factor without a bound count as 0."""
    if isinstance(factor, ThinFactor):
        return float(len(factor.rows))
    return math.inf if isinstance(factor, FramedFactor) else 0
