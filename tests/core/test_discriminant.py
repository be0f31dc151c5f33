"""The space in which samples of unknown classes are compared."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core.discriminant import _altitude, discriminant_space, in_discriminant_space

PLAIN = {"tukey": None, "l2": None}


def gaussians(n_classes, per_class, width, between, seed):
    """Samples with unit variance within classes, and means of a variance per axis."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(n_classes, width)) * np.sqrt(between)
    y = np.repeat(np.arange(n_classes), per_class)
    return means[y] + rng.normal(size=(len(y), width)), y


@pytest.mark.parametrize("n_classes", [3, 8])
def test_the_altitude_is_the_distance_to_the_affine_hull_of_the_others(n_classes):
    points = np.random.default_rng(0).normal(size=(n_classes, 12))
    literal = []
    for i in range(n_classes):
        others = np.delete(points, i, axis=0)
        edges = (others[1:] - others[0]).T
        difference = points[i] - others[0]
        steps = np.linalg.lstsq(edges, difference, rcond=None)[0]
        literal.append(np.sum((difference - edges @ steps) ** 2))
    assert _altitude(points - points.mean(axis=0)) == pytest.approx(np.mean(literal))


@pytest.mark.parametrize("covariance", ["class", "diagonal", "identity"])
def test_similarities_of_unknown_classes_are_the_expected_ones(covariance):
    between = np.full(30, 4.0)
    X, y = gaussians(40, 60, 30, between, 1)
    known = y < 30
    clf = FeCAMClassifier(covariance=covariance, **PLAIN).fit(X[known], y[known])
    space, vectors = in_discriminant_space(clf.predictor_, clf.queries(X[~known]))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    products, same = vectors @ vectors.T, y[~known][:, None] == y[~known]
    np.fill_diagonal(same, False)
    assert space.similarity == pytest.approx(np.mean(products[same]), abs=0.1)
    assert abs(np.mean(products[y[~known][:, None] != y[~known]])) < 0.1


def test_few_classes_leave_room_for_others():
    """Four classes differ along three axes at most; a new one differs along others."""
    X, y = gaussians(6, 200, 10, np.full(10, 9.0), 2)
    known = y < 4
    clf = FeCAMClassifier(**PLAIN).fit(X[known], y[known])
    space, vectors = in_discriminant_space(clf.predictor_, clf.queries(X[~known]))
    assert space.other_weight > 0
    first, second = vectors[:200].mean(axis=0), vectors[200:].mean(axis=0)
    assert first @ first > 0.5 > first @ second


@pytest.mark.parametrize("n_classes", [1, 2])
def test_one_or_two_classes_are_enough(n_classes):
    X, y = gaussians(n_classes, 20, 6, np.full(6, 4.0), 3)
    space = discriminant_space(FeCAMClassifier(**PLAIN).fit(X, y).predictor_)
    assert 0 < space.similarity <= 1
    assert np.all(np.isfinite(space(np.zeros((2, 6)))))


def test_features_that_tell_nothing():
    X = np.random.default_rng(0).normal(size=(3000, 2)) + 10
    clf = FeCAMClassifier(**PLAIN).fit(X, np.arange(3000) % 5)
    space = discriminant_space(clf.predictor_)
    assert np.isfinite(space(clf.predictor_.in_pooled_space(clf.queries(X[:20])))).all()


@pytest.mark.parametrize("n_classes", [3, 5])
def test_classes_with_equal_means(n_classes):
    X = np.tile(np.array([[0.2, 0.4, 0.1], [0.4, 0.2, 0.3]]), (n_classes, 1))
    clf = FeCAMClassifier().fit(X, np.repeat(np.arange(n_classes), 2))
    space = discriminant_space(clf.predictor_)
    assert np.all(np.isfinite(space(np.eye(3)))) and np.isfinite(space.similarity)
