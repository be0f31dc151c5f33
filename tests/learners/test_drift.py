"""Drift estimates, and statistics that follow them."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.errors import FecamError, InputError
from fecam.learners.mechanisms.drift import linear_map, map_covariances, semantic_drift

RNG = np.random.default_rng(0)
OLD = RNG.normal(size=(40, 5))
NEW = OLD + RNG.normal(size=(40, 5))
MEANS = RNG.normal(size=(3, 5))


def literal_drift(means, old, new, sigma):
    sigma = sigma * sum(float(row @ row) ** 0.5 for row in old) / len(old)
    result = []
    for mean in means:
        numerator, denominator = 0.0, 0.0
        for before, after in zip(old, new, strict=True):
            weight = np.exp(-((before - mean) @ (before - mean)) / (2 * sigma**2))
            numerator, denominator = numerator + weight * (after - before), denominator + weight
        result.append(numerator / denominator)
    return np.array(result)


def test_the_drift_equals_its_formula():
    expected = literal_drift(MEANS, OLD, NEW, 0.4)
    np.testing.assert_allclose(semantic_drift(MEANS, OLD, NEW, 0.4), expected, rtol=1e-10)


@pytest.mark.parametrize("sigma", [1e-3, 0.2, 5.0, np.inf])
def test_a_common_shift_moves_every_mean_by_it(sigma):
    shift = np.array([1.0, -2.0, 0.0, 3.0, 0.5])
    drift = semantic_drift(MEANS, OLD, OLD + shift, sigma)
    np.testing.assert_allclose(drift, np.tile(shift, (3, 1)), rtol=1e-9, atol=1e-12)
    assert not semantic_drift(MEANS, OLD, OLD, sigma).any()


def test_the_ends_are_the_mean_drift_and_that_of_the_nearest_sample():
    wide = semantic_drift(MEANS, OLD, NEW, np.inf)
    np.testing.assert_allclose(wide, np.tile((NEW - OLD).mean(0), (3, 1)))
    np.testing.assert_allclose(semantic_drift(MEANS, OLD, NEW, 1e4), wide, rtol=1e-5, atol=1e-7)
    nearest = [np.linalg.norm(OLD - mean, axis=1).argmin() for mean in MEANS]
    narrow = semantic_drift(MEANS, OLD, NEW, 1e-4)
    np.testing.assert_allclose(narrow, (NEW - OLD)[nearest])


def test_features_of_any_scale_have_a_finite_drift():
    """The published sum of weights underflows to 0 for features that are not normalized."""
    large = semantic_drift(1e4 * MEANS, 1e4 * OLD, 1e4 * NEW, 0.3)
    np.testing.assert_allclose(large, 1e4 * semantic_drift(MEANS, OLD, NEW, 0.3), rtol=1e-9)
    far = semantic_drift(MEANS + 1e3, OLD, NEW, 0.01)
    assert np.isfinite(far).all()


def test_sigma_is_that_of_the_paper_for_features_of_unit_length():
    old = OLD / np.linalg.norm(OLD, axis=1, keepdims=True)
    distances = ((MEANS[:, None] - old) ** 2).sum(2)
    weights = np.exp(-distances / (2 * 0.3**2))
    expected = weights / weights.sum(1, keepdims=True) @ (NEW - OLD)
    np.testing.assert_allclose(semantic_drift(MEANS, old, old + NEW - OLD, 0.3), expected)


def test_a_linear_change_is_found_and_followed():
    matrix = RNG.normal(size=(5, 5)) + 3 * np.eye(5)
    linear = linear_map(OLD, OLD @ matrix, ridge=0)
    np.testing.assert_allclose(linear, matrix, atol=1e-9)
    np.testing.assert_allclose(linear_map(OLD, OLD @ matrix, ridge=1e-10), matrix, atol=1e-6)
    root = RNG.normal(size=(2, 5, 5))
    covariances = root @ root.transpose(0, 2, 1)
    moved = map_covariances(covariances, linear)
    samples = RNG.multivariate_normal(np.zeros(5), covariances[1], size=200_000)
    np.testing.assert_allclose(
        np.cov((samples @ matrix).T), moved[1], atol=0.02 * np.abs(moved[1]).max()
    )
    # Mahalanobis distances do not change if queries are mapped too.
    query = RNG.normal(size=5) @ np.eye(5)
    before = query @ np.linalg.solve(covariances[0], query)
    after = (query @ linear) @ np.linalg.solve(moved[0], query @ linear)
    assert before == pytest.approx(after)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 10.0])
def test_an_unchanged_network_has_the_identity_map(ridge):
    np.testing.assert_allclose(linear_map(OLD, OLD, ridge), np.eye(5), atol=1e-12)


def test_unseen_directions_stay_or_vanish():
    flat = OLD * [1, 1, 1, 0, 0]
    moved = flat @ np.diag([2.0, 2, 2, 9, 9])
    kept = linear_map(flat, moved, ridge=1e-9)
    np.testing.assert_allclose(kept, np.diag([2.0, 2, 2, 1, 1]), atol=1e-6)
    without = linear_map(flat, moved, ridge=1e-9, toward_identity=False)
    np.testing.assert_allclose(without, np.diag([2.0, 2, 2, 0, 0]), atol=1e-6)
    np.testing.assert_allclose(linear_map(flat, moved, ridge=0), kept, atol=1e-6)


def test_wrong_arguments_are_rejected():
    with pytest.raises(InputError, match="same samples"):
        semantic_drift(MEANS, OLD, NEW[:3], 0.3)
    with pytest.raises(InputError, match="at least one"):
        linear_map(OLD[:0], NEW[:0])
    for sigma in (0, -1, np.nan):
        with pytest.raises(FecamError, match="sigma="):
            semantic_drift(MEANS, OLD, NEW, sigma)
