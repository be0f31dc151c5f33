"""Streaming linear discriminant analysis."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fecam.core.arrays import to_backend_of
from fecam.errors import SingularMatrixError
from fecam.heads.head import Floats, Head, Labels, softmax
from fecam.heads.moments import Moments, add_moments, moments_of
from fecam.validation import check_number


class StreamingLDA(Head[Moments]):
    r"""Streaming LDA (Hayes and Kanan 2020): a mean a class and one running covariance.

    The score of class y is :math:`x^T P m_y - m_y^T P m_y / 2` with the precision matrix
    :math:`P = ((1 - e)\,S + e\,I)^{-1}`, e the ``shrinkage`` and S the covariance within classes,
    divided by the number of all samples. The original updates S sample by sample, around a mean
    that moves; here it is the exact covariance that such updates approximate, so that order and
    batches do not matter.

    Examples
    --------
    >>> head = StreamingLDA().partial_fit([[0.0, 1.0], [0.0, 2.0]], ["a", "a"])
    >>> head.partial_fit([[2.0, 0.0]], ["b"]).predict([[0.0, 3.0], [3.0, 0.0]]).tolist()
    ['a', 'b']
    """

    def __init__(self, *, shrinkage: float = 1e-4) -> None:
        self.shrinkage = shrinkage

    def _check_settings(self) -> None:
        check_number("shrinkage", self.shrinkage, maximum=1.0)

    def _learn(self, before: Moments | None, X: Floats, y: Labels) -> Moments:
        task = moments_of(X, y)
        return task if before is None else add_moments(before, task)

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""
        return self._combine(other, add_moments)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class if classes are Gaussian and equally frequent."""
        array = self._checked(X)
        return to_backend_of(softmax(self._scores(array)), array)

    def _derive(self, known: Moments) -> tuple[Floats, Floats]:
        """Weights and offsets of the linear scores."""
        means = known.classes.means
        covariance = (1 - self.shrinkage) * known.scatter / known.classes.counts.sum()
        covariance[np.diag_indices_from(covariance)] += self.shrinkage
        try:
            weights = cho_solve(cho_factor(covariance), means.T)
        except LinAlgError:
            raise SingularMatrixError(
                f"the covariance of all classes is singular at shrinkage={self.shrinkage!r}. "
                "Raise shrinkage, or scale the features down."
            ) from None
        return weights, -0.5 * np.sum(means.T * weights, axis=0)

    def _score(self, derived: tuple[Floats, Floats], X: Floats) -> Floats:
        weights, offsets = derived
        return X @ weights + offsets
