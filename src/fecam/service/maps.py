"""The classes in the plane: prototypes along the two directions that set them apart most."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.scatter import project, to_dense
from fecam.core.statistics import ClassStatistics


def map_of(classifier: FeCAMClassifier) -> dict[str, Any]:
    """Where each class lies, and how its samples spread: an ellipse of one standard deviation.

    ``explained`` is the share of the variance of the prototypes that the plane shows; angles are in
    radians, against the clock.

    >>> clf = FeCAMClassifier(tukey=None, l2=None)
    >>> rows = [[0.0, 0, 0], [0, 2, 0], [8, 0, 0], [8, 2, 0]]
    >>> found = map_of(clf.fit(rows, ["cat", "cat", "dog", "dog"]))
    >>> [(one["label"], one["x"]) for one in found["points"]], found["explained"]
    ([('cat', -4.0), ('dog', 4.0)], 1.0)
    """
    classes = classifier.state_.classes
    if not classes:
        return {"points": [], "explained": None}
    means = np.stack([np.asarray(to_numpy(one.mean), float) for one in classes.values()])
    apart = means - means.mean(axis=0)
    _, sizes, turned = np.linalg.svd(apart, full_matrices=False)
    axes = _two_axes(turned, means.shape[1])
    total = float(np.sum(sizes**2))
    places = apart @ axes
    points = [
        {"label": label, "count": one.count, "x": x, "y": y, "ellipse": _ellipse(one, axes)}
        for (label, one), (x, y) in zip(classes.items(), places.tolist(), strict=True)
    ]
    return {"points": points, "explained": float(np.sum(sizes[:2] ** 2)) / total if total else None}


def _two_axes(turned: NDArray[Any], width: int) -> NDArray[Any]:
    """The first two directions, as columns; what is missing is zero. Signs are fixed."""
    axes = np.zeros((width, 2))
    found = turned[:2].T
    largest = found[np.argmax(np.abs(found), axis=0), np.arange(found.shape[1])]
    axes[:, : found.shape[1]] = found * np.where(largest < 0, -1.0, 1.0)
    return axes


def _ellipse(one: ClassStatistics, axes: NDArray[Any]) -> dict[str, float]:
    spread = np.zeros((2, 2))
    if one.scatter is not None and one.count > 1:
        if one.scatter.storage == "diagonal":
            scatter = axes.T @ (np.asarray(to_numpy(to_dense(one.scatter)), float)[:, None] * axes)
        else:
            scatter = np.asarray(project(one.scatter, axes))
        spread = scatter / (one.count - 1)
    values, vectors = np.linalg.eigh(spread)
    short, long = np.sqrt(np.maximum(values, 0)).tolist()
    across, up = vectors[:, 1].tolist()
    angle = float(np.arctan2(up, across))
    # An ellipse has no front: half a turn is the same one.
    return {"a": long, "b": short, "angle": angle % np.pi}
