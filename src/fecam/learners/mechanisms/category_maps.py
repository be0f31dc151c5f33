"""Gram matrices of classes, their maps (DPCR), and the ridge classifier that they determine."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve

from fecam.heads.head import Floats


def row_space(gram: Floats, tolerance: float) -> Floats:
    r"""Return the projection on the directions of a class, :math:`U U^T`.

    Directions with an eigenvalue of at most ``tolerance`` times the largest are left out. Public
    code keeps all above 0, which in single precision are all.

    >>> row_space(np.diag([4.0, 1.0, 1e-9]), 1e-6).round(6)
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 0.]])
    """
    values, vectors = np.linalg.eigh(gram)
    kept = vectors[:, values > tolerance * values[-1]]
    projection: Floats = kept @ kept.T
    return projection


def ridge_classifier(grams: Floats, sums: Floats, ridge: float) -> Floats:
    r"""Return the weights (classes, d) of the ridge regression on one-hot labels.

    .. math:: W^T = \left(\sum_c G_c + \gamma I\right)^{-1} [n_c \mu_c]_c

    with rows of unit length, as in public code. With the Gram matrices and sums of all samples it
    is the ridge regression on all samples, in whatever tasks they came.

    Parameters
    ----------
    grams : array of shape (classes, d, d)
        :math:`\sum_i f_i f_i^T` per class.
    sums : array of shape (classes, d)
        :math:`n_c \mu_c` per class.
    ridge : float
        :math:`\gamma`.

    Returns
    -------
    array of shape (classes, d)
        A row per class.

    Examples
    --------
    >>> ridge_classifier(np.eye(2)[None] / [[[2.0]], [[2.0]]], np.diag([3.0, 1.0]), 1.0)
    array([[1., 0.],
           [0., 1.]])
    """
    total = grams.sum(0) + ridge * np.eye(grams.shape[1])
    weights = solve(total, sums.T, assume_a="pos").T
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    result: Floats = weights / np.where(norms > 0, norms, 1)
    return result
