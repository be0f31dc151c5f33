"""Scatters in their smallest form, and classes of few samples measured through their rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier, load
from fecam.core.factors import whiten
from fecam.core.metric import class_covariance, distance_scale, mean_variance, prototype_of
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
from fecam.core.thin import ThinFactor
from helpers.features import relu_features

WIDTH = 24
seeds = st.integers(0, 10_000)
counts = st.integers(1, 30)


def rows(n, seed, width=WIDTH):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, width)) @ rng.normal(size=(width, width)) + rng.normal(size=width)


def scatter(X, dtype=np.float64):
    return summarize_class(X, X, "full", dtype).scatter


def literal(X):
    centred = X - X.mean(axis=0)
    return centred.T @ centred


def assert_close(got, want, scale):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11 * np.abs(scale).max())


@given(n=counts, seed=seeds)
def test_every_form_holds_the_scatter(n, seed):
    X = rows(n, seed)
    kept = scatter(X)
    assert kept.storage == ("low_rank" if n - 1 <= max_low_rank(WIDTH) else "packed")
    want = literal(X)
    assert_close(to_dense(kept), want, X**2)
    assert_close(diagonal_of(kept), np.diag(want), X**2)
    assert np.array_equal(to_dense(kept), to_dense(kept).T) or kept.storage == "low_rank"


@given(a=counts, b=counts, seed=seeds)
def test_sums_and_differences_across_forms(a, b, seed):
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
def test_rows_are_orthogonal_and_follow_from_the_scatter_alone(seed):
    """Other samples with the same scatter give the same rows: no sample can be read off them."""
    X = rows(5, seed)
    centred = X - X.mean(axis=0)
    ones = np.ones((5, 1)) / 5**0.5
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(np.concatenate([ones, rng.normal(size=(5, 4))], axis=1))
    spin, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    basis = turn[:, 1:]  # orthogonal to the mean: spinning it keeps the mean and the scatter
    other = basis @ spin @ basis.T @ centred + X.mean(axis=0)
    assert np.abs(other - X).max() > 1e-3
    kept, again = scatter(X).data, scatter(other).data
    np.testing.assert_allclose(kept, again, atol=1e-6 * np.abs(kept).max())
    gram = kept @ kept.T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-8 * gram.max())
    lengths = np.linalg.norm(kept, axis=1)
    assert np.all(np.diff(lengths) <= 1e-9 * lengths[0])
    closeness = np.abs(kept[:, None, :] - centred[None, :, :]).max(axis=2) / np.abs(kept).max()
    assert closeness.min() > 1e-3, "a centred sample is among the rows"


def test_dead_features_do_not_let_a_sample_through():
    """A triangular root, by Householder's reflections, would keep the first sample as it is."""
    X = rows(5, 0)
    X[:, :8] = 0
    kept = scatter(X).data
    centred = X - X.mean(axis=0)
    for row in kept:
        assert np.abs(centred - row).max(axis=1).min() > 1e-3
        assert np.abs(centred + row).max(axis=1).min() > 1e-3


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


@pytest.mark.parametrize("name", SETTINGS)
@given(seed=seeds, n=st.sampled_from([1, 2, 5, 16]))
def test_distances_through_rows_are_those_through_the_matrix(name, seed, n):
    X, y = relu_features(4, n, 64, seed)
    if name.startswith("signed"):
        X = X - X.mean(axis=0) * np.linspace(0.5, 3, 64)  # mean covariances of either sign
    clf = SETTINGS[name]().fit(X, y)
    Q = np.abs(X[::2] + np.random.default_rng(seed).normal(size=X[::2].shape) * 0.1)
    got = -clf.decision_function(Q)
    known, metric = clf.state_, clf.metric_
    factors = clf._derived.factors(known, metric)
    assert any(isinstance(factor, ThinFactor) for factor in factors)
    prior = clf._derived.prior if metric.has_prior else None
    spare = mean_variance(known.classes.values()) if metric.normalization is None else 1.0
    queries = clf._queries(Q, known, metric).astype(np.float64)
    for column, one in enumerate(known.classes.values()):
        root = whiten(class_covariance(one, metric, prior, spare), 6e-8)
        apart = queries - prototype_of(one, metric, known.transform)
        want = distance_scale(one, metric) * np.sum((apart @ root) ** 2, axis=1)
        np.testing.assert_allclose(got[:, column], want, rtol=1e-4, atol=1e-6 * want.max())


def test_a_floor_that_is_too_low_takes_the_whole_matrix():
    X, y = relu_features(3, 5, 64, 0)
    clf = FeCAMClassifier.from_preset("paper", shrinkage=(1e-4, 0.0)).fit(X, y)
    assert not any(
        isinstance(factor, ThinFactor) for factor in clf._derived.factors(clf.state_, clf.metric_)
    )
    assert clf.score(X, y) == 1


def memory(one):
    return one.raw_mean.nbytes + one.mean.nbytes + one.scatter.data.nbytes


@pytest.mark.parametrize(("n", "most"), [(5, 16 * 2**10), (500, int(0.53 * 2**20))])
def test_bytes_a_class_in_memory_and_on_disk(tmp_path, n, most):
    X, y = relu_features(12, n, 512, 0)
    sizes = []
    for classes in (4, 12):
        clf = FeCAMClassifier().fit(X[y < classes], y[y < classes])
        assert all(memory(one) <= most for one in clf.state_.classes.values())
        path = tmp_path / f"{classes}.fecam"
        clf.save(path)
        sizes.append(path.stat().st_size)
        loaded = load(path)
        np.testing.assert_array_equal(loaded.predict(X[::7]), clf.predict(X[::7]))
    assert (sizes[1] - sizes[0]) / 8 <= most


def test_nothing_of_the_size_of_a_matrix_belongs_to_a_class_of_few_samples():
    X, y = relu_features(30, 5, 256, 0)
    for clf in (FeCAMClassifier(), FeCAMClassifier.from_preset("paper")):
        clf.fit(X, y).predict(X[:3])
        shared = set()
        for factor in clf._derived.factors(clf.state_, clf.metric_):
            assert isinstance(factor, ThinFactor)
            own = (factor.deviations, factor.weights, factor.rows)
            assert sum(array.size for array in own) <= 9 * 256
            shared.add(id(factor.vectors))
        assert len(shared) == 1
