"""The log-normal model of distances, against rows left out one by one and against samples of it."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core import lognormal
from fecam.core.covariance import normalize, shrink
from fecam.core.prior import make_prior
from fecam.core.statistics import ClassStatistics, summarize_class
from helpers.features import relu_features, signed_features


def test_distance_moments_are_those_of_rows_left_out():
    X, y = signed_features(5, 40, 6, 2)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(5)]
    prior = make_prior(classes, 1.0)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    number, first, second = lognormal.sample_distances(
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
    _, first, _ = lognormal.sample_distances(X, stats, metric, None, 0)
    chosen = X[:320:10]
    assert first == pytest.approx(((chosen - X.mean(axis=0)) ** 2).sum() * 320 / 319)


def test_rows_are_scaled_to_unit_length_if_queries_are():
    X, _ = relu_features(1, 20, 6, 0)
    stats = summarize_class(X, X, "none", np.float64)
    settings = {"covariance": "identity", "tukey": None}
    plain, unit = (FeCAMClassifier(l2=l2, **settings).metric_ for l2 in (None, "compare"))
    _, loud, _ = lognormal.sample_distances(X, stats, plain, None, 0)
    _, quiet, _ = lognormal.sample_distances(X, stats, unit, None, 0)
    length = np.linalg.norm(X.mean(axis=0))
    directions = X / np.linalg.norm(X, axis=1, keepdims=True) * length
    assert quiet == pytest.approx(((directions - stats.mean) ** 2).sum() * 20 / 19, rel=1e-5)
    assert quiet < 0.8 * loud


def test_a_batch_that_determines_the_prior_gives_no_moments():
    X, _ = signed_features(1, 10, 12, 0)
    stats = summarize_class(X, X, "full", np.float64)
    metric = FeCAMClassifier(tukey=None, l2=None).metric_
    prior = make_prior([stats], 1.0)
    sampled = lognormal.sample_distances(X, stats, metric, prior, prior.dof)
    assert sampled == (0, 0.0, 0.0)


def test_relative_variance_by_hand():
    def stats(*distances):
        d = np.array(distances)
        sampled = (len(d), d.sum(), (d**2).sum())
        return ClassStatistics(10, np.zeros(2), np.zeros(2), None, distance_moments=sampled)

    # Around means 2 and 10: squares 1 + 1 and 16 + 16, relative to 4 and 100, over 1 + 1.
    value = (2 / 4 + 32 / 100) / 2
    classes = [stats(1, 3), stats(6, 14), stats(5)]
    assert lognormal.relative_variance(classes) == pytest.approx(value)
    assert lognormal.relative_variance([stats(2, 2, 2)]) == lognormal.DEFAULT_REL_VARIANCE


def with_distance_moments(sampled, count=10):
    return ClassStatistics(count, np.zeros(2), np.zeros(2), None, distance_moments=sampled)


def test_the_relative_variance_is_that_within_classes():
    rng = np.random.default_rng(0)
    groups = [rng.gamma(4.0, scale, size=500) for scale in (0.1, 5.0, 60.0)]
    classes = [with_distance_moments((len(g), g.sum(), (g**2).sum())) for g in groups]
    assert lognormal.relative_variance(classes) == pytest.approx(0.25, rel=0.1)
    assert lognormal.relative_variance([with_distance_moments((0, 0.0, 0.0))]) == 0.1
    assert lognormal.relative_variance([with_distance_moments((5, 0.0, 0.0))]) == 0.1


def test_novelty_is_the_normal_score_of_a_log_normal_distance():
    rng = np.random.default_rng(1)
    sigma = np.sqrt(np.log1p(0.3))
    distances = 7.0 * np.exp(rng.normal(-(sigma**2) / 2, sigma, size=100_000))
    scores = lognormal.novelty_zscore(distances, np.full(100_000, 7.0), 0.3)
    assert scores.mean() == pytest.approx(0, abs=0.02)
    assert np.mean(scores > 1.6449) == pytest.approx(0.05, abs=0.004)
    assert np.isfinite(lognormal.novelty_zscore(np.zeros(1), np.ones(1), 0.3)).all()
