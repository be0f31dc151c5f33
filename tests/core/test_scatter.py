"""Scatters in their smallest storage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier, load
from fecam.core.scatter import (
    add,
    diagonal_of,
    max_low_rank,
    scale,
    subtract,
    sum_scatters,
    to_dense,
)
from fecam.core.statistics import summarize_class
from helpers.features import relu_features

N_FEATURES = 24
seeds = st.integers(0, 10_000)
counts = st.integers(1, 30)


def rows(n, seed, n_features=N_FEATURES):
    rng = np.random.default_rng(seed)
    samples = rng.normal(size=(n, n_features))
    return samples @ rng.normal(size=(n_features, n_features)) + rng.normal(size=n_features)


def scatter(X, dtype=np.float64):
    return summarize_class(X, X, "full", dtype).scatter


def literal(X):
    centered = X - X.mean(axis=0)
    return centered.T @ centered


def assert_close(got, want, scale):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11 * np.abs(scale).max())


@given(n=counts, seed=seeds)
def test_every_storage_holds_the_scatter(n, seed):
    X = rows(n, seed)
    stored = scatter(X)
    assert stored.storage == ("low_rank" if n - 1 <= max_low_rank(N_FEATURES) else "packed")
    want = literal(X)
    assert_close(to_dense(stored), want, X**2)
    assert_close(diagonal_of(stored), np.diag(want), X**2)
    assert np.array_equal(to_dense(stored), to_dense(stored).T) or stored.storage == "low_rank"


@given(a=counts, b=counts, seed=seeds)
def test_sums_and_differences_across_storages(a, b, seed):
    X, Y = rows(a, seed), rows(b, seed + 1)
    both = np.concatenate([X, Y])
    step = (X.mean(axis=0) - Y.mean(axis=0)) * (a * b / (a + b)) ** 0.5
    joined = add(scatter(X), scatter(Y), step)
    assert_close(to_dense(joined), literal(both), both**2 * (a + b))
    left = subtract(joined, scatter(Y), step)
    np.testing.assert_allclose(
        to_dense(left), literal(X), rtol=1e-6, atol=1e-9 * np.abs(literal(both)).max()
    )
    assert_close(to_dense(scale(joined, 0.25)), literal(both) / 4, both**2 * (a + b))
    assert_close(sum_scatters([scatter(X), scatter(Y)]), literal(X) + literal(Y), both**2 * (a + b))


@given(seed=seeds)
def test_rows_are_orthogonal_and_depend_on_the_scatter_alone(seed):
    """Other samples with the same scatter give the same rows, so no sample can be recovered."""
    X = rows(5, seed)
    centered = X - X.mean(axis=0)
    ones = np.ones((5, 1)) / 5**0.5
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(np.concatenate([ones, rng.normal(size=(5, 4))], axis=1))
    spin, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    basis = turn[:, 1:]  # orthogonal to the mean: spinning it keeps the mean and the scatter
    other = basis @ spin @ basis.T @ centered + X.mean(axis=0)
    assert np.abs(other - X).max() > 1e-3
    stored, again = scatter(X).data, scatter(other).data
    np.testing.assert_allclose(stored, again, atol=1e-6 * np.abs(stored).max())
    gram = stored @ stored.T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-8 * gram.max())
    lengths = np.linalg.norm(stored, axis=1)
    assert np.all(np.diff(lengths) <= 1e-9 * lengths[0])
    closeness = np.abs(stored[:, None, :] - centered[None, :, :]).max(axis=2) / np.abs(stored).max()
    assert closeness.min() > 1e-3, "a row is a centered sample"


def test_zero_features_do_not_reveal_a_sample():
    """A triangular root, by Householder reflections, would hold the first sample itself."""
    X = rows(5, 0)
    X[:, :8] = 0
    stored = scatter(X).data
    centered = X - X.mean(axis=0)
    for row in stored:
        assert np.abs(centered - row).max(axis=1).min() > 1e-3
        assert np.abs(centered + row).max(axis=1).min() > 1e-3


SETTINGS = {
    "default": FeCAMClassifier,
    "paper": lambda: FeCAMClassifier.from_preset("paper"),
    "few-shot": lambda: FeCAMClassifier.from_preset("few-shot"),
    "vit": lambda: FeCAMClassifier.from_preset("vit"),
    "signed": lambda: FeCAMClassifier(tukey=None, shrinkage=(1.0, 1.0), pooling=0),
    "signed prior": lambda: FeCAMClassifier(tukey=None, l2=None, shrinkage=(2.0, 1.0), pooling=9),
    "variance": lambda: FeCAMClassifier.from_preset("paper", normalization="variance"),
    "none": lambda: FeCAMClassifier(normalization=None),
    "domains": lambda: FeCAMClassifier(domains="average"),
}


def n_bytes(stats):
    return stats.raw_mean.nbytes + stats.mean.nbytes + stats.scatter.data.nbytes


@pytest.mark.parametrize(("n", "maximum"), [(5, 16 * 2**10), (500, int(0.53 * 2**20))])
def test_bytes_per_class_in_memory_and_on_disk(tmp_path, n, maximum):
    X, y = relu_features(12, n, 512, 0)
    sizes = []
    for classes in (4, 12):
        clf = FeCAMClassifier().fit(X[y < classes], y[y < classes])
        assert all(n_bytes(stats) <= maximum for stats in clf.state_.classes.values())
        path = tmp_path / f"{classes}.fecam"
        clf.save(path)
        sizes.append(path.stat().st_size)
        loaded = load(path)
        np.testing.assert_array_equal(loaded.predict(X[::7]), clf.predict(X[::7]))
    assert (sizes[1] - sizes[0]) / 8 <= maximum
