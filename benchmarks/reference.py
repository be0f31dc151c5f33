"""References for speed, and the classifiers that are compared with them.

`Dense` is the dense whitening product, with all that can be cached. `Public` is what the public
implementations compute in each call. Both start from the matrices of a classifier, use none of its
precisions, and predict from raw features like the classifier itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from fecam import FeCAMClassifier
from fecam.core.covariance import whiten
from fecam.core.metric import class_covariance, distance_scale, prototype_of
from fecam.core.transforms import unit_length
from problems import Batches

SETTINGS = ("paper", "default")
SEARCHES = ("exhaustive", "exact", "approximate", "auto")

Answer = Callable[[np.ndarray], np.ndarray]


def classifier(setting: str) -> FeCAMClassifier:
    """The paper's settings, or the default ones."""
    return FeCAMClassifier() if setting == "default" else FeCAMClassifier.from_preset(setting)


def fitted(setting: str, batches: Batches) -> FeCAMClassifier:
    """A classifier that learned class by class."""
    clf = classifier(setting)
    for label, X in batches:
        clf.partial_fit(X, np.full(len(X), label))
    return clf


def derive(clf: FeCAMClassifier, queries: np.ndarray) -> None:
    """Derive all that searches need, which a few queries alone would not do, and predict."""
    _ = clf.predictor_.pruned_search
    clf.predict(queries)


def searching(clf: FeCAMClassifier, search: str) -> Answer:
    """``predict`` with this search; all searches share what the classifier derived."""

    def answer(X: np.ndarray) -> np.ndarray:
        clf.search = search
        return np.asarray(clf.predict(X))

    return answer


def asking(answer: Answer, queries: np.ndarray, batch: int) -> Callable[[], np.ndarray]:
    """A task for `reporting.side_by_side`: each call answers the next ``batch`` of the queries."""
    batch = min(batch, len(queries))
    starts = range(0, len(queries) - batch + 1, batch)
    blocks = cycle([np.ascontiguousarray(queries[start : start + batch]) for start in starts])
    return lambda: answer(next(blocks))


class _Reference:
    """Centers and scales of all classes, and queries as they are compared with them."""

    def __init__(self, clf: FeCAMClassifier) -> None:
        self.metric, self.transform, self.labels = clf.metric_, clf.state_.transform, clf.classes_
        classes = clf.state_.classes.values()
        centers = [prototype_of(stats, self.metric, self.transform) for stats in classes]
        self.centers = np.stack(centers).astype(np.float32)
        scales = [distance_scale(stats, self.metric) for stats in classes]
        self.scales = np.asarray(scales, np.float32)

    def prepare(self, X: np.ndarray) -> np.ndarray:
        """Queries, transformed by the parameters of the classifier."""
        queries = self.transform(X)
        return unit_length(queries) if self.metric.unit_compare else queries


class Dense(_Reference):
    r"""The dense product :math:`\lVert (x - c)\,T \rVert^2` with a cached T per class."""

    def __init__(self, clf: FeCAMClassifier) -> None:
        super().__init__(clf)
        precision = float(np.finfo(np.float32).eps)  # that of the stored scatters
        self.whitenings = [
            np.ascontiguousarray(whiten(matrix, precision), dtype=np.float32)
            for matrix in matrices(clf)
        ]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The nearest class of each query."""
        queries = self.prepare(X)
        if len(queries) == 1:
            return self.labels[[self._nearest(queries[0])]]
        shifted, white = np.empty_like(queries), np.empty_like(queries)
        squares = np.empty((len(self.labels), len(queries)), np.float32)
        for row, center, whitening in zip(squares, self.centers, self.whitenings, strict=True):
            np.subtract(queries, center, out=shifted)
            np.matmul(shifted, whitening, out=white)
            np.einsum("ij,ij->i", white, white, out=row)
        return self.labels[np.argmin(squares * self.scales[:, None], axis=0)]

    def _nearest(self, query: np.ndarray) -> int:
        squares = np.empty(len(self.labels), np.float32)
        for i, whitening in enumerate(self.whitenings):
            white = (query - self.centers[i]) @ whitening
            squares[i] = white @ white
        return int(np.argmin(squares * self.scales))


class Public(_Reference):
    """What public implementations do in each call: invert each matrix, build N x N, keep N.

    In single precision, which is to their advantage. Their matrices are computed while learning,
    not in each call.
    """

    def __init__(self, clf: FeCAMClassifier) -> None:
        super().__init__(clf)
        self.matrices = [matrix.astype(np.float32) for matrix in matrices(clf)]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The nearest class of each query."""
        queries = self.prepare(X)
        columns = []
        for center, matrix in zip(self.centers, self.matrices, strict=True):
            difference = queries - center
            inverse = np.linalg.pinv(matrix)
            columns.append(np.diag(difference @ inverse @ difference.T))
        return self.labels[np.argmin(np.stack(columns, axis=1) * self.scales, axis=1)]


def matrices(clf: FeCAMClassifier) -> Iterator[np.ndarray]:
    """The regularized, normalized matrix of each class, one after another."""
    metric = clf.metric_
    prior = clf.current_prior() if metric.has_prior else None
    for stats in clf.state_.classes.values():
        yield np.asarray(class_covariance(stats, metric, prior))
