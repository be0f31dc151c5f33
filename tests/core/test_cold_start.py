"""Predictions before precisions are derived are those that precisions give."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import bounds as bounds_module
from fecam.core import learning
from fecam.core import predictor as predictor_module
from fecam.core.bounds import CGBounds
from fecam.core.predictor import Predictor, _neighbors
from fecam.core.scatter import Scatter
from fecam.core.search import search_cold
from fecam.core.tuning import TUNING, SearchTuning
from fecam.errors import SingularMatrixError
from helpers.search_cases import SETTINGS, close_queries, exact_distances, make
from helpers.search_cases import samples as unlifted_samples

NAMES = [name for name in SETTINGS if name != "pooling 7"]
COUNTS = {
    "many samples": [60] * 12,
    "all forms": [1, 2, 3, 5, 9, 24, 40, 90] * 2,
    "one sample": [1] * 12,
}
samples = partial(unlifted_samples, lift=0.01)


def searched_cold(clf, Q, k=1):
    """Indices and distances of a cold search, and the predictor that derived precisions for it."""
    predictor = Predictor(clf.state_, clf.metric_)
    queries = clf._queries(Q, predictor)
    reduce = partial(_neighbors, k=k, temperature=0.0, dtype=predictor.state.like.dtype)
    neighbors = search_cold(predictor.cg_bounds, predictor.precision_of, queries, k, 0.0, reduce)
    return neighbors.indices, neighbors.distances, predictor


def assert_same_answers(clf, Q, ks=(1, 3), sizes=(1, 20)):
    """Those of exhaustive search, except where two distances differ by rounding alone."""
    metric = clf.metric_
    assert metric.covariance == "class" and metric.shrinkage[0] >= TUNING.cg_min_floor
    exhaustive = -clf.decision_function(Q).astype(np.float64)
    for k in ks:
        want = clf.set_params(search="exhaustive").predict_top_k(Q, k)
        want = np.searchsorted(clf.classes_, want)
        for size in sizes:
            subset = Q[:4] if size == 1 else Q
            for start in range(0, len(subset), size):
                indices, distances, _ = searched_cold(clf, subset[start : start + size], k)
                for row, got in enumerate(indices, start=start):
                    measured = exhaustive[row, got]
                    noise = 1e-6 * exhaustive[row].max()
                    np.testing.assert_allclose(distances[row - start], measured, 2e-4, noise)
                    assert len(set(got)) == k
                    if np.any(got != want[row]):
                        np.testing.assert_allclose(
                            measured, exhaustive[row, want[row]], 1e-5, noise
                        )


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_exhaustive_search(name, counts):
    X, y = samples(COUNTS[counts], 40)
    assert_same_answers(make(name).fit(X, y), close_queries(X, 12), sizes=(1, 12))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), width=st.integers(2, 80), name=st.sampled_from(NAMES))
def test_random_models(seed, width, name):
    rng = np.random.default_rng(seed)
    counts = rng.choice([1, 2, 4, 10, 24, 30, 70], size=rng.integers(4, 12))
    X, y = samples(counts, width, seed)
    X = X * np.exp(rng.normal(size=width)).astype(np.float32)
    assert_same_answers(make(name).fit(X, y), close_queries(X, 8, seed), ks=(1, 2), sizes=(1, 8))


@pytest.mark.parametrize("name", ["default", "paper", "unnormalized"])
def test_more_features(name):
    X, y = samples([200] * 12 + [20] * 8, 128)
    assert_same_answers(make(name).fit(X, y), close_queries(X, 12))


@pytest.mark.parametrize("name", ["default", "paper", "unnormalized", "variance"])
@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6])
def test_features_of_any_scale(name, scale):
    X, y = samples(COUNTS["all forms"], 24)
    clf = make(name).fit(X * np.float32(scale), y)
    assert_same_answers(clf, close_queries(X, 12) * np.float32(scale))


@pytest.mark.parametrize("name", ["default", "unnormalized"])
def test_features_far_from_zero_and_classes_far_apart(name):
    X, y = samples(COUNTS["all forms"], 24)
    X = X.astype(np.float64) + 1e5
    X[y == 3] += 1e3
    X[y == 7] = (X[y == 7] - 1e5) * 50 + 1e5
    clf = make(name, tukey=None, l2=None).fit(X, y)
    assert_same_answers(clf, np.concatenate([close_queries(X - 1e5, 12) + 1e5, X[::40]]))


def test_constant_features():
    X, y = samples(COUNTS["all forms"], 24)
    X[:, ::3] = 0.5
    X[y == 7] = X[y == 7][:1]
    for name in ("paper", "default", "unnormalized"):
        assert_same_answers(make(name).fit(X, y), close_queries(X, 12))


@pytest.mark.parametrize("gammas", [(1, 0.5), (1, 0.9), (1, 0.99)])
@pytest.mark.parametrize("pooling", ["auto", 0])
def test_covariances_with_a_negative_mean(gammas, pooling):
    """Shrinkage leaves such a matrix a low floor, or none: then the class is evaluated."""
    X, y = samples(COUNTS["all forms"], 24)
    X = X - X.mean(axis=1, keepdims=True)
    clf = make("default", tukey=None, l2=None, shrinkage=gammas, pooling=pooling).fit(X, y)
    rng = np.random.default_rng(0)
    Q = X[::30] + rng.normal(size=X[::30].shape).astype(np.float32) * 0.3
    assert_same_answers(clf, Q - Q.mean(axis=1, keepdims=True))


def test_shrinkage_that_leaves_no_floor():
    """All bounds are trivial, so all classes are evaluated."""
    X, y = samples([60] * 6 + [5] * 4, 32)
    clf = make("default", pooling=1e4, shrinkage=(0.3, 0.5)).fit(X, y)
    assert_same_answers(clf, close_queries(X, 12))
    assert n_derived(searched_cold(clf, X[:1])[2]) == 10


def test_a_class_of_two_domains():
    X, y = samples([30] * 10, 24)
    clf = make("official-vit", dtype="float64").partial_fit(X, y)
    clf.partial_fit(X[::-1] * 2 + X[::-1] ** 2, y[::-1])
    assert any(s.domain_mean_covariance is not None for s in clf.state_.classes.values())
    assert_same_answers(clf, close_queries(X, 12))


@pytest.mark.parametrize("pooling", [0.5, 0])
def test_one_sample_under_a_weak_prior(pooling):
    """The low-rank form of a precision gives the distances of the dense matrix."""
    X, y = samples([1] * 3 + [40] * 5, 40)
    clf = make("default", pooling=pooling, normalization=None, dtype="float64").fit(X, y)
    want = exact_distances(clf, X[:5])
    np.testing.assert_allclose(-clf.decision_function(X[:5]), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
@pytest.mark.parametrize("count", [3, 60])
def test_of_identical_classes_the_first_wins(name, count):
    X, y = samples([count] * 8, 40)
    clf = make(name).fit(np.concatenate([X, X]), np.concatenate([y + 8, y]))
    Q = close_queries(X, 20)
    for size in (1, 20):
        for start in range(0, 20, size):
            indices, _, _ = searched_cold(clf, Q[start : start + size], 2)
            assert np.all(indices[:, 0] < 8) and np.all(indices[:, 1] == indices[:, 0] + 8)


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
def test_one_sample_with_two_labels(name):
    """At a distance of zero the order of the labels decides."""
    X, _ = samples([1] * 10, 40)
    clf = make(name).fit(np.concatenate([X, X]), np.arange(20))
    assert [searched_cold(clf, row[None])[0][0, 0] for row in X] == list(range(10))


def test_a_query_that_differs_from_two_centers_by_rounding_is_a_tie():
    """Whatever the variances of the classes are."""
    half = np.round(4 * np.random.default_rng(0).normal(size=(30, 40))) / 4  # sums are exact
    narrow, center = np.concatenate([half, -half]), np.full((1, 40), 100 + 2.0**-19)
    X = np.concatenate([center + narrow, center + 3 * narrow])
    clf = make("unnormalized", tukey=None, l2=None).fit(X, np.repeat([0, 1], 60))
    Q = center.astype(np.float32)  # which is 100
    assert clf.set_params(search="exhaustive").predict(Q) == 0
    assert searched_cold(clf, Q)[0] == 0


@pytest.mark.parametrize("name", ["paper", "default"])
def test_few_classes_are_evaluated(name):
    X, y = samples([90] * 40, 64)
    clf = make(name).fit(X, y)
    derived = [n_derived(searched_cold(clf, row[None])[2]) for row in close_queries(X, 20)[1::2]]
    assert np.mean(derived) < 2


# ---------------------------------------------------------------- when


@pytest.fixture
def for_small_models(monkeypatch):
    """A cold search pays off for small models, and for as many queries as with 512 features.

    No rows are measured while learning, as that derives precisions: models read from a file are
    cold.
    """
    monkeypatch.setattr(learning, "measured_rows", lambda predictor, batch: {})
    monkeypatch.setattr(FeCAMClassifier, "_tuning", SearchTuning(cg_min_flops=0, cg_cost=1.0))


def n_derived(predictor):
    return len(predictor._derived)


def is_warm(clf):
    """Whether all precisions are derived."""
    return "exhaustive" in vars(clf.predictor_)


def has_cg_bounds(clf):
    return "cg_bounds" in vars(clf.predictor_)


@pytest.mark.parametrize("search", ["auto", "exact", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_the_first_queries_derive_few_precisions_and_many_queries_all(
    name, search, for_small_models
):
    X, y = samples([60] * 20, 64)
    clf = make(name, search=search).fit(X, y)
    Q = close_queries(X, 20)
    want = FeCAMClassifier(**{**clf.get_params(), "search": "exhaustive"}).fit(X, y).predict(Q)
    answers = [clf.predict(row[None])[0] for row in Q[:10]]
    assert not is_warm(clf) and has_cg_bounds(clf) and clf.predictor_._basis is None
    assert n_derived(clf.predictor_) <= 10
    answers += [clf.predict(row[None])[0] for row in Q[10:]]
    assert is_warm(clf) and not has_cg_bounds(clf)
    axes = {id(derived.axes) for derived in clf.predictor_._derived.values()}
    assert axes == {id(clf.predictor_.axes)}
    if search != "approximate":
        np.testing.assert_array_equal(answers, want)
    clf.predict(Q[:1])
    assert not has_cg_bounds(clf), "the precisions are used"


def test_many_queries_at_once_derive_all_precisions(for_small_models):
    X, y = samples([60] * 20, 64)
    clf = make("default").fit(X, y)
    clf.predict(X[::10])
    assert is_warm(clf)


def test_low_rank_precisions_are_derived_soon(for_small_models):
    X, y = samples([5] * 20, 64)
    clf = make("default").fit(X, y)
    for _ in range(3):
        clf.predict(X[:1])
        assert not is_warm(clf)
    clf.predict(X[:1])
    assert is_warm(clf)


def test_the_cost_of_cold_searches_adds_up_over_batches(for_small_models):
    """Learning in between does not restart the budget; deriving all precisions does."""
    X, y = samples([5] * 20, 64)
    clf = make("paper").fit(X, y)
    for _ in range(3):
        clf.predict(X[:1])
        spent = clf.predictor_._cg_spent
        clf.partial_fit(X[:1], y[:1])
        assert clf.predictor_._cg_spent == spent > 0
    clf.warm_up().partial_fit(X[:1], y[:1])
    assert clf.predictor_._cg_spent == 0


def test_exhaustive_search_is_exhaustive(for_small_models):
    X, y = samples([60] * 20, 64)
    clf = make("default", search="exhaustive").fit(X, y)
    clf.predict(X[:1])
    assert n_derived(clf.predictor_) == 20


def test_small_models_are_not_searched_cold():
    X, y = samples([60] * 20, 64)
    clf = make("default").fit(X, y)
    clf.predict(X[:1])
    assert is_warm(clf)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_batches_between_cold_searches(name, for_small_models):
    X, y = samples([60] * 20, 64)
    clf = make(name).fit(X, y)
    far_away = np.abs(np.random.default_rng(5).normal(size=(30, 64))).astype(np.float32) * 3
    assert clf.predict(far_away[:1])[0] != 77
    clf.partial_fit(far_away[1:], [77] * 29)
    assert clf.predict(far_away[:1])[0] == 77
    clf.forget(77)
    assert clf.predict(far_away[:1])[0] != 77
    clf.set_params(shrinkage=(3, 0))
    fresh = FeCAMClassifier(**{**clf.get_params(), "search": "exhaustive"}).set_state(clf.state_)
    Q = close_queries(X, 3)
    np.testing.assert_array_equal(clf.predict(Q), fresh.predict(Q))
    clf.partial_fit(far_away, np.repeat(clf.predict(Q[:1]), 30))  # a class with a precision
    fresh.set_state(clf.state_)
    detailed = clf.predict_detailed(Q[:1], 1, probabilities=False)
    distance = -fresh.decision_function(Q[:1]).max()
    np.testing.assert_allclose(detailed.distances[0, 0], distance, rtol=1e-4)
    assert not is_warm(clf), "a cold search was cheaper each time"


def test_bounds_do_not_depend_on_the_order_of_threads(monkeypatch):
    X, y = samples([40] * 100, n_features=24)
    clf = make("paper").fit(X, y)
    queries = clf.queries(close_queries(X, n=8))
    monkeypatch.setattr(CGBounds, "_nearest_by_shared_metric", lambda *_: [0, 1])

    def bounds(order):
        monkeypatch.setattr(
            bounds_module, "in_parallel", lambda work, items: [work(item) for item in order(items)]
        )
        return Predictor(clf.state_, clf.metric_).cg_bounds.bound(queries, 2, 0.0)

    for in_order, reverse in zip(bounds(list), bounds(reversed), strict=True):
        np.testing.assert_array_equal(in_order, reverse)


def test_one_missing_precision_is_derived_at_once(monkeypatch):
    monkeypatch.setattr(FeCAMClassifier, "_tuning", SearchTuning(cg_min_flops=2 * 64**3))
    X, y = samples([60] * 20, 64)
    clf = make("paper", search="exhaustive").fit(X, y)
    clf.predict(X[:1])
    clf.set_params(search="auto").partial_fit(X[:5], y[:5])
    clf.predict(X[:1])
    assert not has_cg_bounds(clf) and is_warm(clf)


@pytest.mark.parametrize(
    "params",
    [
        {"shrinkage": (0, 0)},
        {"covariance": "diagonal"},
        {"covariance": "pooled"},
        {"covariance": "identity"},
        {"off_diagonal": "nonzero", "shrinkage": (1, 1)},
    ],
    ids=str,
)
def test_metrics_without_cg_bounds(params, for_small_models):
    X, y = samples([60] * 20, 64)
    clf = FeCAMClassifier(**params).fit(X, y)
    want = FeCAMClassifier(search="exhaustive", **params).fit(X, y).predict(X[:1])
    assert clf.predict(X[:1]) == want and not has_cg_bounds(clf)


def test_an_indefinite_matrix_raises_in_a_cold_search(for_small_models):
    X, y = samples([60] * 20, 64)
    X = X - X.mean(axis=1, keepdims=True)
    clf = FeCAMClassifier(tukey=None, l2=None, pooling=0, shrinkage=(0.02, 300)).fit(X, y)
    with pytest.raises(SingularMatrixError, match=r"class 0.*set_params"):
        clf.predict(X[:1])


def test_cold_search_of_tensors(for_small_models):
    torch = pytest.importorskip("torch")
    X, y = samples([60] * 20, 64)
    want = make("default").fit(X, y).predict(X[:2])
    clf = make("default").fit(torch.asarray(X), y)
    got = clf.predict(torch.asarray(X[:2]))
    assert isinstance(got, torch.Tensor) and not is_warm(clf)
    np.testing.assert_array_equal(got.numpy(), want)


def test_probabilities_of_a_cold_search(for_small_models):
    X, y = samples([60] * 20, 64)
    clf = make("default").fit(X, y)
    Q = close_queries(X, 2)
    cold = clf.predict_detailed(Q, 2)
    assert not is_warm(clf)
    warm = clf.warm_up().predict_detailed(Q, 2)
    np.testing.assert_array_equal(cold.labels, warm.labels)
    for name in ("distances", "probabilities", "novelty"):
        np.testing.assert_allclose(getattr(cold, name), getattr(warm, name), rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------- what is read


class CountingScatter(Scatter):
    """A scatter that counts how often its data is read."""

    __slots__ = ("reads", "scatter")

    def __init__(self, scatter):
        object.__setattr__(self, "scatter", scatter)
        object.__setattr__(self, "storage", scatter.storage)
        object.__setattr__(self, "n_features", scatter.n_features)
        object.__setattr__(self, "reads", [])

    @property
    def data(self):
        self.reads.append(1)
        return self.scatter.data


@pytest.mark.parametrize("name", ["paper", "default", "unnormalized"])
@pytest.mark.parametrize("counts", [[60] * 20, [60] * 10 + [5] * 10])
def test_the_data_of_a_class_is_read_once(name, counts, for_small_models):
    X, y = samples(counts, 64)
    clf = make(name).fit(X, y)
    state, prior = clf.state_, clf.current_prior() if clf.metric_.has_prior else None
    classes = {
        label: replace(stats, scatter=CountingScatter(stats.scatter))
        for label, stats in state.classes.items()
    }
    clf.set_state(replace(state, classes=classes), prior=prior)
    clf.predict(X[:1])
    derived = clf.predictor_._derived
    assert 1 <= len(derived) <= 3
    for label, stats in classes.items():
        assert len(stats.scatter.reads) == 1 or label in derived


def test_the_mean_variance_is_computed_only_for_a_class_without_variance(
    monkeypatch, for_small_models
):
    X, y = samples([60] * 20, 64)
    calls = []
    monkeypatch.setattr(predictor_module, "mean_variance", lambda stats: calls.append(1) or 1.0)
    clf = make("unnormalized").fit(X, y)
    for _ in range(2):
        clf.predict(X[:1])
    clf.decision_function(X[:1])
    assert not calls
    clf.partial_fit(X[:1], [50])
    clf.predict(X[:1])
    assert len(calls) == 1
