"""Herding: the samples whose mean is close to the mean of their class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def unit_rows(features: Array) -> NDArray[np.float64]:
    """Return features of unit length; zeros stay zeros.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    values = np.asarray(features, np.float64)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    unit: NDArray[np.float64] = values / np.where(norms > 0, norms, 1.0)
    return unit


def herding(features: Array, count: int) -> NDArray[np.int64]:
    r"""Return the samples of a class to keep, the most important first (Rebuffi et al. 2017).

    .. math:: p_k = \arg\min_{i \notin \{p_1, \dots, p_{k-1}\}}
        \Big\| \mu - \tfrac1k \big(\phi_i + \sum_{j<k} \phi_{p_j}\big) \Big\|

    over features of unit length with the mean :math:`\mu`. So the first k samples are those of a
    smaller count. At most as many are returned as there are.

    >>> herding(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 1)
    array([2])
    """
    unit = unit_rows(features)
    mean, total = unit.mean(0), np.zeros(unit.shape[1])
    squares = np.square(unit).sum(1)
    chosen: list[int] = []
    for k in range(1, min(count, len(unit)) + 1):
        # |k mu - total - phi|^2 without the terms that all samples share
        distances = squares - 2 * unit @ (k * mean - total)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
        total += unit[chosen[-1]]
    return np.array(chosen, np.int64)
