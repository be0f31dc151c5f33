"""Streaming linear discriminant analysis (SLDA)."""

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fecam.errors import SingularMatrixError
from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.moments import Moments, add_moments, moments_of
from fecam.validation import check_number


class StreamingLDA(MergeableHead[Moments]):
    r"""Streaming LDA (Hayes and Kanan 2020): one mean per class and one covariance matrix.

    The score of class y is :math:`x^T P \mu_y - \mu_y^T P \mu_y / 2` with the precision matrix
    :math:`P = ((1 - \varepsilon)\,S + \varepsilon\,I)^{-1}`, where S is the within-class covariance
    over all samples. The original updates S sample by sample around a moving mean; this is the
    exact covariance, which does not depend on order and batches.

    Parameters
    ----------
    shrinkage : float
        :math:`\varepsilon`, from 0 to 1.

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

    def _summarize(self, X: Floats, y: Labels, state: Moments | None) -> Moments:
        return moments_of(X, y)

    def _add(self, a: Moments, b: Moments) -> Moments:
        return add_moments(a, b)

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities of Gaussian classes with equal priors."""
        return self._softmax(X)

    def _derive(self, state: Moments) -> tuple[Floats, Floats]:
        """Return weights and intercepts of the linear scores."""
        means = state.classes.means
        covariance = (1 - self.shrinkage) * state.scatter / state.classes.counts.sum()
        covariance[np.diag_indices_from(covariance)] += self.shrinkage
        try:
            weights = cho_solve(cho_factor(covariance), means.T)
        except LinAlgError:
            raise SingularMatrixError(
                f"the within-class covariance is singular at shrinkage={self.shrinkage!r}. "
                "Increase shrinkage, or scale the features down."
            ) from None
        return weights, -0.5 * np.sum(means.T * weights, axis=0)

    def _score(self, derived: tuple[Floats, Floats], X: Floats) -> Floats:
        weights, intercepts = derived
        return X @ weights + intercepts
