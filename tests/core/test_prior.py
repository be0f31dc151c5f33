"""The pooled prior and its automatic pseudo-count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam.core.arrays import diagonal
from fecam.core.covariance import normalize, shrink
from fecam.core.prior import N_DIRECTIONS, make_prior, spectrum_of
from fecam.core.scatter import to_dense
from fecam.core.statistics import summarize_class
from helpers.features import signed_features

seeds = st.integers(0, 1000)


def statistics_of(rows):
    return summarize_class(rows, rows, "full", rows.dtype)


@pytest.mark.parametrize("only_variances", [False, True])
@pytest.mark.parametrize("n", [4, 60])
def test_the_automatic_pseudo_count_is_the_formula_of_the_docs(only_variances, n):
    X, y = signed_features(7, n, 10, 3)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(7)]
    classes.append(summarize_class(X[:2], X[:2], "full", np.float64))  # too few to be compared
    prior = make_prior(classes, "auto", only_variances=only_variances)
    pooled = sum(to_dense(c.scatter) for c in classes) / (7 * (n - 1) + 1)
    if only_variances:
        pooled = np.diag(pooled)
        scale = pooled + pooled.mean()
        shared = pooled / scale
        covariances = [np.diag(to_dense(c.scatter)) / (n - 1) / scale for c in classes[:7]]
        error, minimum = 2 * (shared**2).sum(), 1.0
    else:
        shrunk = shrink(pooled, (1, 0))
        std = np.sqrt(diagonal(shrunk))
        root = np.linalg.inv(np.linalg.cholesky(normalize(shrunk, "correlation"))).T
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(10, N_DIRECTIONS))
        axes = root @ signs / std[:, None] / np.sqrt(10)
        shared = axes.T @ pooled @ axes
        covariances = [axes.T @ to_dense(c.scatter) @ axes / (n - 1) for c in classes[:7]]
        error, minimum = (shared**2).sum() + np.trace(shared) ** 2, 5.0
    excess = sum((n - 1) * ((c - shared) ** 2).sum() - error for c in covariances)
    difference = (max(excess, 0) + 10 * error / minimum) / (7 * (n - 1) + 10)
    assert prior.pseudo_count == pytest.approx(max(minimum, error / difference), rel=1e-6)


@given(seed=seeds)
def test_classes_that_differ_only_by_chance_get_a_strong_prior(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(16, 16))
    alike = [statistics_of(rng.normal(size=(40, 16)) @ root) for _ in range(30)]
    different = [
        statistics_of(rng.normal(size=(40, 16)) * rng.uniform(0.05, 3, 16)) for _ in range(30)
    ]
    assert make_prior(alike, "auto").pseudo_count > 10 * make_prior(different, "auto").pseudo_count
    assert make_prior(different, "auto").pseudo_count >= 8


def test_the_spectrum_is_that_of_the_matrix():
    X, y = signed_features(5, 20, 8, 0)
    classes = [summarize_class(X[y == k], X[y == k], "full", np.float64) for k in range(5)]
    prior = make_prior(classes, 3.0)
    spectrum = spectrum_of(prior, np.float32)
    product = (spectrum.vectors * spectrum.values) @ spectrum.vectors.T
    np.testing.assert_allclose(product, prior.covariance, atol=1e-12)
    np.testing.assert_allclose(spectrum.rounded_vectors, spectrum.vectors, atol=1e-6)
    assert spectrum.rounded_vectors.dtype == np.float32
    np.testing.assert_allclose(spectrum.variances, np.diag(prior.covariance))
    assert spectrum.sum_of_entries == pytest.approx(prior.covariance.sum())
