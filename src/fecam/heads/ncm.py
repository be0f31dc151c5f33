"""Nearest class mean."""

from sklearn.metrics.pairwise import euclidean_distances

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.moments import ClassMeans, add_means, means_of
from fecam.validation import check_choice


class NearestMean(MergeableHead[ClassMeans]):
    r"""Nearest class mean.

    The score of class y is :math:`-\lVert x - \mu_y \rVert^2` or :math:`\cos(x, \mu_y)`.

    Parameters
    ----------
    metric : {"euclidean", "cosine"}
        Which of the two scores.

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

    def _summarize(self, X: Floats, y: Labels, state: ClassMeans | None) -> ClassMeans:
        return means_of(X, y)

    def _add(self, a: ClassMeans, b: ClassMeans) -> ClassMeans:
        return add_means(a, b)

    def _score(self, derived: ClassMeans, X: Floats) -> Floats:
        if self.metric == "cosine":
            cosine: Floats = unit_length(X) @ unit_length(derived.means).T
            return cosine
        distances: Floats = euclidean_distances(X, derived.means, squared=True)
        return -distances
