"""A predictor derives everything once, and takes over what is still valid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core.distances import ExhaustiveDistances
from fecam.core.expected import CalibratedPredictor
from fecam.core.metric import distance_scale
from fecam.core.precision import BlockCholesky, DensePrecision, LowRankPrecision
from fecam.core.search import PrunedSearch
from fecam.core.tuning import SearchTuning
from helpers.search_cases import close_queries, make, samples

# ---------------------------------------------------------------- what is taken over


@pytest.mark.parametrize(
    ("counts", "n_features", "form"),
    [
        ([30] * 8, 12, DensePrecision),
        ([5] * 20, 64, LowRankPrecision),
        ([60] * 20, 64, BlockCholesky),
    ],
)
def test_without_a_prior_learning_a_class_keeps_the_precisions_of_all_others(
    counts, n_features, form
):
    X, y = samples(counts, n_features)
    clf = make("default", pooling=0).fit(X, y)
    before = clf.predictor_.precisions
    assert {type(precision) for precision in before} == {form}
    clf.partial_fit(X[y == 3][:2], [3, 3])
    after = clf.predictor_.precisions
    assert [a is b for a, b in zip(after, before, strict=True)] == [
        i != 3 for i in range(len(before))
    ]
    clf.partial_fit(X[:4], [77] * 4)
    assert all(a is b for a, b in zip(clf.predictor_.precisions, after, strict=False))


@pytest.mark.parametrize(("counts", "n_features"), [([30] * 8, 12), ([5] * 20, 64)])
def test_without_a_prior_forgetting_a_class_keeps_the_precisions_of_all_others(counts, n_features):
    X, y = samples(counts, n_features)
    clf = make("default", pooling=0).fit(X, y)
    before = clf.warm_up().predictor_.precisions
    clf.forget(3)
    assert 3 not in clf.predictor_._derived, "nothing derived from a forgotten class remains"
    after = clf.predictor_.precisions
    assert all(a is b for a, b in zip(after, before[:3] + before[4:], strict=True))


@pytest.mark.parametrize("name", ["paper", "default"])
def test_set_state_takes_precisions_over_from_a_previous_classifier(name):
    X, y = samples([60] * 10 + [5] * 10, 64)
    clf = make(name).fit(X, y).warm_up()
    before, prior = clf.predictor_, clf.current_prior()
    more = clf.copy().partial_fit(X[:3], y[:3]).state_
    if name == "default":  # precisions are those of one prior
        more = clf.state_
    fresh = make(name).set_state(more, prior=prior, previous=clf)
    same = [a is b for a, b in zip(fresh.predictor_.precisions, before.precisions, strict=True)]
    assert same == [more.classes[k] is clf.state_.classes[k] for k in range(20)]
    assert sum(same) == (20 if name == "default" else 19)
    np.testing.assert_array_equal(
        fresh.predict(X[::20]), make(name).set_state(more).predict(X[::20])
    )
    alone = make(name).set_state(more, prior=prior)
    assert not set(map(id, alone.predictor_.precisions)) & set(map(id, before.precisions))


def test_the_same_state_takes_over_the_search_as_well():
    X, y = samples([60] * 20, 64)
    clf = make("paper").fit(X, y).warm_up()
    fresh = make("paper").set_state(clf.state_, previous=clf)
    assert fresh.predictor_.exhaustive is clf.predictor_.exhaustive
    assert fresh.predictor_.pruned_search is clf.predictor_.pruned_search


def test_other_parameters_take_nothing_over():
    X, y = samples([60] * 20, 64)
    clf = make("paper").fit(X, y).warm_up()
    before = clf.predictor_
    clf.set_params(shrinkage=(2, 0))
    assert clf.predictor_ is not before and not clf.predictor_._derived
    assert clf.predictor_.last_prior is None and clf.predictor_._basis is None


def test_a_copy_does_not_change_the_predictor_of_the_original():
    X, y = samples([60] * 20, 64)
    clf = make("paper").fit(X, y).warm_up()
    predictor = clf.predictor_
    other = clf.copy()
    assert other.predictor_ is predictor
    other.partial_fit(X[:3], y[:3]).predict(X[:3])
    assert clf.predictor_ is predictor and other.predictor_ is not predictor


@pytest.mark.parametrize("counts", [[80] * 20, [12] * 20, [1, 2, 30] * 8])
@pytest.mark.parametrize("name", ["default", "paper", "common"])
def test_after_warm_up_nothing_is_derived(name, counts, monkeypatch):
    X, y = samples(counts, 96, lift=0.01)
    clf = FeCAMClassifier(covariance="common") if name == "common" else make(name)
    clf.fit(X, y)
    want = FeCAMClassifier(**clf.get_params()).fit(X, y).predict_detailed(X[:9], 3)
    clf.warm_up()

    def refuse(*_, **__):
        raise AssertionError("it is derived a second time")

    for method in ("_derive", "_new_expected", "_shared_precisions", "updated_prior"):
        monkeypatch.setattr(CalibratedPredictor, method, refuse)
    for derived in (ExhaustiveDistances, PrunedSearch):
        monkeypatch.setattr(derived, "__init__", refuse)
    for got, expected in zip(clf.predict_detailed(X[:9], 3), want, strict=True):
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=1e-3)
        else:
            np.testing.assert_array_equal(got, expected)


# ---------------------------------------------------------------- expected distances


def test_the_first_novelty_derives_few_precisions():
    X, y = samples([30] * 150, 16, lift=0.01)
    clf = make("default")
    clf._tuning = SearchTuning(cg_min_flops=0, cg_cost=1.0)
    clf.set_state(clf.fit(X, y).state_)  # as from a file: nothing is derived
    first = clf.novelty(X[:1])
    assert len(clf.predictor_._derived) <= 64 + 3 and "exhaustive" not in vars(clf.predictor_)
    clf.decision_function(X[:1])
    np.testing.assert_allclose(clf.novelty(X[:1]), first, rtol=1e-4)


def own_distances(clf):
    predictor = clf.predictor_
    return np.array([predictor._own_distance(i) for i in range(len(predictor.labels))])


def test_more_than_64_classes_share_the_mean_of_64():
    X, y = samples([30] * 100, 16, lift=0.01)
    clf = make("default").fit(X, y)
    predictor, own = clf.predictor_, own_distances(clf)
    mean = own[::2].mean()
    scale = distance_scale(clf.state_.classes[0], clf.metric_)
    want = (1 + 1 / 30) * (30 * own + 5 * mean) / 35 * scale
    np.testing.assert_allclose(predictor.expected_distances(range(100)), want, rtol=1e-12)
    np.testing.assert_allclose(predictor.expected_distances(), want[::2], rtol=1e-12)
    assert abs(mean / own.mean() - 1) < 0.1, "64 classes are enough"


def test_up_to_64_classes_share_the_mean_of_all_with_a_variance():
    X, y = samples([30, 2] * 32, 16, lift=0.01)
    clf = make("default").fit(X, y)
    predictor, own = clf.predictor_, own_distances(clf)
    assert all(value is None for value in own[1::2])
    expected = predictor.expected_distances()
    assert len(expected) == 64
    scale = distance_scale(clf.state_.classes[1], clf.metric_)
    np.testing.assert_allclose(expected[1::2], 1.5 * np.mean(own[::2]) * scale, rtol=1e-12)
    np.testing.assert_allclose(predictor.expected_distances([5, 4]), expected[5:3:-1])
    assert math.isfinite(clf.novelty(X[:1])[0])


def test_marginal_distributions_of_unchanged_classes_are_kept():
    X, y = samples([40] * 20, 192)
    clf = make("paper").fit(X, y)
    before = clf.predictor_.pruned_search.marginals
    clf.partial_fit(X[y == 3] + np.float32(1), [3] * 40)
    after = clf.predictor_.pruned_search.marginals
    kept = [after.get(precision) is marginal for precision, marginal in before.items()]
    assert kept.count(True) == 19 and len(kept) == 20


def test_expected_distances_without_variances_are_scaled_once():
    X, y = samples([1] * 6, 16)
    certain, uncertain = (
        make("default", mean_uncertainty=u).fit(X, y).predictor_.expected_distances()
        for u in (0, 1)
    )
    np.testing.assert_allclose(uncertain, np.array(certain) / 2)


def test_nearest_is_the_same_for_every_search():
    X, y = samples([60] * 20, 64)
    clf = make("paper").fit(X, y)
    Q = close_queries(X, 20)
    predictor = clf.predictor_
    queries = clf._queries(Q, predictor)
    want = predictor.exhaustive(queries)
    for search in ("exhaustive", "exact", "auto"):
        neighbors = predictor.nearest(queries, 2, search=search)
        ranked = np.take_along_axis(want, neighbors.indices, axis=1)
        np.testing.assert_allclose(neighbors.distances, ranked, rtol=1e-4)
        np.testing.assert_allclose(ranked, np.sort(want, axis=1)[:, :2], rtol=1e-5)
        assert not np.any(neighbors.softmax_sum), "without a temperature there is no sum"
