"""Covariances against slow literal versions, and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import covariance
from fecam.core.scatter import to_dense
from fecam.core.statistics import summarize_class
from fecam.errors import SingularMatrixError
from helpers import literal
from helpers.matrices import random_matrix

gammas = st.floats(0, 10)
seeds = st.integers(0, 1000)


def statistics_of(rows):
    return summarize_class(rows, rows, "full", rows.dtype)


@given(seed=seeds, g1=gammas, g2=gammas, zeros=st.integers(0, 3))
@pytest.mark.parametrize("nonzero", [False, True])
def test_shrinkage_is_equation_8(nonzero, seed, g1, g2, zeros):
    matrix = random_matrix(seed, zeros=zeros)
    got = covariance.shrink(matrix, (g1, g2), "nonzero" if nonzero else "all")
    np.testing.assert_allclose(got, literal.shrink(matrix, g1, g2, nonzero), atol=1e-12)


@given(seed=seeds, g=st.floats(0, 5))
def test_two_passes_are_one_with_gamma_times_two_plus_gamma(seed, g):
    matrix = random_matrix(seed)
    twice = covariance.shrink(covariance.shrink(matrix, (g, g)), (g, g))
    once = covariance.shrink(matrix, (g * (2 + g), g * (2 + g)))
    np.testing.assert_allclose(twice, once, rtol=1e-10, atol=1e-10)


@given(seed=seeds, zeros=st.integers(1, 4))
def test_two_passes_differ_from_one_if_zeros_are_left_out(seed, zeros):
    matrix = random_matrix(seed, zeros=zeros)
    twice = literal.shrink(literal.shrink(matrix, 1, 1, True), 1, 1, True)
    got = covariance.shrink(matrix, (3, 3), "nonzero-twice")
    np.testing.assert_allclose(got, twice, rtol=1e-10, atol=1e-12)
    assert not np.allclose(got, covariance.shrink(matrix, (3, 3), "nonzero"))


@pytest.mark.parametrize("kind", ["all", "nonzero", "nonzero-twice"])
def test_shrinkage_of_a_matrix_without_off_diagonal_entries(kind):
    np.testing.assert_allclose(covariance.shrink(np.array([[2.0]]), (1, 1), kind), [[4.0]])
    alone = np.diag([1.0, 3.0])
    expected = alone + 2 * np.eye(2)
    np.testing.assert_allclose(covariance.shrink(alone, (1, 1), kind), expected)


@given(seed=seeds, g1=gammas)
def test_a_diagonal_shrinks_like_the_diagonal_of_a_matrix(seed, g1):
    matrix = random_matrix(seed)
    got = covariance.shrink(np.diag(matrix).copy(), (g1, 5.0))
    np.testing.assert_allclose(got, np.diag(covariance.shrink(matrix, (g1, 5.0))))


@given(seed=seeds)
def test_correlation_is_equation_7_and_independent_of_scale(seed):
    matrix = random_matrix(seed)
    got = covariance.normalize(matrix, "correlation")
    np.testing.assert_allclose(got, literal.correlation(matrix), rtol=1e-10)
    units = np.random.default_rng(seed).uniform(0.1, 10, len(matrix))
    scaled = matrix * units[:, None] * units[None, :]
    np.testing.assert_allclose(covariance.normalize(scaled, "correlation"), got, atol=1e-9)


def test_a_constant_feature_gets_variance_one():
    got = covariance.normalize(random_matrix(0, zeros=2), "correlation")
    np.testing.assert_array_equal(got[:2, :2], np.eye(2))
    np.testing.assert_array_equal(got[:2, 2:], 0)
    np.testing.assert_allclose(np.diag(got), 1)


def test_variance_normalization_divides_by_the_norm_of_the_diagonal():
    matrix = random_matrix(1)
    expected = matrix / np.linalg.norm(np.diag(matrix))
    np.testing.assert_allclose(covariance.normalize(matrix, "variance"), expected)
    np.testing.assert_allclose(
        covariance.normalize(np.diag(matrix).copy(), "correlation"), np.diag(expected)
    )
    assert covariance.normalize(matrix, None) is matrix


@given(seed=seeds, pseudo_count=st.floats(0.1, 1000))
def test_the_prior_counts_as_its_pseudo_count_of_samples(seed, pseudo_count):
    scatter, shared = random_matrix(seed) * 9, random_matrix(seed + 1)
    got = covariance.with_prior(scatter, 10, shared, pseudo_count)
    np.testing.assert_allclose(got, (scatter + pseudo_count * shared) / (9 + pseudo_count))


@given(seed=seeds)
def test_the_pooled_matrix_is_the_covariance_around_the_mean_of_each_class(seed):
    rng = np.random.default_rng(seed)
    groups = [rng.normal(size=(n, 4)) + n for n in (2, 5, 9, 1)]
    centered = np.concatenate([g - g.mean(axis=0) for g in groups])
    got, dof = covariance.pooled([statistics_of(g) for g in groups])
    assert dof == 13
    np.testing.assert_allclose(got, centered.T @ centered / 13, rtol=1e-9, atol=1e-12)


def test_pooling_does_not_change_the_statistics():
    stats = statistics_of(np.random.default_rng(0).normal(size=(5, 3)))
    before = to_dense(stats.scatter).copy()
    covariance.pooled([stats, stats])
    np.testing.assert_array_equal(to_dense(stats.scatter), before)


@example(seed=9, rank=7)  # a small pivot amplifies the rounding of the last one
@given(seed=seeds, rank=st.integers(1, 16))
def test_whitening_is_the_root_of_the_pseudo_inverse(seed, rank):
    matrix = random_matrix(seed, rank=rank)
    root = covariance.whiten(matrix)
    np.testing.assert_allclose(
        root @ root.T, np.linalg.pinv(matrix, rcond=1e-12, hermitian=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("n_features", [40, 200])
def test_without_shrinkage_distances_use_the_pseudo_inverse(n_features):
    """The null space of few samples in single precision is noise, and must be left out."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, n_features)).astype(np.float32)
    y = np.repeat([0, 1], 30)
    clf = FeCAMClassifier.from_preset("vit", l2=None, shrinkage=(0, 0)).fit(X, y)
    expected = np.stack(
        [
            literal.mahalanobis(
                X.astype(float),
                X[y == k].mean(axis=0, dtype=float),
                literal.correlation(np.cov(X[y == k].astype(float), rowvar=False)),
            )
            for k in (0, 1)
        ],
        axis=1,
    )
    np.testing.assert_allclose(-clf.decision_function(X), expected, rtol=2e-3, atol=1e-3)


def test_an_indefinite_matrix_is_rejected():
    with pytest.raises(SingularMatrixError, match="eigenvalue is -1"):
        covariance.whiten(np.diag([1.0, 2.0, -1.0]) + 0.0)
    with pytest.raises(SingularMatrixError, match="variance is -1"):
        covariance.whiten(np.array([1.0, -1.0]))
