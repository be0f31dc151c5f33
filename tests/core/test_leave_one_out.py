"""Measured rows against brute force: each sample left out, the model fitted again."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core import leave_one_out
from fecam.core.expected import CalibratedPredictor
from fecam.core.leave_one_out import left_out_distances
from helpers.features import relu_features

CASES = {
    "default": {},
    "weak prior": {"pooling": 1.0, "shrinkage": (0.5, 0)},
    "no prior": {"pooling": 0.0},
    "unnormalized": {"pooling": 8.0, "normalization": None},
    "uncertain": {"pooling": 8.0, "mean_uncertainty": 4.0},
    "pooled": {"covariance": "pooled"},
    "diagonal": {"covariance": "diagonal", "pooling": 0.0},
    "identity": {"covariance": "identity"},
}


def both(settings, X, y):
    """The distances of samples to all classes without them: by formula, and by fitting again."""
    clf = FeCAMClassifier(dtype="float64", **settings).fit(X, y)
    predictor = CalibratedPredictor(clf.state_, clf.metric_)
    classes = list(clf.state_.classes.values())
    dof = sum(stats.count - 1 for stats in classes)
    precisions = predictor.precisions
    prior = predictor.prior if clf.metric_.has_prior else None
    formula, fitted = [], []
    for i in range(len(X)):
        own = int(np.searchsorted(clf.classes_, y[i]))
        row = clf.state_.transform(X[i : i + 1])
        formula.append(
            left_out_distances(row, own, classes, precisions, clf.metric_, prior, dof)[0]
        )
        others = np.arange(len(X)) != i
        without = FeCAMClassifier(dtype="float64", **settings).fit(X[others], y[others])
        fitted.append(-without.decision_function(X[i : i + 1])[0])
    return np.array(formula), np.array(fitted)


def relative_errors(settings, X, y):
    formula, fitted = both(settings, X, y)
    own = np.zeros(fitted.shape, bool)
    own[np.arange(len(y)), y] = True
    errors = np.abs(np.log(formula / fitted))
    return errors[own], errors[~own]


@pytest.mark.parametrize("case", CASES)
def test_distances_are_those_of_a_model_that_never_saw_the_sample(case):
    X, y = relu_features(5, 12, 16, 3)
    own, rivals = relative_errors(CASES[case], X.astype(np.float64) + 0.05, y)
    assert np.median(own) < 0.1 and np.quantile(own, 0.9) < 0.25
    assert np.median(rivals) < 0.02 and np.quantile(rivals, 0.9) < 0.06


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_samples_of_many_features(count, monkeypatch):
    """Each sample has a large leverage on the prior, and so on the matrices of its rivals."""
    X, y = relu_features(6, count, 80, 1)
    X = X.astype(np.float64) + 0.05
    own, rivals = relative_errors({}, X, y)
    assert np.median(own) < 0.25 and np.median(rivals) < 0.2
    monkeypatch.setattr(leave_one_out, "NEGLIGIBLE_LEVERAGE", np.inf)
    _, uncorrected = relative_errors({}, X, y)
    assert np.median(uncorrected) > (2 if count > 2 else 1) * np.median(rivals)


def test_a_lagging_prior_does_not_contain_the_rows():
    X, y = relu_features(6, 10, 12, 2)
    X = X.astype(np.float64) + 0.05
    before = FeCAMClassifier(dtype="float64").fit(X[y < 5], y[y < 5])
    prior = before.current_prior()
    after = before.copy().partial_fit(X[y == 5], y[y == 5])
    predictor = CalibratedPredictor(after.state_, after.metric_, prior=prior)
    vars(predictor)["prior"] = prior  # it lags
    classes = list(after.state_.classes.values())
    dof = sum(stats.count - 1 for stats in classes)
    row = after.state_.transform(X[y == 5][:1])
    distances = left_out_distances(
        row, 5, classes, predictor.precisions, after.metric_, prior, dof
    )[0]
    queries = np.stack([row[0]])
    np.testing.assert_allclose(distances[:5], predictor.exhaustive(queries)[0, :5], rtol=1e-9)


def test_rows_are_measured_again_when_the_model_has_grown():
    X, y = relu_features(40, 8, 12, 0)
    clf = FeCAMClassifier().fit(X[y < 30], y[y < 30])
    measured = []
    for label in range(30, 40):
        clf.partial_fit(X[y == label], y[y == label])
        measured.append(clf.state_.classes[label].calibration is not None)
    assert 0 < sum(measured) < 5 and not measured[0]
