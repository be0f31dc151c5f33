"""Linear classifiers of scikit-learn on features of unit length."""

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

# Measured on frozen features of photographs: for both estimators, unit length at these C is at
# least as good as raw or standardized features. scikit-learn compares the tolerance of the logistic
# regression with a gradient that shrinks with the number of classes and features: with tol=1e-3 it
# stops at the zero vector for 150 classes. The dual SVM is faster although n > d.
ESTIMATORS: Mapping[str, Callable[[], Any]] = {
    "linear": lambda: LogisticRegression(C=10.0, tol=1e-5, max_iter=100),
    "svm": lambda: LinearSVC(C=1.0, tol=0.1, max_iter=10, dual=True, random_state=0),
}
"""Multinomial logistic regression, and one-vs-rest linear SVMs."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearClassifier:
    """One hyperplane per class."""

    labels: Labels
    weights: Floats
    """(n_features, n_classes)"""
    intercepts: Floats

    def scores(self, X: Floats) -> Floats:
        """Return the signed distances to the hyperplanes, up to scale."""
        scores: Floats = unit_length(X) @ self.weights + self.intercepts
        return scores


def fit_linear(X: Floats, y: Labels, kind: str) -> LinearClassifier:
    """Return a linear classifier over all classes in ``y``; a single class has zero weights."""
    labels = np.unique(y)
    if len(labels) == 1:
        zeros = np.zeros((X.shape[1], 1), np.float32)
        return LinearClassifier(labels, zeros, np.zeros(1, np.float32))
    weights, intercepts = fit_hyperplanes(X, y, kind)
    if len(labels) == 2:  # scikit-learn returns one hyperplane for two classes
        half = 0.5 if kind == "linear" else 1.0  # then the softmax is the logistic function
        weights, intercepts = np.outer([-half, half], weights), intercepts * [-half, half]
    return LinearClassifier(labels, weights.T.astype(np.float32), intercepts.astype(np.float32))


def fit_hyperplanes(X: Floats, y: Labels, kind: str) -> tuple[Floats, Floats]:
    """Return ``coef_`` and ``intercept_`` of scikit-learn: one row for two classes."""
    model = ESTIMATORS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter is small on purpose
        model.fit(unit_length(np.asarray(X, np.float64)), y)
    return model.coef_, model.intercept_
