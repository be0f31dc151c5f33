"""The estimator among scikit-learn's tools."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fecam import FeCAMClassifier

TWO_COLUMNS = (
    "decision_function has one column per class, also for two classes: a shape that changes when "
    "a third class is learned would break callers. TwoClassShape below passes these checks."
)


class TwoClassShape(FeCAMClassifier):
    """The estimator with scikit-learn's shape for two classes: one column, the difference."""

    def decision_function(self, X):
        scores = super().decision_function(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def expected_failures(estimator):
    if isinstance(estimator, TwoClassShape):
        return {}
    checks = (
        "check_classifiers_train",
        "check_classifiers_classes",
        "check_decision_proba_consistency",
    )
    return {name: TWO_COLUMNS for name in checks}


@parametrize_with_checks(
    [
        TwoClassShape(),
        TwoClassShape.from_preset("vit"),
        TwoClassShape.from_preset("ncm"),
        TwoClassShape(covariance="pooled", tukey=None),
        TwoClassShape(covariance="common", tukey=None),
        TwoClassShape(covariance="diagonal", tukey=None),
        FeCAMClassifier(),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_in_a_pipeline_and_under_cross_validation(digits):
    X, y, *_ = digits
    scores = cross_val_score(make_pipeline(MinMaxScaler(), FeCAMClassifier()), X, y, cv=3)
    assert scores.mean() > 0.95


def test_in_a_grid_search_with_processes(digits):
    X, y, *_ = digits
    grid = GridSearchCV(FeCAMClassifier(), {"pooling": ["auto", 0.0]}, cv=2, n_jobs=2)
    assert grid.fit(X[:300], y[:300]).best_score_ > 0.8


def test_clone_and_set_params():
    clf = FeCAMClassifier.from_preset("paper")
    assert clone(clf).get_params() == clf.get_params()
    assert clf.set_params(shrinkage=(2, 2)).shrinkage == (2, 2)


@pytest.mark.parametrize("through", ["pickle", "joblib"])
def test_a_copy_gives_the_same_predictions(digits, tmp_path, through):
    X, y, Q, _ = digits
    clf = FeCAMClassifier().partial_fit(X, y)
    if through == "pickle":
        copy = pickle.loads(pickle.dumps(clf))
    else:
        joblib.dump(clf, tmp_path / "clf.joblib")
        copy = joblib.load(tmp_path / "clf.joblib")
    np.testing.assert_array_equal(copy.decision_function(Q), clf.decision_function(Q))
    copy.partial_fit(X[:5], y[:5])
    assert copy.class_count_.sum() == clf.class_count_.sum() + 5


def test_a_pickle_holds_the_state_and_nothing_derived(digits):
    X, y, Q, _ = digits
    clf = FeCAMClassifier().fit(X, y)
    before = len(pickle.dumps(clf))
    clf.predict(Q)
    assert len(pickle.dumps(clf)) == before


def test_data_frames_are_checked_by_column_name():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((20, 3)), columns=["a", "b", "c"])
    clf = FeCAMClassifier().fit(frame, ["x", "y"] * 10)
    assert clf.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(frame.rename(columns={"a": "z"}))
