"""Exact incremental algebra: order, batches, merging, unlearning and forgetting cannot drift."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import predictor as predictor_module
from fecam.core import prior as prior_module
from fecam.core.scatter import Scatter, to_dense
from fecam.errors import InputError
from helpers.features import relu_features

WIDTH = 12
VARIANTS = {
    "default": {},
    "paper": None,
    "pooled": {"covariance": "pooled"},
    "diagonal": {"covariance": "diagonal"},
    "identity": {"covariance": "identity"},
    "strong prior": {"pooling": 500.0},
}


def make(variant, **changes):
    changes = {"tukey": 0.5, "dtype": "float64", **changes}
    if variant == "paper":
        return FeCAMClassifier.from_preset("paper", dtype="float64")
    return FeCAMClassifier(**{**VARIANTS[variant], **changes})


def _plain(value):
    return to_dense(value) if isinstance(value, Scatter) else value


def statistics(clf):
    """All numbers that the model holds, by class."""
    fields = ("count", "raw_mean", "mean", "scatter")
    return {
        label: {name: _plain(getattr(stats, name)) for name in fields}
        for label, stats in clf.state_.classes.items()
    }


def assert_same(a, b, queries, rtol=1e-5):
    """The same statistics and, once the priors are up to date, the same distances."""
    left, right = statistics(a), statistics(b)
    assert left.keys() == right.keys()
    for label, numbers in left.items():
        for name, value in numbers.items():
            if value is not None:
                np.testing.assert_allclose(value, right[label][name], rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(
        a.refresh().decision_function(queries),
        b.refresh().decision_function(queries),
        rtol=rtol * 100,
        atol=1e-9,
    )


@st.composite
def batches(draw):
    """Random data and a random split into batches, in a random order."""
    seed = draw(st.integers(0, 10_000))
    X, y = relu_features(draw(st.integers(1, 5)), draw(st.integers(1, 9)), WIDTH, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    cuts = sorted(draw(st.lists(st.integers(1, len(X)), max_size=5)))
    parts = [part for part in np.split(order, cuts) if len(part)]
    return X.astype(np.float64), y, parts


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=batches())
def test_any_split_in_any_order_is_one_fit(variant, data):
    X, y, parts = data
    stream = make(variant)
    for part in parts:
        stream.partial_fit(X[part], y[part])
        stream.predict(X[:2])  # a prediction in between has no effect
    assert_same(stream, make(variant).fit(X, y), X)


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=batches())
def test_merging_parts_is_learning_everything(variant, data):
    X, y, parts = data
    models = [make(variant).partial_fit(X[part], y[part]) for part in parts]
    merged = make(variant)
    for model in models:
        merged.merge(model)
    assert_same(merged, make(variant).fit(X, y), X)


@given(data=batches())
def test_merge_is_associative_and_commutative_and_an_empty_model_its_identity(data):
    X, y, parts = data
    parts = (parts * 3)[:3]

    def part(i):
        return make("default").partial_fit(X[parts[i]], y[parts[i]])

    left = part(0).merge(part(1)).merge(part(2))
    right = part(0).merge(part(1).merge(part(2)))
    rotated = part(2).merge(part(0)).merge(part(1))
    assert_same(left, right, X)
    assert_same(left, rotated, X)
    assert_same(part(0).merge(make("default")), make("default").merge(part(0)), X)


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=batches(), seed=st.integers(0, 1000))
def test_unlearned_samples_have_no_effect(variant, data, seed):
    X, y, _ = data
    gone = np.random.default_rng(seed).random(len(X)) < 0.4
    if gone.all() or not gone.any():
        gone[:] = False
        gone[0] = len(X) > 1
    if not gone.any():
        return
    clf = make(variant).fit(X, y)
    clf.predict(X)
    clf.unlearn(X[gone], y[gone])
    assert_same(clf, make(variant).fit(X[~gone], y[~gone]), X, rtol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_forgotten_class_has_no_effect(variant):
    X, y = relu_features(4, 8, WIDTH, 1)
    clf = make(variant).fit(X, y)
    clf.predict(X)
    clf.forget(2)
    assert_same(clf, make(variant).fit(X[y != 2], y[y != 2]), X, rtol=1e-12)
    assert clf.classes_.tolist() == [0, 1, 3]


def test_a_model_without_classes_can_learn_again():
    X, y = relu_features(2, 8, WIDTH, 1)
    clf = make("default").fit(X, y).forget(0).forget(1)
    assert len(clf.classes_) == 0
    with pytest.raises(ValueError, match="forgotten"):
        clf.predict(X)
    assert_same(clf.partial_fit(X, y), make("default").fit(X, y), X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_thousand_small_updates_do_not_drift(dtype):
    X, y = relu_features(1, 3000, 24, 2)
    stream = FeCAMClassifier(dtype=dtype, tukey=0.5)
    for rows in np.array_split(np.arange(3000), 1000):
        stream.partial_fit(X[rows], y[rows])
    features = np.sqrt(X.astype(np.float64))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    expected = np.cov(features, rowvar=False)
    got = to_dense(stream.state_.classes[0].scatter) / 2999
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < 1e-5


def test_a_thousand_updates_can_be_unlearned():
    X, y = relu_features(1, 2000, 24, 4)
    clf = FeCAMClassifier(tukey=0.5).partial_fit(X[:1000], y[:1000])
    expected = to_dense(clf.state_.classes[0].scatter)
    for rows in np.array_split(np.arange(1000, 2000), 500):
        clf.partial_fit(X[rows], y[rows])
    for rows in np.array_split(np.arange(1000, 2000), 500):
        clf.unlearn(X[rows], y[rows])
    got = to_dense(clf.state_.classes[0].scatter)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 1e-5


def test_long_sums_far_from_zero_are_exact():
    rng = np.random.default_rng(0)
    X = (1000 + rng.normal(size=(40_000, 3))).astype(np.float32)
    clf = FeCAMClassifier(tukey=None, l2=None).fit(X, np.zeros(len(X), int))
    expected = np.cov(X.astype(np.float64), rowvar=False)
    got = to_dense(clf.state_.classes[0].scatter) / (len(X) - 1)
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < 1e-5


def test_the_common_matrix_depends_only_on_the_classes_of_each_task():
    X, y = relu_features(6, 10, WIDTH, 3)
    first, second = y < 4, y >= 4

    def fitted(*parts):
        clf = make("default", covariance="common")
        for part in parts:
            clf.partial_fit(X[part], y[part])
        return clf

    ahead = fitted(first, second)
    assert_same(ahead, fitted(second, first), X)
    assert_same(ahead, fitted(first).merge(fitted(second)), X)
    again = fitted(first).merge(
        fitted(second).partial_fit(X[first], y[first]).unlearn(X[first], y[first])
    )
    assert_same(ahead, again, X)
    twice = fitted(first, second, first)  # a class stays in its first task
    assert_same(fitted(first, second).merge(fitted(first)), twice, X)
    odd = np.arange(len(y)) % 2 == 1  # batches of other rows and the same classes
    assert_same(ahead, fitted(first & odd, second & ~odd, second & odd, first & ~odd), X)
    mixed = np.isin(y, [0, 4]) & odd  # a later batch of classes of two tasks
    assert_same(ahead, fitted(first & ~mixed, second & ~mixed, mixed), X)


def test_a_lagging_prior_has_at_least_half_of_all_degrees_of_freedom(monkeypatch):
    """The bound that the docs state, and the effect of a refresh."""
    monkeypatch.setattr(prior_module, "CHEAP", 0)
    lagged = 0
    X, y = relu_features(40, 10, WIDTH, 8)
    stream = make("default")
    for label in range(40):
        stream.partial_fit(X[y == label], y[y == label])
        stream.predict(X[:1])
        prior = stream.prior_
        seen = int((stream.class_count_ - 1).sum())
        assert prior.dof >= seen / 2
        within = sum(to_dense(stats.scatter) for stats in stream.state_.classes.values()) / seen
        late = sum(
            to_dense(stats.scatter)
            for k, stats in stream.state_.classes.items()
            if k * 9 >= prior.dof
        )
        missing = seen - prior.dof
        lagged += missing > 0
        if missing:
            bound = missing / seen * np.linalg.norm(late / missing - prior.covariance)
            gap = np.linalg.norm(within - prior.covariance)
            np.testing.assert_allclose(gap, bound, rtol=1e-6)
    assert lagged > 20
    lagging = stream.predict(X)
    assert np.mean(lagging == stream.refresh().predict(X)) > 0.98


def test_the_prior_does_not_lag_if_computing_it_is_cheap():
    X, y = relu_features(10, 5, WIDTH, 8)
    stream = make("default")
    for label in range(10):
        stream.partial_fit(X[y == label], y[y == label])
        stream.predict(X[:1])
    up_to_date = stream.decision_function(X)
    np.testing.assert_allclose(stream.refresh().decision_function(X), up_to_date)


@pytest.fixture
def whitened(monkeypatch):
    """One entry per matrix that was factorized."""
    calls = []
    whiten = predictor_module.whiten
    monkeypatch.setattr(predictor_module, "whiten", lambda *args: calls.append(1) or whiten(*args))
    return calls


@pytest.mark.parametrize("pooling", [0.0, 50.0])
def test_learning_one_class_derives_one_precision(pooling, monkeypatch, whitened):
    monkeypatch.setattr(prior_module, "CHEAP", 0)
    X, y = relu_features(20, 10, WIDTH, 1)
    clf = make("default", pooling=pooling).fit(X, y)
    clf.predict(X)
    assert len(whitened) == 20
    clf.predict(X)
    assert len(whitened) == 20, "a second prediction derives nothing"
    before = clf.predictor_.precisions
    clf.partial_fit(X[y == 7], y[y == 7])
    clf.predict(X)
    assert len(whitened) == 21, "a batch of one class derives one precision"
    after = clf.predictor_.precisions
    assert [a is b for a, b in zip(after, before, strict=True)] == [i != 7 for i in range(20)]


def test_without_a_prior_forgetting_and_unlearning_keep_the_precisions_of_others(whitened):
    X, y = relu_features(9, 10, WIDTH, 1)
    clf = make("default", pooling=0).fit(X, y)
    clf.predict(X)
    clf.forget(3).unlearn(X[y == 4][:2], y[y == 4][:2])
    assert 3 not in clf.predictor_._derived, "nothing derived from a forgotten class remains"
    clf.predict(X)
    assert len(whitened) == 9 + 1


@pytest.mark.parametrize("convert", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_weights_equal_repetition(convert):
    X, y = relu_features(3, 10, WIDTH, 0)
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    weighted, repeated = FeCAMClassifier(dtype="float64"), FeCAMClassifier(dtype="float64")
    weighted.fit(convert(X), convert(y), sample_weight=convert(weights))
    repeated.fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    assert weighted.class_count_.tolist() == np.bincount(y, weights).tolist()
    weighted.partial_fit(X + 1, y, sample_weight=weights.astype(float).tolist())
    repeated.partial_fit(np.repeat(X + 1, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(
        weighted.decision_function(X), repeated.decision_function(X), rtol=1e-5
    )


def test_weights_are_whole_numbers():
    X, y = relu_features(2, 3, WIDTH, 0)
    clf = FeCAMClassifier().fit(X, y)
    for weights, message in (
        ([1, 0.5, 1, 1, 1, 1], r"0\.5.* at row 1.*whole number >= 0"),
        ([1, -1, 1, 1, 1, 1], "at row 1"),
        ([np.nan] * 6, "at row 0"),
        (["a"] * 6, "at row 0"),
        ([0] * 6, "zero for all samples"),
        ([1, 1], r"shape \(2,\), but X has 6 samples"),
        (np.ones((6, 1)), "shape"),
    ):
        with pytest.raises(InputError, match=message):
            clf.partial_fit(X, y, sample_weight=weights)
    assert clf.class_count_.tolist() == [3, 3]
