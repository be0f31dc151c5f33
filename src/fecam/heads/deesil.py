"""DeeSIL: one linear SVM per class, trained on the task of the class."""

import numpy as np

from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.linear import LinearClassifier, fit_hyperplanes, fit_linear
from fecam.heads.moments import ClassMeans, add_means


class DeeSIL(MergeableHead[ClassMeans]):
    """One linear SVM per class (Belouadah and Popescu 2018), never updated.

    Each class is separated from the other classes *of its task* only. Features have unit length. A
    single class in a task is separated from its mirror image, which is the one-class SVM. If a
    class occurs in several tasks, the scores of its SVMs are averaged, weighted by samples.

    Examples
    --------
    >>> head = DeeSIL().partial_fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> head.partial_fit([[-1.0, 0.0]], ["c"]).predict([[0.0, 3.0], [-3.0, 0.0]]).tolist()
    ['a', 'c']
    """

    def _summarize(self, X: Floats, y: Labels, state: ClassMeans | None) -> ClassMeans:
        # `ClassMeans` averages rows weighted by counts; these rows are hyperplanes.
        labels, counts = np.unique(y, return_counts=True)
        return ClassMeans(labels, counts.astype(np.int64), fit_svms(X, y))

    def _add(self, a: ClassMeans, b: ClassMeans) -> ClassMeans:
        return add_means(a, b)

    def _derive(self, state: ClassMeans) -> LinearClassifier:
        return LinearClassifier(state.labels, state.means[:, :-1].T, state.means[:, -1])

    def _score(self, derived: LinearClassifier, X: Floats) -> Floats:
        return derived.scores(X)


def fit_svms(X: Floats, y: Labels) -> Floats:
    """Return one row per class: the weights of its SVM and, last, the intercept."""
    if len(np.unique(y)) == 1:
        mirrored, sides = np.concatenate([X, -X]), np.repeat([1, 0], len(X))
        weights, intercepts = fit_hyperplanes(mirrored, sides, "svm")
        return np.concatenate([weights, intercepts[:, None]], axis=1)
    linear = fit_linear(X, y, "svm")
    return np.concatenate([linear.weights, linear.intercepts[None]]).T.astype(np.float64)
