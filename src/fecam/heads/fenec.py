"""Several centroids a class under FeCAM's distance."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fecam.core.batches import group_by_label
from fecam.core.panel import Panel
from fecam.core.state import ClassifierState
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Head, Labels
from fecam.heads.mahalanobis import factors_of, labels_of, learn, metric_of, queries_of
from fecam.presets import preset
from fecam.validation import check_int


@dataclass(frozen=True, slots=True, eq=False)
class Centroids:
    """Some points of a class, and for how many samples each stands."""

    points: Floats
    counts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """FeCAM's statistics, and the centroids of each class in its transformed features."""

    statistics: ClassifierState
    centroids: Mapping[Hashable, Centroids]

    @property
    def labels(self) -> Labels:
        """The labels, sorted."""
        return labels_of(self.statistics)


class FeNeC(Head[Clusters]):
    r"""Nearest centroid under FeCAM's distance (Ksiazek et al. 2025).

    The transformed features of a class are clustered by k-means; the matrix stays that of the whole
    class. The score of a class is minus the squared distance to its nearest centroid. A class that
    comes back has the centroids of both visits clustered again, weighted by their samples.

    Parameters
    ----------
    n_centroids : int
        How many a class; one is FeCAM.
    n_neighbors : int
        1 takes the nearest centroid. With more, so many nearest centroids of all classes vote, and
        the nearer of two classes wins a tie: then a score is the number of votes and a fraction.
    preset : str or None
        FeCAM's settings by name; None for its defaults.
    seed : int
        Of k-means.

    Examples
    --------
    >>> head = FeNeC(n_centroids=2).partial_fit([[1.0, 0.0], [0.0, 1.0]], ["a", "a"])
    >>> head.partial_fit([[1.0, 1.0]], ["b"]).predict([[3.0, 0.1], [0.1, 3.0], [1, 1]]).tolist()
    ['a', 'a', 'b']
    """

    _fixed = ("preset",)

    def __init__(
        self,
        *,
        n_centroids: int = 4,
        n_neighbors: int = 1,
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        self.n_centroids = n_centroids
        self.n_neighbors = n_neighbors
        self.preset = preset
        self.seed = seed

    def _fecam_settings(self) -> dict[str, Any]:
        settings = {} if self.preset is None else preset(self.preset)
        return {**settings, "prototype": "mean-of-transforms"}  # centroids are nothing else

    def _check_settings(self) -> None:
        check_int("n_centroids", self.n_centroids)
        check_int("n_neighbors", self.n_neighbors)
        check_int("seed", self.seed, minimum=0)
        self._fecam_settings()

    def _learn(self, before: Clusters | None, X: Floats, y: Labels) -> Clusters:
        known = learn(None if before is None else before.statistics, X, y, self._fecam_settings())
        rows = group_by_label(X, y, known.transform)
        task = {
            label: cluster(some.features, np.ones(len(some.features)), self.n_centroids, self.seed)
            for label, some in rows.items()
        }
        return Clusters(known, self._joined({} if before is None else before.centroids, task))

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""

        def both(a: Clusters, b: Clusters) -> Clusters:
            statistics = a.statistics.merge(b.statistics)
            return Clusters(statistics, self._joined(a.centroids, b.centroids))

        return self._combine(other, both)

    def _joined(
        self, before: Mapping[Hashable, Centroids], task: Mapping[Hashable, Centroids]
    ) -> dict[Hashable, Centroids]:
        joined = {**before, **task}
        for label in before.keys() & task.keys():
            a, b = before[label], task[label]
            points = np.concatenate([a.points, b.points])
            counts = np.concatenate([a.counts, b.counts])
            joined[label] = cluster(points, counts, self.n_centroids, self.seed)
        return joined

    def _derive(self, known: Clusters) -> tuple[Clusters, Panel]:
        metric = metric_of(self._fecam_settings())
        factors = []
        for label, factor in zip(
            known.statistics.classes, factors_of(known.statistics, metric), strict=True
        ):
            points = np.asarray(known.centroids[label].points, np.float64)
            points = unit_length(points) if metric.unit_compare else points
            factors += [replace(factor, centre=point) for point in points]
        return known, Panel(factors, known.statistics.like.dtype)

    def _score(self, derived: tuple[Clusters, Panel], X: Floats) -> Floats:
        known, panel = derived
        queries = queries_of(X, known.statistics, metric_of(self._fecam_settings()))
        distances = np.asarray(panel.distances(queries), np.float64)
        sizes = [len(known.centroids[label].points) for label in known.statistics.classes]
        starts = np.cumsum([0, *sizes[:-1]])
        nearest: Floats = np.minimum.reduceat(distances, starts, axis=1)
        if self.n_neighbors == 1:
            return -nearest
        votes = np.zeros(distances.shape)
        most = min(self.n_neighbors, distances.shape[1])
        near = np.argsort(distances, axis=1, kind="stable")[:, :most]
        np.put_along_axis(votes, near, 1.0, axis=1)
        voted: Floats = np.add.reduceat(votes, starts, axis=1) + 1 / (2 + nearest)
        return voted


def cluster(points: Floats, counts: Floats, most: int, seed: int) -> Centroids:
    """At most so many centroids of weighted points, by k-means; few points are kept as means."""
    most = min(most, len(points))
    model = KMeans(most, n_init=1, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that are the same
        members = model.fit(np.asarray(points, np.float64), sample_weight=counts).labels_
    belongs = (members[:, None] == np.unique(members)) * counts[:, None]
    sizes = belongs.sum(axis=0)
    return Centroids((belongs.T @ points / sizes[:, None]).astype(np.float32), sizes)
