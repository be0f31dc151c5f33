"""Expected distances, against models fitted again without each sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import expected_distance
from fecam.core.covariance import whiten
from fecam.core.expected import CalibratedPredictor
from fecam.core.precision import BlockCholesky, DensePrecision
from fecam.core.scatter import Scatter, sqrt_rows, to_dense
from fecam.core.statistics import ClassStatistics
from helpers.features import relu_features, signed_features
from helpers.matrices import random_matrix

CASES = {
    "default": {"pooling": 8.0},
    "weak prior": {"pooling": 1.0, "shrinkage": (0.5, 0)},
    "no prior": {"pooling": 0.0},
    "unnormalized": {"pooling": 8.0, "normalization": None},
    "variance": {"pooling": 8.0, "normalization": "variance"},
    "uncertain": {"pooling": 8.0, "mean_uncertainty": 4.0},
    "pooled": {"covariance": "pooled", "shrinkage": (0.1, 0)},
    "diagonal": {"covariance": "diagonal", "pooling": 0.0},
    "identity": {"covariance": "identity"},
    "compare": {"l2": "compare", "prototype": "transform-of-mean", "pooling": 8.0},
    "compare, identity": {"l2": "compare", "covariance": "identity"},
    "far prototype": {"l2": None, "prototype": "transform-of-mean", "tukey": 2.0, "pooling": 8.0},
}


def trace_under(precision, scatter):
    return expected_distance._traces(precision, scatter, None)[0]


def left_out(settings, X, y):
    """The squared distance of each sample to its class in a model that never saw it."""
    distances = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        clf = FeCAMClassifier(**settings).fit(X[others], y[others])
        scores = clf.decision_function(X[i : i + 1])
        distances.append(-scores[0, np.searchsorted(clf.classes_, y[i])])
    return np.array(distances)


@pytest.mark.parametrize("case", CASES)
def test_the_expected_distance_is_that_of_samples_left_out(case):
    settings = {"dtype": "float64", "tukey": 0.5, **CASES[case]}
    X, y = relu_features(6, 14, 20, 5)
    X = X.astype(np.float64) + 0.05
    clf = FeCAMClassifier(**settings).fit(X, y)
    expected = np.array(clf.predictor_.expected_distances())
    measured = left_out(settings, X, y)
    assert expected.mean() == pytest.approx(measured.mean(), rel=0.18)
    learned = -clf.decision_function(X)[np.arange(len(X)), y]
    if case in ("default", "weak prior", "no prior"):
        assert learned.mean() < 0.85 * measured.mean(), "learned samples lie closer"


def test_each_class_has_its_own_expected_distance():
    X, y = signed_features(4, 60, 10, 1)
    X = X * np.array([1, 2, 4, 8])[y][:, None]
    clf = FeCAMClassifier(tukey=None, l2=None, normalization=None, pooling=0.0).fit(X, y)
    clf.set_params(normalization="correlation")
    expected = np.array(clf.predictor_.expected_distances())
    measured = -clf.decision_function(X)[np.arange(len(X)), y]
    per_class = np.array([measured[y == k].mean() for k in range(4)])
    np.testing.assert_allclose(expected[1:], per_class[1:], rtol=0.5)
    assert expected[3] > 15 * expected[0]


@pytest.mark.parametrize("variant", [{}, {"pooling": 0.0}, {"covariance": "pooled"}])
def test_nothing_derived_outlives_its_source(variant):
    """Predictions between batches and changes of parameters have no effect on later ones."""
    X, y = relu_features(5, 12, 8, 0)
    first = y < 2  # the data more than doubles, so no reference prior lags
    clf = FeCAMClassifier(dtype="float64", **variant).partial_fit(X[first], y[first])
    fresh = FeCAMClassifier(dtype="float64", **variant).partial_fit(X[first], y[first])
    changes = [{"shrinkage": (3, 0)}, {"mean_uncertainty": 0.0}, {"prototype": "transform-of-mean"}]
    steps = [
        lambda c: c.partial_fit(X[~first], y[~first]),
        lambda c: c.partial_fit(X[:4] * 0.5, y[:4]),
        lambda c: c.forget(1),
        lambda c: c.unlearn(X[:2], y[:2]),
        *(lambda c, change=change: c.set_params(**change) for change in changes),
    ]
    for step in steps:
        clf.novelty(X), clf.predict_proba(X)
        step(clf), step(fresh)
        untouched = FeCAMClassifier(**fresh.get_params()).set_state(fresh.state_)
        for method in ("novelty", "predict_proba", "decision_function"):
            np.testing.assert_allclose(
                getattr(clf, method)(X), getattr(untouched, method)(X), rtol=1e-7, atol=1e-9
            )


@pytest.mark.parametrize("in_basis", [False, True])
@pytest.mark.parametrize("name", ["default", "paper"])
@pytest.mark.parametrize(("n_features", "tolerance"), [(96, 1e-4), (200, 0.1)])
def test_the_trace_of_a_scatter_under_a_metric(n_features, tolerance, name, in_basis):
    """For every form of a precision; the tail floor counts as well."""
    X, y = relu_features(20, 90, n_features, 0)
    clf = FeCAMClassifier() if name == "default" else FeCAMClassifier.from_preset(name)
    clf.fit(X, y)
    predictor = CalibratedPredictor(clf.state_, clf.metric_)
    if in_basis:
        _ = predictor.precisions
    for i, stats in enumerate(list(clf.state_.classes.values())[:6]):
        precision = predictor.precision_of(i)
        assert isinstance(precision, BlockCholesky) is in_basis
        values, vectors = np.linalg.eigh(np.asarray(to_dense(stats.scatter), np.float64))
        rows = (vectors * np.sqrt(np.maximum(values, 0))).T
        exact = float(np.sum(precision.squared_mahalanobis(rows)))
        assert abs(trace_under(precision, stats.scatter) / exact - 1) < tolerance


@given(seed=st.integers(0, 1000))
def test_a_trace_through_random_signs_is_close_to_the_trace(seed):
    matrix, root = random_matrix(seed, 64), whiten(random_matrix(seed + 1, 64))
    exact = np.trace(root.T @ matrix @ root)
    precision = DensePrecision(np.zeros(64), root)
    packed = Scatter(matrix[np.triu_indices(64)], "packed", 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_distance, "MAX_EXACT_FEATURES", 32)
        assert trace_under(precision, packed) == pytest.approx(exact, rel=0.25)
    assert trace_under(precision, packed) == pytest.approx(exact)
    low_rank = Scatter(sqrt_rows(packed), "low_rank", 64)
    assert trace_under(precision, low_rank) == pytest.approx(exact)
    variances = np.diag(matrix).copy()
    diagonal = Scatter(variances, "diagonal", 64)
    whitened = DensePrecision(np.zeros(64), np.sqrt(variances))
    assert trace_under(whitened, diagonal) == pytest.approx((variances**2).sum())


def test_the_expected_distance_of_few_samples_is_pulled_to_the_mean():
    classes = [with_distance_moments((0, 0.0, 0.0), count=n) for n in (1000, 1000, 3, 1)]
    own = [2.0, 4.0, 9.0, None]
    pooled = expected_distance.pooled_distance(classes, own)
    expected = expected_distance.expected_distances(classes, own, pooled)
    mean = (2000 + 4000 + 27) / 2003
    assert expected[0] == pytest.approx(2.0, rel=0.01)
    assert expected[2] == pytest.approx((1 + 1 / 3) * (27 + 5 * mean) / 8)
    assert expected[3] == pytest.approx(2 * mean)


def with_distance_moments(sampled, count=10):
    return ClassStatistics(count, np.zeros(2), np.zeros(2), None, distance_moments=sampled)
