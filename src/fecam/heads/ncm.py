"""The nearest class mean."""

from __future__ import annotations

from typing import Self

from sklearn.metrics.pairwise import euclidean_distances

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Head, Labels
from fecam.heads.moments import ClassMeans, add_means, means_of
from fecam.validation import check_choice


class NearestMean(Head[ClassMeans]):
    """The nearest class mean, by Euclidean distance or by the angle.

    Scores are minus the squared distance to the mean, or the cosine between sample and mean.

    Examples
    --------
    >>> head = NearestMean().partial_fit([[0.0, 1.0]], ["a"]).partial_fit([[2.0, 0.0]], ["b"])
    >>> head.predict([[0.0, 3.0], [3.0, 0.0]]).tolist()
    ['a', 'b']
    """

    def __init__(self, *, metric: str = "euclidean") -> None:
        self.metric = metric

    def _check_settings(self) -> None:
        check_choice("metric", self.metric, ("euclidean", "cosine"))

    def _learn(self, before: ClassMeans | None, X: Floats, y: Labels) -> ClassMeans:
        task = means_of(X, y)
        return task if before is None else add_means(before, task)

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""
        return self._combine(other, add_means)

    def _score(self, derived: ClassMeans, X: Floats) -> Floats:
        if self.metric == "cosine":
            cosine: Floats = unit_length(X) @ unit_length(derived.means).T
            return cosine
        distances: Floats = euclidean_distances(X, derived.means, squared=True)
        return -distances
