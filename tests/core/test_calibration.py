"""Expected distances against brute force: every sample left out, the model taught anew."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core import calibration
from fecam.core.arrays import diagonal
from fecam.core.covariance import normalize, shrink
from fecam.core.factors import FramedFactor
from fecam.core.prior import DIRECTIONS, make_prior
from fecam.core.scatter import to_dense
from fecam.core.statistics import ClassStatistics, summarize_class
from helpers.features import relu_features, signed_features

CASES = {
    "default": {"pooling": 8.0},
    "weak prior": {"pooling": 1.0, "shrinkage": (0.5, 0)},
    "no prior": {"pooling": 0.0},
    "not normalised": {"pooling": 8.0, "normalization": None},
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
    expected = np.array(clf._derived.expected(clf.state_, clf.metric_))
    measured = left_out(settings, X, y)
    assert expected.mean() == pytest.approx(measured.mean(), rel=0.18)
    learnt = -clf.decision_function(X)[np.arange(len(X)), y]
    if case in ("default", "weak prior", "no prior"):
        assert learnt.mean() < 0.85 * measured.mean(), "learnt samples lie closer: it matters"


def test_classes_are_expected_at_their_own_distance():
    X, y = signed_features(4, 60, 10, 1)
    X = X * np.array([1, 2, 4, 8])[y][:, None]
    clf = FeCAMClassifier(tukey=None, l2=None, normalization=None, pooling=0.0).fit(X, y)
    clf.set_params(normalization="correlation")
    expected = np.array(clf._derived.expected(clf.state_, clf.metric_))
    measured = -clf.decision_function(X)[np.arange(len(X)), y]
    per_class = np.array([measured[y == k].mean() for k in range(4)])
    np.testing.assert_allclose(expected[1:], per_class[1:], rtol=0.5)
    assert expected[3] > 15 * expected[0]


def test_sampled_rows_are_measured_as_if_they_had_been_left_out():
    X, y = signed_features(5, 40, 6, 2)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(5)]
    prior = make_prior(classes, 1.0)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    number, first, second = calibration.sample_distances(X[y == 1], classes[1], metric, prior)
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


def test_rows_are_taken_from_all_over_a_lesson():
    X = np.repeat(np.arange(320.0), 2).reshape(320, 2)
    one = summarize_class(X, X, "none", np.float64)
    metric = FeCAMClassifier(covariance="identity", tukey=None, l2=None).metric_
    _, first, _ = calibration.sample_distances(X, one, metric, None)
    chosen = X[:320:10]
    assert first == pytest.approx(((chosen - X.mean(axis=0)) ** 2).sum() * 320 / 319)


def test_rows_are_brought_to_unit_length_where_queries_are():
    X, _ = relu_features(1, 20, 6, 0)
    one = summarize_class(X, X, "none", np.float64)
    settings = {"covariance": "identity", "tukey": None}
    plain, unit = (FeCAMClassifier(l2=l2, **settings).metric_ for l2 in (None, "compare"))
    _, loud, _ = calibration.sample_distances(X, one, plain, None)
    _, quiet, _ = calibration.sample_distances(X, one, unit, None)
    length = np.linalg.norm(X.mean(axis=0))
    directions = X / np.linalg.norm(X, axis=1, keepdims=True) * length
    assert quiet == pytest.approx(((directions - one.mean) ** 2).sum() * 20 / 19, rel=1e-5)
    assert quiet < 0.8 * loud


def test_while_a_lesson_is_most_of_what_is_known_it_is_not_measured():
    X, _ = signed_features(1, 10, 12, 0)
    one = summarize_class(X, X, "full", np.float64)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    sampled = calibration.sample_distances(X, one, metric, make_prior([one], 1.0))
    assert sampled == (0, 0.0, 0.0)


def test_spread_and_temperature_to_the_digit():
    def one(*distances):
        d = np.array(distances)
        sampled = (len(d), d.sum(), (d**2).sum())
        return ClassStatistics(10, np.zeros(2), np.zeros(2), None, distance_moments=sampled)

    # Around means 2 and 10: squares 1 + 1 and 16 + 16, relative to 4 and 100, over 1 + 1.
    value = (2 / 4 + 32 / 100) / 2
    assert calibration.relative_variance([one(1, 3), one(6, 14), one(5)]) == pytest.approx(value)
    assert calibration.relative_variance([one(2, 2, 2)]) == calibration.USUAL_SPREAD
    got = calibration.temperature([2.0, 4.0], 0.24)
    assert got == pytest.approx(3 * np.sqrt(0.24 * calibration.USUAL_TEMPERATURE))


@pytest.mark.parametrize("only_variances", [False, True])
@pytest.mark.parametrize("n", [4, 60])
def test_the_automatic_strength_is_the_formula_of_the_docs(only_variances, n):
    X, y = signed_features(7, n, 10, 3)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(7)]
    classes.append(summarize_class(X[:2], X[:2], "full", np.float64))  # too few to be compared
    prior = make_prior(classes, "auto", only_variances=only_variances)
    pooled = sum(to_dense(c.scatter) for c in classes) / (7 * (n - 1) + 1)
    if only_variances:
        pooled = np.diag(pooled)
        scale = pooled + pooled.mean()
        shared = pooled / scale
        seen = [np.diag(to_dense(c.scatter)) / (n - 1) / scale for c in classes[:7]]
        chance, least = 2 * (shared**2).sum(), 1.0
    else:
        shrunk = shrink(pooled, (1, 0))
        deviations = np.sqrt(diagonal(shrunk))
        root = np.linalg.inv(np.linalg.cholesky(normalize(shrunk, "correlation"))).T
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(10, DIRECTIONS))
        axes = root @ signs / deviations[:, None] / np.sqrt(10)
        shared = axes.T @ pooled @ axes
        seen = [axes.T @ to_dense(c.scatter) @ axes / (n - 1) for c in classes[:7]]
        chance, least = (shared**2).sum() + np.trace(shared) ** 2, 5.0
    excess = sum((n - 1) * ((c - shared) ** 2).sum() - chance for c in seen)
    difference = (max(excess, 0) + 10 * chance / least) / (7 * (n - 1) + 10)
    assert prior.pseudo_count == pytest.approx(max(least, chance / difference), rel=1e-6)


@pytest.mark.parametrize("variant", [{}, {"pooling": 0.0}, {"covariance": "pooled"}])
def test_nothing_derived_outlives_what_it_came_from(variant):
    """Asked in between, after lessons and changes of settings: as a model that never was asked."""
    X, y = relu_features(5, 12, 8, 0)
    first = y < 3
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
        for ask in ("novelty", "predict_proba", "decision_function"):
            np.testing.assert_allclose(
                getattr(clf, ask)(X), getattr(untouched, ask)(X), rtol=1e-7, atol=1e-9
            )


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("name", ["default", "paper"])
@pytest.mark.parametrize(("width", "tolerance"), [(96, 1e-4), (200, 0.1)])
def test_the_trace_of_a_scatter_under_a_metric(width, tolerance, name, framed):
    """For whatever form a factor has: a floor counts as well."""
    X, y = relu_features(20, 90, width, 0)
    clf = FeCAMClassifier() if name == "default" else FeCAMClassifier.from_preset(name)
    clf.fit(X, y)
    known, metric, derived = clf.state_, clf.metric_, clf._derived
    prior = derived.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
    if framed:
        derived.factors(known, metric)
    for label, one in list(known.classes.items())[:6]:
        factor = derived._any_factor(label, known, metric, prior)
        assert isinstance(factor, FramedFactor) is framed
        values, vectors = np.linalg.eigh(np.asarray(to_dense(one.scatter), np.float64))
        rows = (vectors * np.sqrt(np.maximum(values, 0))).T
        exact = float(np.sum(factor.lengths(rows)))
        assert abs(calibration._trace(factor, one.scatter) / exact - 1) < tolerance


@pytest.mark.parametrize("per_class", [8, 20, 150])
def test_as_many_known_samples_are_turned_away_as_was_asked_for(per_class):
    """Whatever the form of their factors: rows, or triangles in a frame."""
    X, y = relu_features(20, per_class + 50, 96, 1)
    is_new = np.arange(len(y)) % (per_class + 50) >= per_class
    clf = FeCAMClassifier().fit(X[~is_new], y[~is_new]).warm_up()
    novelty = clf.novelty(X[is_new])
    assert 0.01 < np.mean(novelty > 1.6449) < 0.12
    assert abs(np.median(novelty)) < 0.4
