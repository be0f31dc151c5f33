r"""Temperature scaling: one parameter makes the softmax of distances agree with frequencies.

:math:`p_c \propto \exp(-\kappa \sqrt{d_c / \bar E})` with the mean expected distance
:math:`\bar E`. The *sharpness* :math:`\kappa` has the smallest mean loss :math:`-\log p_y` over
rows that were left out (`fecam.core.left_out_scores`), close to a reference while these are few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fecam.core.calibration_rows import SHARPNESS_GRID, Floats, columns_of
from fecam.core.statistics import CalibrationRows

REFERENCE_REL_VARIANCE = 0.06
"""The relative variance that gives calibrated probabilities on most of the measured data sets.

The temperature uses its geometric mean with the measured one: all samples share the errors of the
matrices, so the measured variance does not include them."""
PRIOR_ROWS = 60.0
"""Number of rows, evenly weighted, of which the reference sharpness decides: one that differs by a
factor of e costs one nat of mean loss. The cost falls with the square of the number of rows: the
reference fits most features, but is too large by a factor of two for texts, which hundreds of rows
show."""


def left_out_losses(distances: Floats, own: int | NDArray[np.intp], expected: float) -> Floats:
    """Return the loss of each row at each value of `SHARPNESS_GRID`, (rows, values).

    ``own`` are the positions of the rows' classes. Classes at infinity do not count.
    """
    relative = np.sqrt(np.maximum(distances, 0.0) / expected)
    excess = relative[np.arange(len(relative)), own][:, None] - relative
    logits = SHARPNESS_GRID[None, :, None] * excess[:, None, :]
    peak = logits.max(axis=2)
    return np.asarray(peak + np.log(np.exp(logits - peak[:, :, None]).sum(axis=2)))


def fitted_sharpness(classes: Iterable[CalibrationRows | None], reference: float) -> float:
    r"""Return the sharpness :math:`\kappa` with the smallest mean loss, close to a reference.

    The weight of a row is the number of classes of the model that measured it: few classes are few
    rivals. The penalty :math:`\log^2(\kappa / \kappa_0)`, times the square of `PRIOR_ROWS` over the
    effective number of rows, keeps few rows from deciding alone. The minimum over the grid is
    refined by a parabola in :math:`\log \kappa`.
    """
    measured = [columns_of(rows) for rows in classes if rows is not None and len(rows)]
    if not measured:
        return reference
    losses = np.concatenate([columns.losses for columns in measured])
    weights = np.concatenate([columns.n_classes for columns in measured])
    loss = np.average(losses, axis=0, weights=weights)
    number = np.sum(weights) ** 2 / np.sum(weights**2)
    loss = loss + (PRIOR_ROWS / number * np.log(SHARPNESS_GRID / reference)) ** 2
    i = int(np.clip(np.argmin(loss), 1, len(loss) - 2))
    left, middle, right = loss[i - 1 : i + 2]
    curvature = left - 2 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    step = math.log(SHARPNESS_GRID[1] / SHARPNESS_GRID[0])
    return float(SHARPNESS_GRID[i] * math.exp(step * float(np.clip(offset, -1.0, 1.0))))


def reference_sharpness(variance: float) -> float:
    """Return the sharpness that follows from the relative variance of squared distances.

    The temperature of squared distances that `REFERENCE_REL_VARIANCE` describes has the same slope
    at the expected distance.
    """
    return 2 / math.sqrt(variance * REFERENCE_REL_VARIANCE)


def softmax_temperature(expected: Sequence[float], sharpness: float) -> float:
    r"""Return the temperature by which the softmax divides distances, which are not squared.

    It is the root of the mean expected distance over the sharpness :math:`\kappa`.
    """
    return max(math.sqrt(sum(expected) / len(expected)) / sharpness, 1e-30)
