"""The estimator among scikit-learn's tools."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fecam import FeCAMClassifier
from fecam.errors import UnknownLabelError

TWO_COLUMNS = (
    "decision_function has one column per class, also for two classes: a shape that changes when "
    "a third class is learned would break callers. TwoClassShape below passes these checks."
)


class TwoClassShape(FeCAMClassifier):
    """The estimator with scikit-learn's shape for two classes: one column, the difference.

    Of distances that are not squared, because they rank samples as probabilities do.
    """

    def decision_function(self, X):
        if len(self.classes_) != 2:
            return super().decision_function(X)
        distances = self.transform(X)
        return distances[:, 0] - distances[:, 1]


MEASURED_ROWS = (
    "predict_proba is calibrated by distances of a few rows of each batch, and the check shuffles "
    "the rows. Distances are equal: test_weights_equal_repetition."
)


def expected_failures(estimator):
    weights = {"check_sample_weight_equivalence_on_dense_data": MEASURED_ROWS}
    if isinstance(estimator, TwoClassShape):
        return weights
    checks = (
        "check_classifiers_train",
        "check_classifiers_classes",
        "check_decision_proba_consistency",
    )
    return {name: TWO_COLUMNS for name in checks} | weights


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


COVARIANCES = ["class", "common", "pooled", "diagonal", "identity"]


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("preset", ["paper", "vit", None])
@pytest.mark.parametrize("n_samples", [1, 5, 60])
def test_distances_follow_from_the_means_and_the_covariances(covariance, preset, n_samples):
    rng = np.random.default_rng(0)
    y = np.repeat([3, 5], [n_samples, 40])
    X, Q = rng.gamma(2, size=(len(y), 12)) + y[:, None], rng.gamma(2, size=(7, 12))
    changes = {"covariance": covariance, "dtype": "float64"}
    clf = FeCAMClassifier.from_preset(preset, **changes) if preset else FeCAMClassifier(**changes)
    clf.fit(X, y)
    Z = clf.state_.transform(Q)
    if clf.l2 == "compare":
        Z = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    squares = np.empty((len(Q), 2))
    for column, label in enumerate(clf.classes_):
        difference = Z - clf.means_[column]
        precision = np.linalg.inv(clf.covariance_(label))
        squares[:, column] = np.einsum("ni,ij,nj->n", difference, precision, difference)
    np.testing.assert_allclose(clf.transform(Q), np.sqrt(squares), rtol=1e-7)
    np.testing.assert_allclose(clf.decision_function(Q), -squares, rtol=1e-7)


def test_means_and_covariances_of_plain_settings_are_those_of_numpy():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.repeat(["a", "b"], 30)
    clf = FeCAMClassifier.from_preset("ncm", covariance="class", dtype="float64")
    clf.set_params(normalization=None, shrinkage=(0, 0)).fit(X, y)
    np.testing.assert_allclose(clf.means_, [X[:30].mean(axis=0), X[30:].mean(axis=0)])
    np.testing.assert_allclose(clf.covariance_("b"), np.cov(X[30:].T))
    with pytest.raises(UnknownLabelError, match="'c' was never learned"):
        clf.covariance_("c")


def test_log_probabilities_do_not_underflow(digits):
    X, y, Q, _ = digits
    clf = FeCAMClassifier().fit(X, y)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(Q)), clf.predict_proba(Q))
    far = clf.predict_log_proba(100 * X[:5] + 1e-3)
    assert np.isfinite(far).all()
    assert np.isfinite(
        FeCAMClassifier.from_preset("ncm").fit(X, y).predict_log_proba(1e4 * Q)
    ).all()


def test_transform_in_a_pipeline_of_data_frames(digits):
    X, y, Q, _ = digits
    clf = FeCAMClassifier().set_output(transform="pandas")
    frame = clf.fit(X, y).transform(Q)
    assert frame.columns.tolist() == [f"fecamclassifier_{digit}" for digit in range(10)]
    np.testing.assert_array_equal(frame.to_numpy().argmin(axis=1), clf.predict(Q))
    pipeline = make_pipeline(FeCAMClassifier(), LogisticRegression(max_iter=1000))
    assert pipeline.fit(X, y).score(Q, digits[3]) > 0.95
