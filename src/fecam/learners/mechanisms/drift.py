"""Estimates of how class statistics move when the network changes.

They need the features of the current task's images before and after the training, ``old`` and
``new`` (n, d), and no data of past classes. All arrays have double precision.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve
from scipy.spatial.distance import cdist
from scipy.special import softmax

from fecam.errors import InputError
from fecam.heads.head import Floats
from fecam.validation import check_number


def semantic_drift(means: Floats, old: Floats, new: Floats, sigma: float) -> Floats:
    r"""Return the drift of each class mean (Yu et al. 2020): a weighted mean over the samples.

    .. math:: \delta_c = \frac{\sum_i w_{ci} (f_i - f_i^{old})}{\sum_i w_{ci}}, \quad
              w_{ci} = \exp\left(-\frac{\|f_i^{old} - \mu_c\|^2}{2 \sigma^2}\right)

    ``sigma`` is in units of the mean norm of the old features, which is 1 for features of unit
    length as in the paper. The weights are normalized before they are exponentiated, so no sum is
    0. A large ``sigma``, or infinity, gives the mean drift, a small one the drift of the nearest
    sample.

    >>> old = np.eye(2)
    >>> semantic_drift(np.array([[1.0, 0.1]]), old, old + [[1.0, 0.0], [0.0, 5.0]], 0.01)
    array([[1., 0.]])
    """
    _check_same_rows(old, new)
    check_sigma(sigma)
    scale = np.linalg.norm(old, axis=1).mean() * sigma
    weights = softmax(-cdist(means, old, "sqeuclidean") / (2 * scale**2), axis=1)
    drift: Floats = weights @ (new - old)
    return drift


def linear_map(
    old: Floats, new: Floats, ridge: float = 1e-3, *, toward_identity: bool = True
) -> Floats:
    r"""Return the linear map P with :math:`f^{old} P \approx f`, by least squares in closed form.

    .. math:: P = I + (F_{old}^T F_{old} + \lambda I)^{-1} F_{old}^T (F - F_{old})

    where :math:`\lambda` is ``ridge`` times the mean diagonal entry of the Gram matrix. Directions
    in which the current features do not vary stay as they are; with ``toward_identity=False``
    (DPCR) they are mapped to 0. LDC trains the same map with Adam.

    >>> old = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> linear_map(old, old @ [[2.0, 1.0], [0.5, 1.0]], ridge=0).round(6)
    array([[2. , 1. ],
           [0.5, 1. ]])
    """
    _check_same_rows(old, new)
    check_number("ridge", ridge)
    gram = old.T @ old
    start = np.eye(old.shape[1]) if toward_identity else np.zeros_like(gram)
    penalty = ridge * np.trace(gram) / len(gram)
    moment = old.T @ (new - old @ start)
    if penalty:
        correction = solve(gram + penalty * np.eye(len(gram)), moment, assume_a="pos")
    else:  # the shortest solution if the features do not span the space
        correction = np.linalg.lstsq(gram, moment, rcond=None)[0]
    result: Floats = start + correction
    return result


def map_covariances(covariances: Floats, linear: Floats) -> Floats:
    r"""Return :math:`P^T S_c P` per class."""
    mapped: Floats = linear.T @ covariances @ linear
    return mapped


def _check_same_rows(old: Floats, new: Floats) -> None:
    if old.shape != new.shape or not len(old):
        raise InputError(
            f"old features have shape {old.shape} and new ones {new.shape}: both must be the "
            "features of the same images, at least one."
        )


def check_sigma(sigma: float) -> None:
    """Raise unless sigma is positive; infinity is allowed."""
    if sigma != np.inf:
        check_number("sigma", sigma, above=0)
