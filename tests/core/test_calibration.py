"""Expected distances against brute force: each sample left out, the model fitted again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import calibration
from fecam.core.covariance import normalize, shrink, whiten
from fecam.core.expected import CalibratedPredictor
from fecam.core.precision import BlockCholesky, DensePrecision
from fecam.core.prior import make_prior
from fecam.core.scatter import Scatter, sqrt_rows, to_dense
from fecam.core.statistics import ClassStatistics, summarize_class
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


def test_distance_moments_are_those_of_rows_left_out():
    X, y = signed_features(5, 40, 6, 2)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(5)]
    prior = make_prior(classes, 1.0)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    number, first, second = calibration.sample_distances(
        X[y == 1], classes[1], metric, prior, prior.dof
    )
    rows = X[y == 1][:32].astype(float)  # 40 // 32 = 1: every row, up to 32
    shrunk = shrink(prior.covariance, (1, 0))
    inverse = np.linalg.inv(normalize(shrunk, "correlation"))
    z = rows - classes[1].mean
    plain = np.einsum("ij,jk,ik->i", z, inverse, z) * 40 / 39
    own = z / np.sqrt(np.diag(shrunk))
    leverage = np.einsum("ij,jk,ik->i", own, inverse, own) * 40 / 39 / prior.dof
    distances = plain / (1 - leverage)
    assert leverage.max() > 0.01
    assert (number, first, second) == pytest.approx(
        (32, distances.sum(), (distances**2).sum()), rel=1e-6
    )


def test_rows_are_evenly_spread_over_a_batch():
    X = np.repeat(np.arange(320.0), 2).reshape(320, 2)
    stats = summarize_class(X, X, "none", np.float64)
    metric = FeCAMClassifier(covariance="identity", tukey=None, l2=None).metric_
    _, first, _ = calibration.sample_distances(X, stats, metric, None, 0)
    chosen = X[:320:10]
    assert first == pytest.approx(((chosen - X.mean(axis=0)) ** 2).sum() * 320 / 319)


def test_rows_are_scaled_to_unit_length_if_queries_are():
    X, _ = relu_features(1, 20, 6, 0)
    stats = summarize_class(X, X, "none", np.float64)
    settings = {"covariance": "identity", "tukey": None}
    plain, unit = (FeCAMClassifier(l2=l2, **settings).metric_ for l2 in (None, "compare"))
    _, loud, _ = calibration.sample_distances(X, stats, plain, None, 0)
    _, quiet, _ = calibration.sample_distances(X, stats, unit, None, 0)
    length = np.linalg.norm(X.mean(axis=0))
    directions = X / np.linalg.norm(X, axis=1, keepdims=True) * length
    assert quiet == pytest.approx(((directions - stats.mean) ** 2).sum() * 20 / 19, rel=1e-5)
    assert quiet < 0.8 * loud


def test_a_batch_that_determines_the_prior_gives_no_moments():
    X, _ = signed_features(1, 10, 12, 0)
    stats = summarize_class(X, X, "full", np.float64)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    prior = make_prior([stats], 1.0)
    sampled = calibration.sample_distances(X, stats, metric, prior, prior.dof)
    assert sampled == (0, 0.0, 0.0)


def test_relative_variance_and_temperature_by_hand():
    def stats(*distances):
        d = np.array(distances)
        sampled = (len(d), d.sum(), (d**2).sum())
        return ClassStatistics(10, np.zeros(2), np.zeros(2), None, distance_moments=sampled)

    # Around means 2 and 10: squares 1 + 1 and 16 + 16, relative to 4 and 100, over 1 + 1.
    value = (2 / 4 + 32 / 100) / 2
    classes = [stats(1, 3), stats(6, 14), stats(5)]
    assert calibration.relative_variance(classes) == pytest.approx(value)
    assert calibration.relative_variance([stats(2, 2, 2)]) == calibration.DEFAULT_REL_VARIANCE
    sharpness = calibration.reference_sharpness(0.24)
    assert sharpness == pytest.approx(2 / np.sqrt(0.24 * calibration.REFERENCE_REL_VARIANCE))
    assert calibration.softmax_temperature([2.0, 4.0], 5.0) == pytest.approx(np.sqrt(3) / 5)


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
        assert abs(calibration._traces(precision, stats.scatter, None)[0] / exact - 1) < tolerance


@given(seed=st.integers(0, 1000))
def test_a_trace_through_random_signs_is_close_to_the_trace(seed):
    matrix, root = random_matrix(seed, 64), whiten(random_matrix(seed + 1, 64))
    exact = np.trace(root.T @ matrix @ root)
    precision = DensePrecision(np.zeros(64), root)
    packed = Scatter(matrix[np.triu_indices(64)], "packed", 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "MAX_EXACT_FEATURES", 32)
        assert calibration._traces(precision, packed, None)[0] == pytest.approx(exact, rel=0.25)
    assert calibration._traces(precision, packed, None)[0] == pytest.approx(exact)
    low_rank = Scatter(sqrt_rows(packed), "low_rank", 64)
    assert calibration._traces(precision, low_rank, None)[0] == pytest.approx(exact)
    variances = np.diag(matrix).copy()
    diagonal = Scatter(variances, "diagonal", 64)
    whitened = DensePrecision(np.zeros(64), np.sqrt(variances))
    assert calibration._traces(whitened, diagonal, None)[0] == pytest.approx((variances**2).sum())


def with_distance_moments(sampled, count=10):
    return ClassStatistics(count, np.zeros(2), np.zeros(2), None, distance_moments=sampled)


def test_the_relative_variance_is_that_within_classes():
    rng = np.random.default_rng(0)
    groups = [rng.gamma(4.0, scale, size=500) for scale in (0.1, 5.0, 60.0)]
    classes = [with_distance_moments((len(g), g.sum(), (g**2).sum())) for g in groups]
    assert calibration.relative_variance(classes) == pytest.approx(0.25, rel=0.1)
    assert calibration.relative_variance([with_distance_moments((0, 0.0, 0.0))]) == 0.1
    assert calibration.relative_variance([with_distance_moments((5, 0.0, 0.0))]) == 0.1


def test_the_expected_distance_of_few_samples_is_pulled_to_the_mean():
    classes = [with_distance_moments((0, 0.0, 0.0), count=n) for n in (1000, 1000, 3, 1)]
    own = [2.0, 4.0, 9.0, None]
    pooled = calibration.pooled_distance(classes, own)
    expected = calibration.expected_distances(classes, own, pooled)
    mean = (2000 + 4000 + 27) / 2003
    assert expected[0] == pytest.approx(2.0, rel=0.01)
    assert expected[2] == pytest.approx((1 + 1 / 3) * (27 + 5 * mean) / 8)
    assert expected[3] == pytest.approx(2 * mean)


def test_novelty_is_the_normal_score_of_a_log_normal_distance():
    rng = np.random.default_rng(1)
    sigma = np.sqrt(np.log1p(0.3))
    distances = 7.0 * np.exp(rng.normal(-(sigma**2) / 2, sigma, size=100_000))
    scores = calibration.novelty_zscore(distances, np.full(100_000, 7.0), 0.3)
    assert scores.mean() == pytest.approx(0, abs=0.02)
    assert np.mean(scores > 1.6449) == pytest.approx(0.05, abs=0.004)
    assert np.isfinite(calibration.novelty_zscore(np.zeros(1), np.ones(1), 0.3)).all()


def test_without_a_temperature_the_softmax_sum_is_zero():
    """Also where the first class was pruned."""
    distances = np.array([[np.inf, 1.0], [2.0, np.inf]])
    assert calibration.softmax_sum(distances, 0.0).tolist() == [0, 0]
    assert calibration.softmax_sum(distances, 1.0).tolist() == [1, 1]


@pytest.mark.parametrize("per_class", [8, 20, 150])
def test_the_share_of_rejected_samples_is_as_stated(per_class):
    """For precisions of low rank and in a shared basis."""
    X, y = relu_features(20, per_class + 50, 96, 1)
    is_new = np.arange(len(y)) % (per_class + 50) >= per_class
    clf = FeCAMClassifier().fit(X[~is_new], y[~is_new]).warm_up()
    novelty = clf.novelty(X[is_new])
    assert 0.01 < np.mean(novelty > 1.6449) < 0.12
    assert abs(np.median(novelty)) < 0.4
