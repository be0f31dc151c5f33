"""Feature translation: past classes borrow the samples of new ones."""

from __future__ import annotations

import numpy as np

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels
from fecam.heads.moments import ClassMeans, add_means, means_of
from fecam.heads.rehearsal import RehearsalHead, draw_rows


class FeTrIL(RehearsalHead[ClassMeans]):
    r"""Feature translation (Petit et al. 2023): a mean a class, and a linear classifier.

    At each task a past class p is stood for by the samples of the most similar new class n, moved
    to its place: :math:`x + \mu_p - \mu_n`. Similar is the cosine of the means. On these and the
    new samples a linear classifier over all classes is trained from scratch.

    Parameters
    ----------
    classifier : {"linear", "svm"}
        Multinomial logistic regression, or one linear SVM a class. Both see features of unit
        length, as the SVM of the original does.
    samples : int
        At most so many samples a class, past or new, drawn at random: it bounds the time.
    seed : int
        Of these draws.

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
        return translated(memory, X, y, self.samples, rng)


def translated(
    past: ClassMeans, X: Floats, y: Labels, most: int, rng: np.random.Generator
) -> tuple[Floats, Labels]:
    """Samples of each past class: those of the most similar new class, moved to its mean."""
    new = means_of(X, y)
    gone = ~np.isin(past.labels, new.labels)  # a class that comes back needs no stand-ins
    similar = (unit_length(past.means) @ unit_length(new.means).T).argmax(axis=1)
    made_up, labels = [X[:0].astype(np.float64)], [past.labels[:0]]
    for label, mean, nearest in zip(
        past.labels[gone], past.means[gone], similar[gone], strict=True
    ):
        rows = np.flatnonzero(y == new.labels[nearest])
        rows = rows[draw_rows(y[rows], most, rng)]
        made_up.append(X[rows] + (mean - new.means[nearest]))
        labels.append(np.full(len(rows), label))
    return np.concatenate(made_up), np.concatenate(labels)
