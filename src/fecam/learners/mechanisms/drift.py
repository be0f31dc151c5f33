"""Estimates of how class statistics move when the network changes.

They need the features of the current task's images before and after the training, ``old`` and
``new`` (n, d), and no data of past classes. All arrays have double precision.
"""

from __future__ import annotations

import numpy as np

from fecam.core.linear_map import check_same_samples, fit_linear_map, kernel_average
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
    check_same_samples(old, new)
    check_sigma(sigma)
    width = float(np.linalg.norm(old, axis=1).mean()) * sigma
    drift: Floats = kernel_average(means, old, new - old, width)
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
    check_number("ridge", ridge)
    fitted = fit_linear_map(old, new, ridge=ridge, toward_identity=toward_identity, offset=False)
    result: Floats = fitted.matrix
    return result


def map_covariances(covariances: Floats, linear: Floats) -> Floats:
    r"""Return :math:`P^T S_c P` per class."""
    mapped: Floats = linear.T @ covariances @ linear
    return mapped


def check_sigma(sigma: float) -> None:
    """Raise unless sigma is positive; infinity is allowed."""
    if sigma != np.inf:
        check_number("sigma", sigma, above=0)
