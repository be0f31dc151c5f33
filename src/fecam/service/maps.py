"""A map of the classes: their means on the first two principal axes of the means."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import svd_flip

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.scatter import project, sum_scatters, to_dense
from fecam.core.statistics import ClassStatistics

Floats = NDArray[Any]
PRIOR = 2
"""Samples that the covariance of all classes counts in the ellipse of a class."""
ITERATIONS = 50
"""Of the power method: a direction for the eye need not be exact."""


def class_map(classifier: FeCAMClassifier) -> dict[str, Any]:
    """Return a point and an ellipse of one standard deviation per class.

    ``explained`` is the share of the variance of the means on the two axes; angles are in radians,
    counterclockwise. The means of two classes lie on a line: the second axis is then the widest
    direction inside the classes. An ellipse counts `PRIOR` more samples with the covariance of all
    classes, so that few examples do not make it a line.

    >>> clf = FeCAMClassifier(tukey=None, l2=None)
    >>> rows = [[0.0, 0, 0], [0, 2, 0], [8, 0, 0], [8, 2, 0]]
    >>> points = class_map(clf.fit(rows, ["cat", "cat", "dog", "dog"]))
    >>> [(point["label"], point["x"]) for point in points["points"]], points["explained"]
    ([('cat', -4.0), ('dog', 4.0)], 1.0)
    """
    classes = classifier.state_.classes
    if not classes:
        return {"points": [], "explained": None}
    means = np.stack([np.asarray(to_numpy(stats.mean), float) for stats in classes.values()])
    centered = means - means.mean(axis=0)
    left, singular_values, components = np.linalg.svd(centered, full_matrices=False)
    _, components = svd_flip(left, components, u_based_decision=False)  # deterministic signs
    spread = singular_values > 1e-6 * singular_values[0]  # two means lie on a line
    axes = _fill(components[:2][spread[:2]], classes.values())
    total = float(np.sum(singular_values**2))
    coordinates = centered @ axes
    scatters = [_projected(stats, axes) for stats in classes.values()]
    degrees = sum(stats.count - 1 for stats in classes.values())
    pooled = np.sum(scatters, axis=0) / max(degrees, 1)
    points = [
        {
            "label": label,
            "count": stats.count,
            "x": x,
            "y": y,
            "ellipse": _ellipse((scatter + PRIOR * pooled) / (stats.count - 1 + PRIOR)),
        }
        for (label, stats), (x, y), scatter in zip(
            classes.items(), coordinates.tolist(), scatters, strict=True
        )
    ]
    explained = float(np.sum(singular_values[:2] ** 2)) / total if total else None
    return {"points": points, "explained": explained}


def _fill(axes: Floats, classes: Collection[ClassStatistics]) -> Floats:
    """Return two columns: the axes, and where one is missing the widest direction inside classes.

    It is found by power iteration, orthogonal to the other axis, and zero if there is none.
    """
    n_features = len(next(iter(classes)).mean)
    result = np.zeros((n_features, 2))
    result[:, : len(axes)] = axes.T
    scatters = [stats.scatter for stats in classes if stats.scatter is not None]
    if len(axes) == 2 or not scatters:
        return result
    within = np.asarray(to_numpy(sum_scatters(scatters)), float)
    for column in range(len(axes), 2):
        direction = within if within.ndim == 1 else np.diag(within)
        for _ in range(ITERATIONS):
            direction = within * direction if within.ndim == 1 else within @ direction
            direction = direction - result @ (result.T @ direction)
            length = np.linalg.norm(direction)
            if length == 0:
                break
            direction = direction / length
        result[:, column] = direction
    return result


def _projected(stats: ClassStatistics, axes: Floats) -> Floats:
    """Return the scatter of a class on the axes; zero if it is not kept."""
    if stats.scatter is None or stats.count < 2:
        return np.zeros((2, 2))
    if stats.scatter.storage == "diagonal":
        variances = np.asarray(to_numpy(to_dense(stats.scatter)), float)
        return np.asarray(axes.T @ (variances[:, None] * axes))
    return np.asarray(project(stats.scatter, axes))


def _ellipse(covariance: Floats) -> dict[str, float]:
    values, vectors = np.linalg.eigh(covariance)
    minor, major = np.sqrt(np.maximum(values, 0)).tolist()
    x, y = vectors[:, 1].tolist()
    angle = float(np.arctan2(y, x))
    # An ellipse is symmetric under rotation by pi.
    return {"a": major, "b": minor, "angle": angle % np.pi}
