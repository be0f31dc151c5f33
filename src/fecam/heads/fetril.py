"""FeTrIL: pseudo-features of past classes by translation."""

import numpy as np

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels
from fecam.heads.moments import ClassMeans, add_means, means_of
from fecam.heads.rehearsal import RehearsalHead, subsample_rows


class FeTrIL(RehearsalHead[ClassMeans]):
    r"""Feature translation (Petit et al. 2023): one mean per class, and a linear classifier.

    At each task, the pseudo-features of a past class p are the samples of the new class n with the
    most similar mean (cosine), translated: :math:`x + \mu_p - \mu_n`. A linear classifier over all
    classes is trained from scratch on these and on the new samples.

    Parameters
    ----------
    classifier : {"linear", "svm"}
        Multinomial logistic regression, or one-vs-rest linear SVMs. Features have unit length, as
        for the SVM of the original.
    samples : int
        Maximum number of samples per class, drawn at random; bounds the training time.
    seed : int
        Seed of the draws.

    Examples
    --------
    >>> head = FeTrIL().partial_fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> head.partial_fit([[-1.0, 0.0]], ["c"]).predict([[0.0, 3.0], [-3.0, 0.0]]).tolist()
    ['a', 'c']
    """

    def _update_memory(self, memory: ClassMeans | None, X: Floats, y: Labels) -> ClassMeans:
        task = means_of(X, y)
        return task if memory is None else add_means(memory, task)

    def _pseudo_samples(
        self, memory: ClassMeans, X: Floats, y: Labels, rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        return translate_features(memory, X, y, self.samples, rng)


def translate_features(
    past: ClassMeans, X: Floats, y: Labels, max_samples: int, rng: np.random.Generator
) -> tuple[Floats, Labels]:
    """Return pseudo-features of past classes: samples of the most similar new class, translated."""
    new = means_of(X, y)
    absent = ~np.isin(past.labels, new.labels)
    similar = (unit_length(past.means) @ unit_length(new.means).T).argmax(axis=1)
    features, labels = [X[:0].astype(np.float64)], [past.labels[:0]]
    for label, mean, nearest in zip(
        past.labels[absent], past.means[absent], similar[absent], strict=True
    ):
        rows = np.flatnonzero(y == new.labels[nearest])
        rows = rows[subsample_rows(y[rows], max_samples, rng)]
        features.append(X[rows] + (mean - new.means[nearest]))
        labels.append(np.full(len(rows), label))
    return np.concatenate(features), np.concatenate(labels)
