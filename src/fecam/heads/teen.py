"""TEEN: prototypes of few-shot classes, moved towards similar base classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.moments import ClassMeans, add_means, means_of
from fecam.validation import check_number


@dataclass(frozen=True, slots=True, eq=False)
class TeenState:
    """Class means, and the labels of the first task."""

    classes: ClassMeans
    base: Labels

    @property
    def labels(self) -> Labels:
        """Labels, sorted."""
        return self.classes.labels


class Teen(MergeableHead[TeenState]):
    r"""Training-free prototype calibration (Wang et al., NeurIPS 2023).

    With :math:`u(x) = x / \lVert x \rVert`, the prototype of a class n after the first task is

    .. math:: (1 - \alpha)\, u(\mu_n) + \alpha\, u\Bigl(\sum_b w_b\, u(\mu_b)\Bigr), \quad
        w_b = \mathrm{softmax}_b(s \cos(\mu_n, \mu_b))

    over the classes b of the first task, whose prototypes are their means. The score is the cosine
    to the prototype. The state has the original means; the calibration is derived. In a merge, the
    base classes are those of the head that is merged into.

    Parameters
    ----------
    alpha : float
        :math:`\alpha`, the share of base classes; 0 is the nearest mean. 0.5 in the original, 0.1
        for CIFAR-100.
    softmax_scale : float
        :math:`s`; 16 in the original.

    Examples
    --------
    >>> head = Teen().partial_fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    >>> head.partial_fit([[0.9, 1.0]], ["c"]).predict([[0.0, 3.0], [0.7, 0.8]]).tolist()
    ['a', 'c']
    """

    def __init__(self, *, alpha: float = 0.5, softmax_scale: float = 16.0) -> None:
        self.alpha = alpha
        self.softmax_scale = softmax_scale

    def _check_settings(self) -> None:
        check_number("alpha", self.alpha, maximum=1.0)
        check_number("softmax_scale", self.softmax_scale)

    def _summarize(self, X: Floats, y: Labels, state: TeenState | None) -> TeenState:
        classes = means_of(X, y)
        return TeenState(classes, classes.labels if state is None else state.base)

    def _add(self, a: TeenState, b: TeenState) -> TeenState:
        return TeenState(add_means(a.classes, b.classes), a.base)

    def _derive(self, state: TeenState) -> Floats:
        prototypes = unit_length(state.classes.means)
        is_base = np.isin(state.labels, state.base)
        base, new = prototypes[is_base], prototypes[~is_base]
        weights = softmax(self.softmax_scale * new @ base.T, axis=1)
        prototypes[~is_base] = (1 - self.alpha) * new + self.alpha * unit_length(weights @ base)
        calibrated: Floats = unit_length(prototypes)
        return calibrated

    def _score(self, derived: Floats, X: Floats) -> Floats:
        cosine: Floats = unit_length(X) @ derived.T
        return cosine
