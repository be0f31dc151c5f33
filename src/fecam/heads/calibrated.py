"""FeCAM with few-shot calibration: classes of few samples borrow from those of the first task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from fecam.core.cache import FactorCache
from fecam.core.covariance import scatter_of
from fecam.core.panel import Panel
from fecam.core.scatter import Scatter, to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Head, Labels, softmax
from fecam.heads.mahalanobis import labels_of, learn, metric_of, queries_of
from fecam.validation import check_int, check_number


class CalibratedFeCAM(Head[ClassifierState]):
    r"""FeCAM whose few-shot classes borrow from similar base classes (Goswami et al. 2024).

    Base classes are those of the first task. A later class n of few samples looks at base class b
    with the weight :math:`w_b = \mathrm{softmax}(s \cos(\mu_n, \mu_b))`. Its matrix becomes
    :math:`\Sigma_n + \sum_b w_b \Sigma_b`, its mean
    :math:`\alpha \mu_n + (1 - \alpha) \lVert \mu_n \rVert u` with :math:`u` the direction of
    :math:`\sum_b w_b \mu_b / \lVert \mu_b \rVert`. All else is the paper's setting: query and
    prototype of unit length, shrinkage, correlation. Only what was taught is kept; what was
    borrowed is derived from it when it is needed.

    Parameters
    ----------
    alpha : float
        How much of its own mean a class keeps; the original takes 0.9, or 0.75 on CIFAR-100.
    softmax_scale : float
        s above, 16 in the original.
    max_samples : int
        Classes of at most so many samples borrow.
    tukey : float, "auto" or None
        As in FeCAM.
    shrinkage : (float, float)
        As in FeCAM. Less favours the classes that borrow, more those of the first task.

    Examples
    --------
    >>> head = CalibratedFeCAM().partial_fit([[0.0, 1.0], [0.1, 1.0]], ["a", "a"])
    >>> head.partial_fit([[1.0, 0.0]], ["b"]).predict([[0.0, 3.0], [3.0, 0.1]]).tolist()
    ['a', 'b']
    """

    _fixed = ("tukey",)

    def __init__(
        self,
        *,
        alpha: float = 0.9,
        softmax_scale: float = 16.0,
        max_samples: int = 30,
        tukey: float | str | None = "auto",
        shrinkage: tuple[float, float] = (3.0, 3.0),
    ) -> None:
        self.alpha = alpha
        self.softmax_scale = softmax_scale
        self.max_samples = max_samples
        self.tukey = tukey
        self.shrinkage = shrinkage

    def _fecam_settings(self) -> dict[str, Any]:
        return {
            "tukey": self.tukey,
            "shrinkage": self.shrinkage,
            "l2": "compare",
            "pooling": 0.0,
            "mean_uncertainty": 0.0,
        }

    def _check_settings(self) -> None:
        check_number("alpha", self.alpha, maximum=1.0)
        check_number("softmax_scale", self.softmax_scale)
        check_int("max_samples", self.max_samples, minimum=0)
        metric_of(self._fecam_settings())

    def _learn(self, before: ClassifierState | None, X: Floats, y: Labels) -> ClassifierState:
        return learn(before, X, y, self._fecam_settings())

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""
        return self._combine(other, ClassifierState.merge)

    def _labels(self, known: ClassifierState) -> Labels:
        return labels_of(known)

    def _derive(self, known: ClassifierState) -> tuple[ClassifierState, Panel]:
        borrowed = calibrated(known, self.alpha, self.softmax_scale, self.max_samples)
        return known, FactorCache().panel(borrowed, metric_of(self._fecam_settings()))

    def _score(self, derived: tuple[ClassifierState, Panel], X: Floats) -> Floats:
        known, panel = derived
        queries = queries_of(X, known, metric_of(self._fecam_settings()))
        return -np.asarray(panel.distances(queries), np.float64)


def calibrated(
    known: ClassifierState, alpha: float, softmax_scale: float, max_samples: int
) -> ClassifierState:
    """The same knowledge, but with what the later classes of few samples borrow."""
    first = min(known.tasks.values())
    base = [one for label, one in known.classes.items() if known.tasks[label] == first]
    few_shot = {
        label: one
        for label, one in known.classes.items()
        if known.tasks[label] != first and one.count <= max_samples
    }
    if not few_shot:
        return known
    directions = unit_length(np.stack([one.mean for one in base]))
    means = np.stack([one.mean for one in few_shot.values()])
    weights = softmax(softmax_scale * unit_length(means) @ directions.T)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    means = alpha * means + (1 - alpha) * lengths * unit_length(weights @ directions)
    upper = np.triu_indices(known.n_features)
    lent = weights.astype(known.like.dtype) @ np.stack([_covariance(one)[upper] for one in base])
    changed = {
        label: _with_moments(one, mean, numbers + _covariance(one)[upper], known)
        for (label, one), mean, numbers in zip(few_shot.items(), means, lent, strict=True)
    }
    return replace(known, classes={**known.classes, **changed})


def _covariance(one: ClassStatistics) -> Floats:
    return np.asarray(to_dense(scatter_of(one)) / max(one.count - 1, 1), one.raw_mean.dtype)


def _with_moments(
    one: ClassStatistics, mean: Floats, covariance: Floats, known: ClassifierState
) -> ClassStatistics:
    """Statistics that give this mean and, by its upper triangle, this covariance."""
    numbers = covariance * max(one.count - 1, 1)
    return replace(one, mean=mean, scatter=Scatter(numbers, "packed", known.n_features))
