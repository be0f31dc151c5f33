"""The metric of features that the classifier sees (EFC), as a loss and as the width of drift."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from fecam.heads.head import Floats
from fecam.learners.mechanisms.drift import check_sigma

DAMPING = 0.1
"""Of the identity in the loss, in the authors' code."""


def feature_metric(logits: Tensor, weight: Tensor) -> Tensor:
    r"""Return the empirical feature matrix, the mean Fisher information of the features.

    .. math:: E = \frac1n \sum_x W^T (\mathrm{diag}(p_x) - p_x p_x^T) W,
        \quad p_x = \mathrm{softmax}(z_x)

    The divergence of the outputs' probabilities after a small change d of a feature is
    :math:`\frac12 d^T E d`. Its rank is below the number of classes.

    >>> feature_metric(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    p = logits.softmax(1)
    inner = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return weight.T @ inner @ weight


def metric_distance(
    features: Tensor, old: Tensor, metric: Tensor, weight: float, damping: float = DAMPING
) -> Tensor:
    r"""Return the mean of :math:`d_i^T (\lambda E + \eta I) d_i` with :math:`d = f - f^{old}`.

    >>> x = torch.tensor([[3.0, 4.0]])
    >>> metric_distance(x, torch.zeros(1, 2), torch.eye(2), 1.0, damping=0.0).item()
    25.0
    """
    d = features - old
    quadratic = weight * ((d @ metric) * d).sum(1) + damping * d.square().sum(1)
    return quadratic.mean()


def metric_weights(means: Floats, old: Floats, metric: Floats, sigma: float) -> Floats:
    r"""Return the weights (classes, n) of samples in the drift of a mean; rows have the sum 1.

    .. math:: w_{ci} \propto \exp\left(\frac{u_{ci}}{2 \sigma^2}\right), \quad
        u_{ci} = -(f_i^{old} - \mu_c)^T E (f_i^{old} - \mu_c)

    where u is scaled to [0, 1] over all pairs, as in the authors' code.

    >>> old = np.array([[0.0], [1.0], [9.0]])
    >>> metric_weights(np.array([[0.9]]), old, np.eye(1), 0.1).round(3)
    array([[0.352, 0.648, 0.   ]])
    """
    check_sigma(sigma)
    differences = [old - mean for mean in means]
    similarity = np.stack([-((d @ metric) * d).sum(1) for d in differences])
    low, high = similarity.min(), similarity.max()
    scaled = (similarity - low) / (high - low if high > low else 1.0)
    weights: Floats = softmax(scaled / (2 * sigma**2), axis=1)
    return weights
