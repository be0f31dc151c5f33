"""A linear classifier trained on samples of the Gaussians that FeCAM keeps."""

from __future__ import annotations

import numpy as np

from fecam.core.batches import group_by_label, summarize_batch
from fecam.core.covariance import scatter_of
from fecam.core.scatter import to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import Transform
from fecam.errors import SingularMatrixError
from fecam.heads.head import Floats, Labels
from fecam.heads.rehearsal import RehearsalHead

JITTERS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Added to the variances, in parts of their mean, so that a covariance has a Cholesky factor."""


class GaussianLinear(RehearsalHead[ClassifierState]):
    """A mean and a covariance a class, and a linear classifier: the paper's counter-example.

    At each task a past class is stood for by samples of the Gaussian with its mean and covariance.
    On these and the new samples a linear classifier over all classes is trained from scratch. It
    knows as much of the classes as FeCAM does.

    Parameters
    ----------
    classifier : {"linear", "svm"}
        Multinomial logistic regression, or one linear SVM a class, on features of unit length.
    samples : int
        So many samples of each past class, and at most so many of a new one.
    seed : int
        Of these draws.

    Examples
    --------
    >>> head = GaussianLinear().partial_fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> head.partial_fit([[-1.0, 0.0]], ["c"]).predict([[0.0, 3.0], [-3.0, 0.0]]).tolist()
    ['a', 'c']
    """

    def _update_memory(
        self, memory: ClassifierState | None, X: Floats, y: Labels
    ) -> ClassifierState:
        if memory is None:
            anchor = np.zeros(0, np.float32)
            memory = ClassifierState(Transform(None, unit=False), "full", X.shape[1], anchor)
        rows = group_by_label(X, y, memory.transform)
        return memory.learn(summarize_batch(rows, memory.scatter_kind, memory.like.dtype))

    def _pseudo_samples(
        self, memory: ClassifierState, X: Floats, y: Labels, rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        here = set(np.unique(y).tolist())
        past = {label: one for label, one in memory.classes.items() if label not in here}
        made_up = [gaussian_samples(one, self.samples, rng) for one in past.values()]
        empty = X[:0].astype(np.float64)
        labels = np.asarray(list(past), dtype=None if past else y.dtype)
        return np.concatenate([empty, *made_up]), np.repeat(labels, self.samples)


def gaussian_samples(one: ClassStatistics, count: int, rng: np.random.Generator) -> Floats:
    """Samples of the Gaussian with the mean and the covariance of a class."""
    mean, freedom = np.asarray(one.mean), max(one.count - 1, 1)
    scatter = scatter_of(one)
    factor: Floats
    if scatter.storage == "low_rank":  # already a factor: R^T R is the scatter
        factor = np.asarray(scatter.data, np.float64)
    else:
        factor = _factor(np.asarray(to_dense(scatter), np.float64))
    samples: Floats = mean + rng.normal(size=(count, len(factor))) @ factor / freedom**0.5
    return samples


def _factor(covariance: Floats) -> Floats:
    """A square root, from the first jitter that outweighs the rounding of what was kept."""
    mean_variance = max(covariance.diagonal().mean(), np.finfo(np.float64).tiny)
    for jitter in JITTERS:
        try:
            lower = np.linalg.cholesky(
                covariance + jitter * mean_variance * np.eye(len(covariance))
            )
        except np.linalg.LinAlgError:
            continue
        return np.asarray(lower.T)
    raise SingularMatrixError(
        "the covariance of a class has a negative eigenvalue far beyond rounding: it was not "
        "learnt from finite features. Teach a new model."
    )
