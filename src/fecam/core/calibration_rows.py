r"""Measurements of single rows that were left out, from which probabilities and novelty follow.

While a batch is learned, some of its rows are measured under the model just updated, as if it had
not seen them. For each measured row its class keeps `N_COLUMNS` numbers:

- the degrees of freedom and the number of classes of the model at the time;
- the four scores of `fecam.core.novelty`, zero with fewer than three classes;
- the loss :math:`-\log p_y` for each value of `SHARPNESS_GRID`.

A sample cannot be computed from them. Classes that are learned further or merged keep the rows of
both parts, at most `fecam.core.statistics.MAX_CALIBRATION_ROWS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.core.statistics import CalibrationRows

Floats = NDArray[np.float64]

N_SCORES = 4
"""Number of novelty scores per row."""
SHARPNESS_GRID: Floats = np.geomspace(2.0, 200.0, 12)
"""Values of the sharpness of the softmax at which losses are measured."""
N_COLUMNS = 2 + N_SCORES + len(SHARPNESS_GRID)
"""Numbers per measured row."""
_SPLITS = np.cumsum([1, 1, N_SCORES])


class Measurements(NamedTuple):
    """Columns of measured rows."""

    dof: Floats
    n_classes: Floats
    scores: Floats
    losses: Floats


def columns_of(rows: CalibrationRows) -> Measurements:
    """Return the columns of the measured rows of a class."""
    dof, n_classes, *others = np.split(np.asarray(rows, np.float64), _SPLITS, axis=1)
    return Measurements(dof[:, 0], n_classes[:, 0], *others)


def pack_rows(dof: int, n_classes: int, scores: Floats, losses: Floats) -> CalibrationRows:
    """Return measured rows of one class as one matrix; without rows that are not finite."""
    model = np.tile([float(dof), float(n_classes)], (len(losses), 1))
    rows = np.concatenate([model, scores, losses], axis=1).astype(np.float32)
    return rows[np.isfinite(rows).all(axis=1)]


def left_out_errors(rows: CalibrationRows) -> NDArray[np.bool_]:
    """Return for each measured row whether a rival was nearer than its own class.

    With a nearer rival, the loss exceeds log 2 at any sharpness. Without one, it tends to zero.
    """
    return np.asarray(columns_of(rows).losses[:, -1] > math.log(2))


def last_model(classes: Iterable[CalibrationRows | None]) -> tuple[float, float]:
    """Return degrees of freedom and number of classes of the latest model that measured rows."""
    latest = [rows[:, :2].max(axis=0) for rows in classes if rows is not None and len(rows)]
    dof, n_classes = np.max(latest, axis=0) if latest else (0, 0)
    return float(dof), float(n_classes)
