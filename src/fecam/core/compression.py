r"""Compression: statistics projected onto directions that separate the classes.

With a matrix :math:`P` of :math:`k` columns, a class keeps the mean :math:`P^T m` and the scatter
:math:`P^T S P`. Both are what the projected samples would have given, so that a compressed model
learns, merges and unlearns exactly in its :math:`k` coordinates.

The squared distance with a normalized covariance depends on the coordinates. So the directions are
orthonormal in coordinates in which the metric of the pooled covariance is Euclidean: with
:math:`T T^T = R^{-1}`, the inverse of the shrunk pooled correlation matrix, :math:`P = T Q`. The
first columns of :math:`Q` are the principal axes of the prototypes, all classes weighted equally:
the directions of linear discriminant analysis. There are fewer of them than classes. The further
columns are the principal axes of the pooled covariance in the complement, which is where the
samples of later classes differ. Without normalization the distance depends on the coordinates by
the shrinkage only, so that :math:`P` spans the same space with orthonormal columns.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from fecam.core.arrays import Array, diagonal, eye, namespace, to_backend_of, to_float64
from fecam.core.covariance import normalize, pooled, shrink, whiten
from fecam.core.metric import Metric, prototype_of
from fecam.core.scatter import Scatter, projected
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import project_rows

REFERENCE_SHRINKAGE = (1.0, 0.0)
"""The shrinkage of the pooled covariance, which is that of the default."""
MIN_SEPARATION = 1e-7
"""Singular values of the prototypes below this, relative to the largest, are rounding errors."""


def directions(state: ClassifierState, metric: Metric, n_components: int) -> Array:
    """Return a projection with this number of columns, the most discriminative first.

    The first columns do not depend on how many there are. The array has the library, device and
    dtype of the state.
    """
    classes = list(state.classes.values())
    within, _ = pooled(classes)
    xp = namespace(within)
    if bool(xp.any(within != 0)):
        coordinates = whiten(normalize(shrink(within, REFERENCE_SHRINKAGE), "correlation"))
    else:  # one sample per class
        coordinates = eye(state.n_features, within)
    axes = _ordered_axes(
        coordinates.T @ (within @ coordinates),
        _prototypes(classes, metric, state) @ coordinates,
        n_components,
    )
    matrix = coordinates @ axes
    if metric.is_shared or metric.normalization != "correlation":
        matrix = _orthonormal(matrix)
    return xp.astype(matrix, state.like.dtype)


def _prototypes(
    classes: Sequence[ClassStatistics], metric: Metric, state: ClassifierState
) -> Array:
    centers = [prototype_of(stats, metric, state.transform) for stats in classes]
    return namespace(centers[0]).stack(centers)


def _ordered_axes(within: Array, centers: Array, n_axes: int) -> Array:
    """Return orthonormal columns: principal axes of the centers, then those of ``within``."""
    xp = namespace(within)
    apart = to_float64(centers) - xp.mean(to_float64(centers), axis=0)
    _, spread, axes = xp.linalg.svd(apart, full_matrices=False)
    rank = int(xp.sum(xp.astype(spread > MIN_SEPARATION * spread[0], xp.int64)))
    first = axes[: min(rank, n_axes), :].T
    if rank >= n_axes:
        return first
    rest = within - first @ (first.T @ within)
    rest = rest - (rest @ first) @ first.T
    _, vectors = xp.linalg.eigh((rest + rest.T) / 2)
    second = xp.flip(vectors, axis=1)[:, : n_axes - rank]
    return _orthonormal(xp.concat([first, second], axis=1))


def _orthonormal(columns: Array) -> Array:
    """Return orthonormal columns; each spans the same space with those before it."""
    xp = namespace(columns)
    axes, triangle = xp.linalg.qr(columns)
    return axes * xp.sign(diagonal(triangle))


def compressed(state: ClassifierState, projection: Array) -> ClassifierState:
    """Return the state in the coordinates of a projection; raw means keep all features."""
    xp, like = namespace(state.like), state.like
    projection = xp.astype(to_backend_of(projection, like), like.dtype, copy=False)
    transform = replace(state.transform, projection=projection)
    return replace(
        state,
        transform=transform,
        n_features=int(projection.shape[1]),
        classes={label: _project(stats, projection) for label, stats in state.classes.items()},
    )


def leading_components(state: ClassifierState, n_components: int) -> ClassifierState:
    """Return a compressed state with the first components only."""
    projection = state.transform.projection
    assert projection is not None, "the state is compressed"
    selection = namespace(projection).eye(state.n_features, n_components, dtype=projection.dtype)
    selection = to_backend_of(selection, projection)
    state_of_first = compressed(state, selection)
    transform = replace(state.transform, projection=projection[:, :n_components])
    return replace(state_of_first, transform=transform)


def _project(stats: ClassStatistics, projection: Array) -> ClassStatistics:
    def project(scatter: Scatter | None) -> Scatter | None:
        return None if scatter is None else projected(scatter, projection)

    return replace(
        stats,
        mean=project_rows(stats.mean, projection),
        scatter=project(stats.scatter),
        domain_mean_covariance=project(stats.domain_mean_covariance),
        calibration=None,  # scores of another metric
    )


def statistics_bytes(state: ClassifierState) -> int:
    """Return the size of all means, scatters and of the projection."""
    arrays: list[Array] = [state.transform.projection]
    for stats in state.classes.values():
        scatters = stats.scatter, stats.domain_mean_covariance
        arrays += [stats.raw_mean, stats.mean, *(s.data for s in scatters if s is not None)]
    return sum(_n_bytes(array) for array in arrays if array is not None)


def _n_bytes(array: Array) -> int:
    bits = int(namespace(array).finfo(array.dtype).bits)
    return math.prod(map(int, array.shape)) * (bits // 8)
