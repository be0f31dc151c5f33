"""FeNeC: several centroids per class under FeCAM's distance."""

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fecam.core.batches import group_by_label
from fecam.core.distances import ExhaustiveDistances
from fecam.core.precision import DensePrecision
from fecam.core.state import ClassifierState
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.mahalanobis import (
    dense_precisions,
    labels_of,
    metric_of,
    summarize_task,
    transform_queries,
)
from fecam.presets import preset
from fecam.validation import check_int


@dataclass(frozen=True, slots=True, eq=False)
class Centroids:
    """Centroids of a class, and the number of samples of each."""

    points: Floats
    counts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FeNeCState:
    """FeCAM's statistics, and the centroids of each class in transformed features."""

    statistics: ClassifierState
    centroids: Mapping[Hashable, Centroids]

    @property
    def labels(self) -> Labels:
        """Labels, sorted."""
        return labels_of(self.statistics)


class FeNeC(MergeableHead[FeNeCState]):
    r"""Nearest centroid under FeCAM's distance (Ksiazek et al. 2025).

    k-means clusters the transformed features of each class; all centroids of a class share its
    covariance matrix. The score of a class is minus the squared distance to its nearest centroid.
    If a class occurs in several tasks, its centroids are clustered again, weighted by samples.

    Parameters
    ----------
    n_centroids : int
        Centroids per class; 1 is FeCAM.
    n_neighbors : int
        With 1, the nearest centroid decides. Otherwise the nearest centroids of all classes vote,
        and the nearer class wins a tie; the score is the number of votes plus a fraction.
    preset : str or None
        Preset of FeCAM's parameters; None for the defaults.
    seed : int
        Seed of k-means.

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
        return {**settings, "prototype": "mean-of-transforms"}  # as k-means centroids are

    def _check_settings(self) -> None:
        check_int("n_centroids", self.n_centroids)
        check_int("n_neighbors", self.n_neighbors)
        check_int("seed", self.seed, minimum=0)
        self._fecam_settings()

    def _summarize(self, X: Floats, y: Labels, state: FeNeCState | None) -> FeNeCState:
        before = None if state is None else state.statistics
        statistics = summarize_task(X, y, self._fecam_settings(), before)
        centroids = {
            label: self._cluster(rows.features, np.ones(len(rows.features)))
            for label, rows in group_by_label(X, y, statistics.transform).items()
        }
        return FeNeCState(statistics, centroids)

    def _add(self, a: FeNeCState, b: FeNeCState) -> FeNeCState:
        centroids = {**a.centroids, **b.centroids}
        for label in a.centroids.keys() & b.centroids.keys():
            both = a.centroids[label], b.centroids[label]
            points = np.concatenate([each.points for each in both])
            centroids[label] = self._cluster(points, np.concatenate([each.counts for each in both]))
        return FeNeCState(a.statistics.merge(b.statistics), centroids)

    def _cluster(self, points: Floats, counts: Floats) -> Centroids:
        return cluster_points(points, counts, self.n_centroids, self.seed)

    def _derive(self, state: FeNeCState) -> tuple[FeNeCState, ExhaustiveDistances]:
        metric = metric_of(self._fecam_settings())
        precisions: list[DensePrecision] = []
        for label, precision in zip(
            state.statistics.classes, dense_precisions(state.statistics, metric), strict=True
        ):
            points = np.asarray(state.centroids[label].points, np.float64)
            points = unit_length(points) if metric.unit_compare else points
            precisions += [replace(precision, center=point) for point in points]
        return state, ExhaustiveDistances(precisions, state.statistics.like.dtype)

    def _score(self, derived: tuple[FeNeCState, ExhaustiveDistances], X: Floats) -> Floats:
        state, distances_to = derived
        queries = transform_queries(X, state.statistics, metric_of(self._fecam_settings()))
        distances = np.asarray(distances_to(queries), np.float64)
        sizes = [len(state.centroids[label].points) for label in state.statistics.classes]
        starts = np.cumsum([0, *sizes[:-1]])
        nearest: Floats = np.minimum.reduceat(distances, starts, axis=1)
        if self.n_neighbors == 1:
            return -nearest
        neighbors = np.argsort(distances, axis=1, kind="stable")[:, : self.n_neighbors]
        votes = np.zeros(distances.shape)
        np.put_along_axis(votes, neighbors, 1.0, axis=1)
        scores: Floats = np.add.reduceat(votes, starts, axis=1) + 1 / (2 + nearest)
        return scores


def cluster_points(points: Floats, counts: Floats, max_centroids: int, seed: int) -> Centroids:
    """Return at most ``max_centroids`` k-means centroids of weighted points."""
    model = KMeans(min(max_centroids, len(points)), n_init=1, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # raised for equal points
        members = model.fit(np.asarray(points, np.float64), sample_weight=counts).labels_
    weights = (members[:, None] == np.unique(members)) * counts[:, None]
    sizes = weights.sum(axis=0)
    return Centroids((weights.T @ points / sizes[:, None]).astype(np.float32), sizes)
