"""Linear classifiers, trained by scikit-learn on features of unit length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels

# On frozen features of photographs unit length is at least as good as raw or standardised features
# for both, at these C. The tolerance of the logistic regression is compared with a gradient that is
# smaller the more classes and features there are: at 1e-3 it would not move at all from zero for
# 150 classes. The dual of the SVM is the faster one although there are more samples than features.
KINDS: Mapping[str, Callable[[], Any]] = {
    "linear": lambda: LogisticRegression(C=10.0, tol=1e-5, max_iter=100),
    "svm": lambda: LinearSVC(C=1.0, tol=0.1, max_iter=10, dual=True, random_state=0),
}
"""Multinomial logistic regression, and one linear SVM a class against all others."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """One hyperplane a class."""

    labels: Labels
    weights: Floats
    """(features, classes)"""
    offsets: Floats

    def scores(self, X: Floats) -> Floats:
        """On which side each sample lies of each hyperplane, and how far."""
        scores: Floats = unit_length(X) @ self.weights + self.offsets
        return scores


def train(X: Floats, y: Labels, kind: str) -> Linear:
    """A linear classifier over all classes in ``y``. One class alone needs no hyperplane."""
    labels = np.unique(y)
    if len(labels) == 1:
        return Linear(labels, np.zeros((X.shape[1], 1), np.float32), np.zeros(1, np.float32))
    weights, offsets = hyperplanes(X, y, kind)
    if len(labels) == 2:  # one hyperplane between two classes, seen from both sides
        half = 0.5 if kind == "linear" else 1.0  # so that the softmax is the logistic function
        weights, offsets = np.outer([-half, half], weights), offsets * [-half, half]
    return Linear(labels, weights.T.astype(np.float32), offsets.astype(np.float32))


def hyperplanes(X: Floats, y: Labels, kind: str) -> tuple[Floats, Floats]:
    """Weights and offsets as scikit-learn gives them: one row for two classes."""
    model = KINDS[kind]()
    with warnings.catch_warnings():
        # The number of steps is bounded on purpose.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(unit_length(np.asarray(X, np.float64)), y)
    return model.coef_, model.intercept_
