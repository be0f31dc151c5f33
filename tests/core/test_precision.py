"""Every form of a precision gives the distances of the matrix it was derived from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core.covariance import whiten
from fecam.core.metric import class_covariance, distance_scale, mean_variance, prototype_of
from fecam.core.precision import (
    BlockCholesky,
    DensePrecision,
    LowRankPrecision,
    block_cholesky,
    block_ends,
    on_numpy,
    shared_basis,
)
from helpers.features import relu_features
from helpers.matrices import random_matrix

SETTINGS = {
    "default": FeCAMClassifier,
    "paper": lambda: FeCAMClassifier.from_preset("paper"),
    "few-shot": lambda: FeCAMClassifier.from_preset("few-shot"),
    "vit": lambda: FeCAMClassifier.from_preset("vit"),
    "signed": lambda: FeCAMClassifier(tukey=None, shrinkage=(1.0, 1.0), pooling=0),
    "signed prior": lambda: FeCAMClassifier(tukey=None, l2=None, shrinkage=(2.0, 1.0), pooling=9),
    "variance": lambda: FeCAMClassifier.from_preset("paper", normalization="variance"),
    "unnormalized": lambda: FeCAMClassifier(normalization=None),
    "domains": lambda: FeCAMClassifier(domains="average"),
}


@pytest.mark.parametrize("name", SETTINGS)
@given(seed=st.integers(0, 10_000), n=st.sampled_from([1, 2, 5, 16]))
def test_low_rank_distances_are_those_of_the_matrix(name, seed, n):
    X, y = relu_features(4, n, 64, seed)
    if name.startswith("signed"):
        X = X - X.mean(axis=0) * np.linspace(0.5, 3, 64)  # mean covariances of either sign
    clf = SETTINGS[name]().fit(X, y)
    Q = np.abs(X[::2] + np.random.default_rng(seed).normal(size=X[::2].shape) * 0.1)
    got = -clf.decision_function(Q)
    state, metric, predictor = clf.state_, clf.metric_, clf.predictor_
    assert any(isinstance(precision, LowRankPrecision) for precision in predictor.precisions)
    prior = predictor.prior if metric.has_prior else None
    fallback = mean_variance(state.classes.values()) if metric.normalization is None else 1.0
    queries = clf._queries(Q, predictor).astype(np.float64)
    for column, stats in enumerate(state.classes.values()):
        root = whiten(class_covariance(stats, metric, prior, fallback), 6e-8)
        differences = queries - prototype_of(stats, metric, state.transform)
        want = distance_scale(stats, metric) * np.sum((differences @ root) ** 2, axis=1)
        np.testing.assert_allclose(got[:, column], want, rtol=1e-4, atol=1e-6 * want.max())


def test_a_floor_that_is_too_low_takes_the_dense_matrix():
    X, y = relu_features(3, 5, 64, 0)
    clf = FeCAMClassifier.from_preset("paper", shrinkage=(1e-4, 0.0)).fit(X, y)
    assert not any(isinstance(p, LowRankPrecision) for p in clf.predictor_.precisions)
    assert clf.score(X, y) == 1


def test_a_class_of_few_samples_owns_nothing_of_the_size_of_a_matrix():
    X, y = relu_features(30, 5, 256, 0)
    for clf in (FeCAMClassifier(), FeCAMClassifier.from_preset("paper")):
        clf.fit(X, y).predict(X[:3])
        shared = set()
        for precision in clf.predictor_.precisions:
            assert isinstance(precision, LowRankPrecision)
            own = (precision.std, precision.weights, precision.rows)
            assert sum(array.size for array in own) <= 9 * 256
            shared.add(id(precision.eigenvectors))
        assert len(shared) == 1


def test_rows_in_features_are_the_rows_before_whitening():
    X, y = relu_features(4, 5, 64, 0)
    clf = FeCAMClassifier(pooling=9, dtype="float64").fit(X, y)
    differences = np.random.default_rng(0).normal(size=(7, 64))
    for precision in clf.predictor_.precisions:
        want = precision.whiten(differences) @ precision.rows.T
        np.testing.assert_allclose(differences @ precision.rows_in_features.T, want, rtol=1e-9)


def test_block_ends_are_increasing_and_end_with_the_number_of_features():
    for n_features in (1, 2, 5, 64, 128, 512, 1280):
        ends = block_ends(n_features)
        assert ends[-1] == n_features and ends == sorted(set(ends))


def both_forms(seed, n_features=32):
    """One matrix as a triangle in a shared basis and as a dense whitening, and its inverse."""
    rng = np.random.default_rng(seed)
    covariance = random_matrix(seed, n_features) + 0.1 * np.eye(n_features)
    center = rng.normal(size=n_features)
    axes = shared_basis(random_matrix(seed + 1, n_features), rng.normal(size=(5, n_features)))
    in_basis = block_cholesky(covariance, center, axes, np.float64)
    return in_basis, DensePrecision(center, whiten(covariance)), np.linalg.inv(covariance)


@given(seed=st.integers(0, 1000))
def test_a_triangle_in_a_shared_basis_is_the_matrix(seed):
    in_basis, dense, inverse = both_forms(seed)
    assert isinstance(in_basis, BlockCholesky)
    differences = np.random.default_rng(seed).normal(size=(6, 32))
    want = np.einsum("ni,ij,nj->n", differences, inverse, differences)
    for precision in (in_basis, dense):
        np.testing.assert_allclose(precision.squared_mahalanobis(differences), want, rtol=1e-8)
        product = precision.apply(differences.T)
        np.testing.assert_allclose(product, inverse @ differences.T, rtol=1e-7, atol=1e-9)


@given(seed=st.integers(0, 1000))
def test_the_first_block_of_a_triangle_is_the_marginal_without_the_tail_floor(seed):
    in_basis, _, inverse = both_forms(seed)
    marginal = in_basis.first_block_precision
    size = len(marginal)
    rotated = in_basis.axes.T @ inverse @ in_basis.axes
    remainder = rotated - np.diag(np.where(np.arange(32) < size, 0, in_basis.tail_floor))
    want = np.linalg.inv(np.linalg.inv(remainder)[:size, :size])
    np.testing.assert_allclose(marginal, want, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(in_basis.tail_mean, np.trace(rotated[size:, size:]) / (32 - size))


def test_the_basis_is_orthogonal_and_sorted_by_variance():
    within, centers = random_matrix(0, 16), np.random.default_rng(0).normal(size=(5, 16))
    axes = shared_basis(within, centers)
    np.testing.assert_allclose(axes.T @ axes, np.eye(16), atol=1e-12)
    total = within + np.cov(centers, rowvar=False, bias=True)
    assert np.all(np.diff(np.diag(axes.T @ total @ axes)) <= 1e-9)


def test_most_triangles_have_a_tail_floor():
    """It is zero where the power iteration underestimates the largest variance."""
    assert np.mean([both_forms(seed)[0].tail_floor > 0 for seed in range(40)]) > 0.8


def test_a_singular_matrix_has_no_triangle():
    singular = random_matrix(0, 16, rank=3)
    assert block_cholesky(singular, np.zeros(16), np.eye(16), np.float64) is None


def test_precisions_on_numpy_share_their_memory():
    torch = pytest.importorskip("torch")
    X, y = relu_features(20, 60, 64, 0)
    keep = (y < 10) | (np.arange(len(y)) % 60 < 5)
    clf = FeCAMClassifier().fit(torch.asarray(X[keep]), y[keep])
    differences = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    forms = set()
    for precision in clf.predictor_.precisions:
        converted = on_numpy(precision)
        forms.add(type(converted))
        assert isinstance(converted.center, np.ndarray)
        if isinstance(precision, BlockCholesky):
            assert np.shares_memory(converted.blocks[0], precision.blocks[0].numpy())
        np.testing.assert_allclose(
            converted.squared_mahalanobis(differences),
            precision.squared_mahalanobis(torch.asarray(differences)),
            rtol=1e-4,
        )
    assert forms == {BlockCholesky, LowRankPrecision}
