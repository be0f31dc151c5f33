r"""Statistics of classes that follow their samples to the features of another encoder.

The samples are gone; a map :math:`g(x) = x P + b` of features is known from other samples, see
`fecam.core.linear_map`. A class with :math:`n` samples, mean :math:`m` and covariance :math:`C`
becomes

.. math:: m' = g(m), \qquad C' = P^T C P + R, \qquad
          \frac{1}{n'} = \frac{1}{n} + v(m) \frac{\mathrm{tr}\, R}{\mathrm{tr}\, C'}

with the covariance :math:`R` of the map's residuals and the variance :math:`v(m)` of the mapped
mean in units of :math:`R`. The effective count :math:`n'` says how many samples the moved mean is
worth. So every rule that weighs a class by its samples (``mean_uncertainty``, the prior, further
samples of the class) trusts it less the farther it is from the samples that determined the map, and
less after each transport.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fecam.core.arrays import Array, diagonal, namespace, to_backend_of, to_float64
from fecam.core.linear_map import LinearMap
from fecam.core.scatter import (
    Scatter,
    add,
    diagonal_of,
    packed_matrix,
    projected,
    scale,
)
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics

MoveMeans = Callable[[Array], Array]
"""Means (classes, d) to moved means (classes, e)."""


def transport(
    state: ClassifierState,
    linear_map: LinearMap,
    raw_map: LinearMap | None = None,
    *,
    move_means: MoveMeans | None = None,
    labels: Any = None,
    add_residuals: bool = True,
    effective_counts: bool = True,
) -> ClassifierState:
    """Return the state with the statistics of classes moved by a map.

    ``linear_map`` is that of transformed features and moves means and scatters; ``raw_map`` is
    that of raw features and moves raw means; None: there is no transform, and one map moves both.
    ``move_means``, such as a `LocalMap`, moves means instead of ``linear_map``. ``labels`` are the
    classes to move, by default all; then the width may change. ``add_residuals`` adds the residual
    covariance to that of each class, and ``effective_counts`` lowers the counts.

    Measured distances and rows belong to the former features and are left out.
    """
    moved = list(state.classes) if labels is None else list(labels)
    if not moved:
        return state
    xp = namespace(state.like)
    stats = [state.stats_of(label) for label in moved]
    means = (move_means or linear_map)(xp.stack([to_float64(s.mean) for s in stats]))
    raw_means = means
    if raw_map is not None:
        raw_means = _in_domain(raw_map(xp.stack([to_float64(s.raw_mean) for s in stats])), state)
    counts = (
        effective_count(state.classes, moved, linear_map)
        if effective_counts
        else [s.count for s in stats]
    )
    residual = linear_map.residual_covariance if add_residuals else None
    classes: dict[Any, ClassStatistics] = dict(state.classes)
    for i, label in enumerate(moved):
        classes[label] = moved_class(
            stats[i],
            linear_map.matrix,
            means[i, :],
            xp.astype(raw_means[i, :], state.like.dtype),
            residual,
            counts[i],
        )
    return replace(state, n_features=int(linear_map.matrix.shape[1]), classes=classes)


def corrected(
    state: ClassifierState,
    residuals: Array,
    shares: Array,
    pseudo_count: float,
    raw_residuals: Array | None = None,
) -> ClassifierState:
    r"""Return the state with means moved by what a map leaves of the samples of their class.

    ``residuals`` (n, e) are those of samples that were left out of the map, and ``shares`` (n,
    classes) the probabilities :math:`p_{ic}` that a sample belongs to a class. A mean moves by
    :math:`\sum_i p_{ic} e_i / (\sum_i p_{ic} + k)` with the ``pseudo_count`` :math:`k`. Only
    residuals count, so a sample of another class does less harm than if it were learned. Raw means
    move by ``raw_residuals``, those of raw features; None: there is no transform.
    """
    xp = namespace(residuals)
    shares = to_float64(to_backend_of(shares, residuals))
    weights = shares / (xp.sum(shares, axis=0) + pseudo_count)
    steps = weights.T @ residuals
    raw_steps = steps if raw_residuals is None else weights.T @ raw_residuals
    classes = {}
    for i, (label, stats) in enumerate(state.classes.items()):
        raw_mean = _in_domain(to_float64(stats.raw_mean) + raw_steps[i, :], state)
        classes[label] = replace(
            stats,
            mean=stats.mean + steps[i, :],
            raw_mean=xp.astype(raw_mean, stats.raw_mean.dtype),
        )
    return replace(state, classes=classes)


def _in_domain(raw_means: Array, state: ClassifierState) -> Array:
    """Return raw means to which the power of the transform can be applied: none is negative."""
    if state.transform.power is None:
        return raw_means
    return namespace(raw_means).maximum(raw_means, 0 * raw_means)


def moved_class(
    stats: ClassStatistics,
    matrix: Array,
    mean: Array,
    raw_mean: Array,
    residual: Array | None = None,
    count: int | None = None,
) -> ClassStatistics:
    """Return the statistics of a class with this mean, and with scatters multiplied by a matrix.

    A residual covariance is added to the covariance of the class, which keeps its meaning with
    another ``count``. Of a diagonal, only the diagonal of the product is kept.
    """
    count = stats.count if count is None else count
    ratio = (count - 1) / (stats.count - 1) if stats.count > 1 else 0.0
    noise = None if residual is None or count < 2 else residual * (count - 1)

    def move(scatter: Scatter | None, share: float, added: Array | None) -> Scatter | None:
        if scatter is None:
            return None
        moved = scale(_mapped(scatter, matrix), share)
        return moved if added is None else add(moved, _stored_like(added, moved))

    return replace(
        stats,
        count=count,
        mean=mean,
        raw_mean=raw_mean,
        scatter=move(stats.scatter, ratio, noise),
        domain_mean_covariance=move(stats.domain_mean_covariance, 1.0, residual),
        distance_moments=(0, 0.0, 0.0),
        calibration=None,
    )


def effective_count(
    classes: Mapping[Any, ClassStatistics], labels: list[Any], linear_map: LinearMap
) -> list[int]:
    """Return the number of samples that each moved mean is worth.

    At least 2, or the number of samples if that is less: a scatter of one sample is zero. Without
    stored scatters it is the number of samples: nothing tells how large the residuals are.
    """
    stats = [classes[label] for label in labels]
    variance = _mean_variance(stats, linear_map)
    xp = namespace(linear_map.matrix)
    noise = float(xp.sum(diagonal(linear_map.residual_covariance)))
    if not variance or not noise:
        return [s.count for s in stats]
    means = xp.stack([to_float64(s.mean) for s in stats])
    added = linear_map.variance(means) * (noise / (variance + noise))
    return [
        max(min(2, s.count), math.floor(1 / (1 / s.count + float(added[i])) + 1e-9))
        for i, s in enumerate(stats)
    ]


def _mean_variance(stats: list[ClassStatistics], linear_map: LinearMap) -> float:
    """Return the trace of the mapped covariance, pooled over classes; 0 if there is none."""
    total, dof = 0.0, 0
    for each in stats:
        if each.scatter is not None and each.count > 1:
            mapped = diagonal_of(_mapped(each.scatter, linear_map.matrix))
            total += float(namespace(mapped).sum(to_float64(mapped)))
            dof += each.count - 1
    return total / max(dof, 1)


def _mapped(scatter: Scatter, matrix: Array) -> Scatter:
    """Return :math:`P^T S P`."""
    matrix = to_backend_of(matrix, scatter.data)
    if scatter.storage != "diagonal":
        return projected(scatter, matrix)
    xp = namespace(scatter.data)
    variances = to_float64(scatter.data) @ (matrix * matrix)
    return Scatter(xp.astype(variances, scatter.data.dtype), "diagonal", int(matrix.shape[1]))


def _stored_like(matrix: Array, scatter: Scatter) -> Scatter:
    """Return a matrix as a scatter that can be added to another."""
    xp = namespace(scatter.data)
    matrix = xp.astype(to_backend_of(matrix, scatter.data), scatter.data.dtype)
    if scatter.storage == "diagonal":
        return Scatter(diagonal(matrix), "diagonal", scatter.n_features)
    return Scatter(packed_matrix(matrix), "packed", scatter.n_features)
