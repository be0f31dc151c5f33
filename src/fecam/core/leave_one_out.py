r"""Leave-one-out distances: what a model that never saw a sample would measure for it.

While a batch is learned, some of its rows :math:`x` of class :math:`y` are measured under the model
just updated, with the row itself left out of every statistic that contains it. Removing a row
changes the mean of its class and subtracts a rank-one term from every matrix that contains it,

.. math:: R_c \to R_c - s_c\,u u^T, \qquad u = (x - m_y) / \sigma_c,

with the standard deviations :math:`\sigma_c` of the normalization. These change too, which
multiplies each coordinate of the difference :math:`z` by :math:`\sqrt{1 - s_c u_j^2}`. By the
Sherman-Morrison formula the squared distance becomes

.. math:: z^T R_c^{-1} z + \frac{s_c\,(z^T R_c^{-1} u)^2}{1 - s_c\,u^T R_c^{-1} u}.

With :math:`\ell = n_y / (n_y - 1)`, the degrees of freedom :math:`F` of the prior and its
pseudo-count :math:`p`, the share of the row is :math:`\ell (1 + p/F) / (n_y - 1 + p)` in the matrix
of its own class. It is :math:`\ell p / ((n_c - 1 + p) F)` in that of a rival :math:`c`, through the
prior: without that term, few samples in many dimensions make probabilities far too small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array, namespace, to_backend_of, to_float64, to_numpy
from fecam.core.metric import Metric, normalizing_std
from fecam.core.precision import Precision
from fecam.core.prior import Prior
from fecam.core.statistics import ClassStatistics, length_of
from fecam.core.threads import in_parallel
from fecam.core.transforms import unit_length

MAX_LEVERAGE = 0.999
"""Leverage at which the correction is cut off: it divides by 1 - leverage."""
NEGLIGIBLE_LEVERAGE = 0.002
"""Mean leverage of a row on the prior below which the distances to rivals are not corrected."""

Floats = NDArray[np.float64]


def left_out_distances(
    rows: Array,
    own: int | NDArray[np.intp],
    classes: Sequence[ClassStatistics],
    precisions: Sequence[Precision],
    metric: Metric,
    prior: Prior | None,
    dof: int,
    compared: NDArray[np.bool_] | None = None,
) -> Floats:
    """Return the squared distances of rows to classes, each as if the row had not been learned.

    ``own`` are the positions of the rows' classes, and ``dof`` the degrees of freedom of all
    classes. A prior with fewer lags behind and does not contain the rows. Where ``compared``,
    (rows, classes), is false, the distance is infinite.
    """
    xp = namespace(rows)
    rows = to_float64(rows)
    n_rows = rows.shape[0]
    positions = np.broadcast_to(np.asarray(own), n_rows)
    owners = [classes[i] for i in positions.tolist()]
    compared = np.ones((n_rows, len(classes)), bool) if compared is None else compared
    counts = np.asarray([stats.count for stats in owners], np.float64)
    lengths = [length_of(stats) if metric.unit_compare else 1.0 for stats in owners]
    offsets = rows - xp.stack([stats.mean for stats in owners], axis=0)  # what is in the scatters
    queries = unit_length(rows) if metric.unit_compare else rows
    shifts = offsets / to_backend_of((counts - 1) * np.asarray(lengths), rows)[:, None]

    def distances_to(c: int) -> Floats:
        stats, chosen = classes[c], np.flatnonzero(compared[:, c])
        column = np.full(n_rows, np.inf)
        if not len(chosen):
            return column
        is_own, index = positions[chosen] == c, to_backend_of(chosen, rows)
        # The mean of a class moves away from its row that is left out.
        moved = xp.take(shifts, index, axis=0) * to_backend_of(1.0 * is_own, rows)[:, None]
        differences = xp.take(queries, index, axis=0) - to_float64(precisions[c].center) + moved
        shares = _shares(counts[chosen], is_own, stats, metric, prior, dof)
        squares = _downdated(
            differences,
            xp.take(offsets, index, axis=0),
            shares,
            stats,
            precisions[c],
            metric,
            prior,
        )
        others = np.where(is_own, stats.count - 1, stats.count)
        if metric.normalization is None and not metric.is_shared and is_own.any():
            pseudo_count = 0.0 if prior is None else prior.pseudo_count
            ratio = (stats.count - 2 + pseudo_count) / (stats.count - 1 + pseudo_count)
            squares = squares * np.where(is_own, ratio, 1.0)
        column[chosen] = squares / (1 + metric.mean_uncertainty / others)
        return column

    return np.stack(in_parallel(distances_to, range(len(classes))), axis=1)


def _shares(
    counts: Floats,
    is_own: NDArray[np.bool_],
    stats: ClassStatistics,
    metric: Metric,
    prior: Prior | None,
    dof: int,
) -> Floats:
    """Return the weights of rows in the matrix of a class, given the sizes of their own classes."""
    if metric.covariance in ("identity", "diagonal"):
        return 0 * counts  # each variance is estimated on its own: the leverage is negligible
    correction = counts / (counts - 1)
    if metric.is_shared:
        return correction / max(dof, 1)
    pseudo_count = 0.0 if prior is None else prior.pseudo_count
    contains_rows = prior is not None and prior.dof == dof
    in_prior = pseudo_count / max(dof, 1) if contains_rows else 0.0
    own = (1 + in_prior) / (stats.count - 1 + pseudo_count) if is_own.any() else 0.0
    is_small = stats.mean.shape[0] < NEGLIGIBLE_LEVERAGE * dof
    rival = 0.0 if is_small or not in_prior else in_prior / (stats.count - 1 + pseudo_count)
    return np.asarray(correction * np.where(is_own, own, rival))


def _downdated(
    differences: Array,
    offsets: Array,
    shares: Floats,
    stats: ClassStatistics,
    precision: Precision,
    metric: Metric,
    prior: Prior | None,
) -> Floats:
    """Return squared distances without the rows' own contributions to the matrix."""
    if not shares.any():
        return _squares(precision, differences, stats.raw_mean.dtype)
    u = offsets if metric.is_shared else offsets / normalizing_std(stats, metric, prior)
    xp = namespace(u)
    if metric.normalization == "correlation" and not metric.is_shared:
        remaining = 1 - to_backend_of(shares, u)[:, None] * u**2
        differences = differences * xp.sqrt(xp.clip(remaining, 1 - MAX_LEVERAGE, None))
    # Vectors of the same length, because their products are differences of squares.
    norms = [xp.linalg.vector_norm(x, axis=1, keepdims=True) for x in (differences, u)]
    length = norms[0] / xp.where(norms[1] > 0, norms[1], xp.ones_like(norms[1]))
    length = xp.where(length > 0, length, xp.ones_like(length))
    scaled = u * length
    stacked = xp.concat([differences, scaled, differences + scaled], axis=0)
    squares = _squares(precision, stacked, stats.raw_mean.dtype)
    square, leverage, both = np.split(squares, 3)
    scale = np.asarray(to_numpy(length), np.float64)[:, 0]
    product = (both - square - leverage) / 2 / scale  # polarization
    leverage = shares * leverage / scale**2
    correction = shares * product**2 / (1 - np.minimum(leverage, MAX_LEVERAGE))
    return np.asarray(square + correction)


def _squares(precision: Precision, differences: Array, dtype: object) -> Floats:
    rows = namespace(differences).astype(differences, dtype)
    return np.asarray(to_numpy(precision.squared_mahalanobis(rows)), np.float64)
