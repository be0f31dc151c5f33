"""One linear SVM a class, each trained on the data of its own task."""

from __future__ import annotations

from typing import Self

import numpy as np

from fecam.heads.head import Floats, Head, Labels
from fecam.heads.linear import Linear, hyperplanes, train
from fecam.heads.moments import ClassMeans, add_means


class DeeSIL(Head[ClassMeans]):
    """One linear SVM a class (Belouadah and Popescu 2018), kept as it is ever after.

    A class is separated from the other classes *of its task*; what came before or comes later it
    has never met. Features are brought to unit length. A class that is alone in its task is
    separated from the mirror image of its samples, which is the one-class SVM. For a class that
    comes back, the scores of its SVMs are averaged, weighted by their numbers of samples.

    Examples
    --------
    >>> head = DeeSIL().partial_fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> head.partial_fit([[-1.0, 0.0]], ["c"]).predict([[0.0, 3.0], [-3.0, 0.0]]).tolist()
    ['a', 'c']
    """

    def _learn(self, before: ClassMeans | None, X: Floats, y: Labels) -> ClassMeans:
        # An average weighted by counts is what class means are: the rows here are hyperplanes.
        labels, counts = np.unique(y, return_counts=True)
        task = ClassMeans(labels, counts.astype(np.int64), separate(X, y))
        return task if before is None else add_means(before, task)

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""
        return self._combine(other, add_means)

    def _derive(self, known: ClassMeans) -> Linear:
        return Linear(known.labels, known.means[:, :-1].T, known.means[:, -1])

    def _score(self, derived: Linear, X: Floats) -> Floats:
        return derived.scores(X)


def separate(X: Floats, y: Labels) -> Floats:
    """One row a class: the weights of its SVM and, last, the offset."""
    if len(np.unique(y)) == 1:
        weights, offsets = hyperplanes(np.concatenate([X, -X]), np.repeat([1, 0], len(X)), "svm")
        return np.concatenate([weights, offsets[:, None]], axis=1)
    linear = train(X, y, "svm")
    return np.concatenate([linear.weights, linear.offsets[None]]).T.astype(np.float64)
