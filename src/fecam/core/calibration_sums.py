r"""Sums per class from leave-one-out measurements, from which probabilities and novelty follow.

The sums of a class hold

- the summed loss :math:`-\log p_y` of its measured rows, for each of `SHARPNESS_GRID`;
- all monomials up to degree three of the novelty scores of these rows, as samples of a *known*
  class (the row itself left out), and up to degree two as samples of an *unknown* one (its whole
  class left out);
- the degrees of freedom of the model at the time.

They add up when classes are learned further or merged, and go with the class when it is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.core.statistics import ClassStatistics

Floats = NDArray[np.float64]

SHARPNESS_GRID: Floats = np.geomspace(2.0, 200.0, 24)
"""Values of the sharpness of the softmax at which losses are summed."""
GROWTH = 1.25
"""Growth of the degrees of freedom since the last measurement after which a batch is measured. A
measurement derives the precisions of up to 64 classes, so it is not repeated for every batch."""
CHEAP = 2e8
"""Multiplications for deriving all precisions up to which every batch is measured."""
N_SCORES = 4
"""Number of novelty scores per row, see `fecam.core.novelty`."""


def _exponents(degree: int) -> list[tuple[int, ...]]:
    """Return the indices of the scores in each monomial, up to this degree."""
    scores = range(N_SCORES)
    return [m for k in range(degree + 1) for m in combinations_with_replacement(scores, k)]


KNOWN, UNKNOWN = _exponents(3), _exponents(2)
_LOSSES = len(SHARPNESS_GRID)
_SPLITS = np.cumsum([1, _LOSSES, 1, len(KNOWN)])
N_SUMS = 2 + _LOSSES + len(KNOWN) + len(UNKNOWN)
"""Length of the sums of a class."""


class Parts(NamedTuple):
    """The parts of the sums of a class."""

    n_rows: Floats
    losses: Floats
    dof: Floats
    known: Floats
    unknown: Floats


def parts_of(sums: Floats) -> Parts:
    """Return the parts of the sums of a class."""
    return Parts(*np.split(sums, _SPLITS))


def sum_rows(losses: Floats, known: Floats, unknown: Floats, dof: int) -> Floats:
    """Return the sums of measured rows of one class.

    ``losses`` has a row per measured row; ``known`` and ``unknown`` too, or none.
    """
    n_rows = len(losses)
    return np.concatenate(
        [
            [n_rows],
            losses.sum(axis=0),
            [float(dof) * n_rows],
            _monomials(known, KNOWN),
            _monomials(unknown, UNKNOWN),
        ]
    )


def without_losses(sums: Floats) -> Floats:
    """Return the sums without the losses, which hold for the distances they were measured with."""
    parts = parts_of(sums)
    return np.concatenate(parts._replace(losses=np.zeros(_LOSSES)))


def _monomials(scores: Floats, exponents: Sequence[tuple[int, ...]]) -> Floats:
    return np.array([np.prod(scores[:, list(m)], axis=1).sum() for m in exponents])


def left_out_losses(distances: Floats, own: int, expected: float) -> Floats:
    """Return the loss of each row at each value of `SHARPNESS_GRID`, (rows, values)."""
    relative = np.sqrt(np.maximum(distances, 0.0) / expected)
    excess = relative[:, own, None] - relative
    logits = SHARPNESS_GRID[None, :, None] * excess[:, None, :]
    peak = logits.max(axis=2)
    return np.asarray(peak + np.log(np.exp(logits - peak[:, :, None]).sum(axis=2)))


def is_due(classes: Iterable[ClassStatistics]) -> bool:
    """Return whether rows of the next batch should be measured: it is cheap, or long ago."""
    dof, measured_at, flops = 0, 0.0, 0
    for stats in classes:
        dof += stats.count - 1
        flops += stats.mean.shape[0] ** 3
        if stats.calibration is not None and stats.calibration[0] > 0:
            parts = parts_of(stats.calibration)
            measured_at = max(measured_at, float(parts.dof[0] / parts.n_rows[0]))
    return flops <= CHEAP or dof > GROWTH * measured_at


def fitted_sharpness(classes: Iterable[Floats | None]) -> float | None:
    r"""Return the sharpness :math:`\kappa` with the smallest loss; None if nothing was measured.

    A class counts with the square root of its number of rows, and in proportion to the degrees of
    freedom of the model that measured it: with few classes, a row has few rivals. The minimum over
    the grid is refined by a parabola in :math:`\log \kappa`.
    """
    total = np.zeros(_LOSSES)
    for sums in classes:
        if sums is not None and sums[0] > 0:
            parts = parts_of(sums)
            total += parts.losses * (parts.dof[0] / sums[0] / sums[0] ** 0.5)
    if not total.any():
        return None
    i = int(np.clip(np.argmin(total), 1, _LOSSES - 2))
    left, middle, right = total[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    step = math.log(SHARPNESS_GRID[1] / SHARPNESS_GRID[0])
    return float(SHARPNESS_GRID[i] * math.exp(step * float(np.clip(offset, -1.0, 1.0))))
