"""Heads among scikit-learn's tools: its own checks, of two heads that stand for all."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from fecam.heads import make
from fecam.heads.ncm import NearestMean
from fecam.heads.slda import StreamingLDA
from helpers.features import relu_features


class TwoClassShape:
    """scikit-learn's shape for two classes: one column. Heads have two, as classes come and go."""

    def decision_function(self, X):
        scores = super().decision_function(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


class TwoClassMean(TwoClassShape, NearestMean):
    pass


class TwoClassLDA(TwoClassShape, StreamingLDA):
    pass


@parametrize_with_checks([TwoClassMean(), TwoClassLDA()])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


def test_grid_search():
    X, y = relu_features(4, 15, 8, 1)
    search = GridSearchCV(make("slda"), {"shrinkage": [1e-4, 0.1, 1.0]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.6 and search.predict(X).shape == (60,)


def test_merged_head_is_independent():
    X, y = relu_features(4, 15, 8, 1)
    for name in ("ncm", "deesil", "fenec"):
        first = make(name).fit(X[y < 3], y[y < 3])
        scores = first.decision_function(X)
        second = make(name).merge(first).partial_fit(X[y == 3], y[y == 3])
        assert len(second.classes_) == 4 and len(first.classes_) == 3
        np.testing.assert_array_equal(first.decision_function(X), scores)
