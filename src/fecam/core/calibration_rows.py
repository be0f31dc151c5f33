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
PRIOR_ROWS = 60.0
"""Number of rows, evenly weighted, of which the reference sharpness decides: one that differs by a
factor of e costs one nat of mean loss. The cost falls with the square of the number of rows: the
reference fits most features, but is too large by a factor of two for texts, which hundreds of rows
show."""
GROWTH_POWER = 1.5
"""Power of the number of classes in the weight of a row. At 3, a few rows of small late classes
decide: on photographs with five-shot classes the calibration error is 0.07 instead of 0.05. At 1,
it is 0.07 instead of 0.06 on texts."""
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


def left_out_losses(distances: Floats, own: int | NDArray[np.intp], expected: float) -> Floats:
    """Return the loss of each row at each value of `SHARPNESS_GRID`, (rows, values).

    ``own`` are the positions of the rows' classes. Classes at infinity do not count.
    """
    relative = np.sqrt(np.maximum(distances, 0.0) / expected)
    excess = relative[np.arange(len(relative)), own][:, None] - relative
    logits = SHARPNESS_GRID[None, :, None] * excess[:, None, :]
    peak = logits.max(axis=2)
    return np.asarray(peak + np.log(np.exp(logits - peak[:, :, None]).sum(axis=2)))


def left_out_errors(rows: CalibrationRows) -> NDArray[np.bool_]:
    """Return for each measured row whether a rival was nearer than its own class.

    With a nearer rival, the loss exceeds log 2 at any sharpness. Without one, it tends to zero.
    """
    return np.asarray(columns_of(rows).losses[:, -1] > math.log(2))


def fitted_sharpness(classes: Iterable[CalibrationRows | None], reference: float) -> float:
    r"""Return the sharpness :math:`\kappa` with the smallest mean loss, close to a reference.

    Rows have the weights of `row_weights`. The penalty :math:`\log^2(\kappa / \kappa_0)`, times
    the square of `PRIOR_ROWS` over the effective number of rows, keeps few rows from deciding
    alone. The minimum over the grid is refined by a parabola in :math:`\log \kappa`.
    """
    measured = [columns_of(rows) for rows in classes if rows is not None and len(rows)]
    if not measured:
        return reference
    losses = np.concatenate([columns.losses for columns in measured])
    weights = row_weights(np.concatenate([columns.n_classes for columns in measured]))
    loss = np.average(losses, axis=0, weights=weights)
    number = np.sum(weights) ** 2 / np.sum(weights**2)
    loss = loss + (PRIOR_ROWS / number * np.log(SHARPNESS_GRID / reference)) ** 2
    i = int(np.clip(np.argmin(loss), 1, len(loss) - 2))
    left, middle, right = loss[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    step = math.log(SHARPNESS_GRID[1] / SHARPNESS_GRID[0])
    return float(SHARPNESS_GRID[i] * math.exp(step * float(np.clip(offset, -1.0, 1.0))))


def row_weights(n_classes: Floats) -> Floats:
    """Return the weights of rows, given the number of classes of the models that measured them.

    With few classes, a row has few rivals: its loss is not that of today.
    """
    return np.asarray((n_classes / n_classes.max()) ** GROWTH_POWER)


def last_model(classes: Iterable[CalibrationRows | None]) -> tuple[float, float]:
    """Return degrees of freedom and number of classes of the latest model that measured rows."""
    latest = [rows[:, :2].max(axis=0) for rows in classes if rows is not None and len(rows)]
    dof, n_classes = np.max(latest, axis=0) if latest else (0, 0)
    return float(dof), float(n_classes)
