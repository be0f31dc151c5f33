"""A map of the classes: their means on the first two principal axes of the means."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import svd_flip

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.scatter import project, to_dense
from fecam.core.statistics import ClassStatistics


def class_map(classifier: FeCAMClassifier) -> dict[str, Any]:
    """Return a point and an ellipse of one standard deviation per class.

    ``explained`` is the share of the variance of the means on the two axes; angles are in radians,
    counterclockwise.

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
    axes = np.zeros((means.shape[1], 2))
    axes[:, : len(components[:2])] = components[:2].T
    total = float(np.sum(singular_values**2))
    coordinates = centered @ axes
    points = [
        {"label": label, "count": stats.count, "x": x, "y": y, "ellipse": _ellipse(stats, axes)}
        for (label, stats), (x, y) in zip(classes.items(), coordinates.tolist(), strict=True)
    ]
    explained = float(np.sum(singular_values[:2] ** 2)) / total if total else None
    return {"points": points, "explained": explained}


def _ellipse(stats: ClassStatistics, axes: NDArray[Any]) -> dict[str, float]:
    covariance = np.zeros((2, 2))
    if stats.scatter is not None and stats.count > 1:
        if stats.scatter.storage == "diagonal":
            scatter = axes.T @ (
                np.asarray(to_numpy(to_dense(stats.scatter)), float)[:, None] * axes
            )
        else:
            scatter = np.asarray(project(stats.scatter, axes))
        covariance = scatter / (stats.count - 1)
    values, vectors = np.linalg.eigh(covariance)
    minor, major = np.sqrt(np.maximum(values, 0)).tolist()
    x, y = vectors[:, 1].tolist()
    angle = float(np.arctan2(y, x))
    # An ellipse is symmetric under rotation by pi.
    return {"a": major, "b": minor, "angle": angle % np.pi}
