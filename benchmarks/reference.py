"""What speed is measured against, and the classifiers that are measured.

`Dense` is the dense whitening product, with everything cached that can be. `Public` is what the
public implementations compute at each call. Both start from a classifier's matrices, but share none
of its factors, and answer from raw features like the classifier itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np

from fecam import FeCAMClassifier
from fecam.core.covariance import whiten
from fecam.core.metric import class_covariance, distance_scale, prototype_of
from fecam.core.transforms import unit_length
from problems import Lessons

SETTINGS = ("paper", "default")
SEARCHES = ("exhaustive", "exact", "approximate", "auto")

Answer = Callable[[np.ndarray], np.ndarray]


def classifier(setting: str) -> FeCAMClassifier:
    """The paper's settings, or the default ones."""
    return FeCAMClassifier() if setting == "default" else FeCAMClassifier.from_preset(setting)


def taught(setting: str, lessons: Lessons) -> FeCAMClassifier:
    """A classifier that was taught class by class."""
    clf = classifier(setting)
    for label, X in lessons:
        clf.partial_fit(X, np.full(len(X), label))
    return clf


def derive(clf: FeCAMClassifier, queries: np.ndarray) -> None:
    """Have queries answered through factors, which a few of them alone would not have made."""
    clf._derived.search(clf.state_, clf.metric_)
    clf.predict(queries)


def searching(clf: FeCAMClassifier, search: str) -> Answer:
    """``predict`` with this search; all searches share what the classifier has derived."""

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
    """Centres and scales of all classes, and queries as they are compared with them."""

    def __init__(self, clf: FeCAMClassifier) -> None:
        self.metric, known = clf.metric_, clf.state_
        self.labels, self.transform = clf.classes_, known.transform
        everyone = known.classes.values()
        centres = [prototype_of(one, self.metric, known.transform) for one in everyone]
        self.centres = np.stack(centres).astype(np.float32)
        self.scales = np.asarray([distance_scale(one, self.metric) for one in everyone], np.float32)

    def prepare(self, X: np.ndarray) -> np.ndarray:
        """Queries, transformed as the classifier's settings say."""
        queries = self.transform(X)
        return unit_length(queries) if self.metric.unit_compare else queries


class Dense(_Reference):
    r"""The dense whitening product: :math:`\lVert (x - c)\,T \rVert^2` with a cached T a class."""

    def __init__(self, clf: FeCAMClassifier) -> None:
        super().__init__(clf)
        precision = float(np.finfo(np.float32).eps)  # in which the scatters were kept
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
        for row, centre, whitening in zip(squares, self.centres, self.whitenings, strict=True):
            np.subtract(queries, centre, out=shifted)
            np.matmul(shifted, whitening, out=white)
            np.einsum("ij,ij->i", white, white, out=row)
        return self.labels[np.argmin(squares * self.scales[:, None], axis=0)]

    def _nearest(self, query: np.ndarray) -> int:
        squares = np.empty(len(self.labels), np.float32)
        for i, whitening in enumerate(self.whitenings):
            white = (query - self.centres[i]) @ whitening
            squares[i] = white @ white
        return int(np.argmin(squares * self.scales))


class Public(_Reference):
    """What public implementations do at each call: invert each matrix, build N x N, keep N.

    In single precision, which is kind to them. Their matrices are made while learning, so not at
    each call.
    """

    def __init__(self, clf: FeCAMClassifier) -> None:
        super().__init__(clf)
        self.matrices = [matrix.astype(np.float32) for matrix in matrices(clf)]

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The nearest class of each query."""
        queries = self.prepare(X)
        columns = []
        for centre, matrix in zip(self.centres, self.matrices, strict=True):
            difference = queries - centre
            inverse = np.linalg.pinv(matrix)
            columns.append(np.diag(difference @ inverse @ difference.T))
        return self.labels[np.argmin(np.stack(columns, axis=1) * self.scales, axis=1)]


def matrices(clf: FeCAMClassifier) -> Iterator[np.ndarray]:
    """The regularised, normalised matrix of each class, one after another."""
    metric, known = clf.metric_, clf.state_
    prior = None
    if metric.has_prior:
        clf.predict(np.ones((1, known.width), np.float32))  # brings the prior up to date
        prior = clf._derived.prior
    for one in known.classes.values():
        yield np.asarray(class_covariance(one, metric, prior))
