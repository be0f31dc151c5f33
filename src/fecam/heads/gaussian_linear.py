"""A linear classifier trained on samples of one Gaussian per class."""

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
"""Fractions of the mean variance, tried in turn on the diagonal until Cholesky succeeds."""


class GaussianLinear(RehearsalHead[ClassifierState]):
    """Mean and covariance per class, and a linear classifier: the baseline of the FeCAM paper.

    At each task, the pseudo-samples of a past class are drawn from the Gaussian with its mean and
    covariance. A linear classifier over all classes is trained from scratch on these and on the
    new samples. The head stores the same statistics as FeCAM.

    Parameters
    ----------
    classifier : {"linear", "svm"}
        Multinomial logistic regression, or one-vs-rest linear SVMs, on features of unit length.
    samples : int
        Number of samples per past class, and maximum number per new class.
    seed : int
        Seed of the draws.

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
            like = np.zeros(0, np.float32)
            memory = ClassifierState(Transform(None, unit=False), "full", X.shape[1], like)
        rows = group_by_label(X, y, memory.transform)
        return memory.learn(summarize_batch(rows, memory.scatter_kind, memory.like.dtype))

    def _pseudo_samples(
        self, memory: ClassifierState, X: Floats, y: Labels, rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        present = set(np.unique(y).tolist())
        past = {label: stats for label, stats in memory.classes.items() if label not in present}
        samples = [sample_gaussian(stats, self.samples, rng) for stats in past.values()]
        labels = np.asarray(list(past), dtype=None if past else y.dtype)
        empty = X[:0].astype(np.float64)
        return np.concatenate([empty, *samples]), np.repeat(labels, self.samples)


def sample_gaussian(stats: ClassStatistics, count: int, rng: np.random.Generator) -> Floats:
    """Return samples of the Gaussian with the mean and covariance of a class."""
    scatter = scatter_of(stats)
    factor: Floats
    if scatter.storage == "low_rank":  # the data R is a factor: the scatter is R^T R
        factor = np.asarray(scatter.data, np.float64)
    else:
        factor = _cholesky(np.asarray(to_dense(scatter), np.float64))
    scale = max(stats.count - 1, 1) ** 0.5
    noise = rng.normal(size=(count, len(factor))) @ factor / scale
    samples: Floats = np.asarray(stats.mean) + noise
    return samples


def _cholesky(matrix: Floats) -> Floats:
    """Return an upper factor, with the first jitter that outweighs the rounding of the storage."""
    mean_variance = max(matrix.diagonal().mean(), np.finfo(np.float64).tiny)
    for jitter in JITTERS:
        try:
            lower = np.linalg.cholesky(matrix + jitter * mean_variance * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            continue
        return np.asarray(lower.T)
    raise SingularMatrixError(
        "the covariance of a class has a large negative eigenvalue: it was not computed from "
        "finite features. Learn a new model."
    )
