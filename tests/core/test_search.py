"""Pruned search returns what exhaustive search returns, on random and difficult cases."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from fecam import FeCAMClassifier
from fecam.core import lognormal, predictions, softmax, temperature
from fecam.core import search as search_module
from fecam.core.precision import BlockCholesky, LowRankPrecision
from fecam.core.search import PrunedSearch
from fecam.core.tuning import SearchTuning
from helpers.search_cases import close_queries, make, samples

N_FEATURES = 96
SMALL = {"max_direct_rank": 6, "low_rank_prefix": 10}
NAMES = (
    *("default", "paper", "few-shot", "vit"),
    *("pooling 7", "unnormalized", "variance", "float64"),
)
COUNTS = {
    "many samples": [60] * 20,
    "few samples": [5] * 24,
    "one sample": [1] * 30,
    "low rank": [24] * 20,
    "all forms": [1, 2, 3, 5, 20, 24, 40, 90] * 3,
}


@pytest.fixture(autouse=True)
def small_ranks(monkeypatch):
    """Classes are small in these tests, and must still take all forms."""
    monkeypatch.setattr(FeCAMClassifier, "_tuning", SearchTuning(**SMALL))


def assert_same_answers(clf, Q, ks=(1, 2, 5)):
    """The same labels as exhaustive search.

    Only where two distances differ by less than single precision resolves (a relative 1e-5) may a
    label differ, and then the distances must agree.
    """
    distances = -clf.decision_function(Q)
    column = {label: i for i, label in enumerate(clf.classes_)}
    for k in ks:
        clf.set_params(search="exhaustive")
        want = clf.predict_top_k(Q, k)
        for search in ("exact", "auto"):
            got = clf.set_params(search=search).predict_top_k(Q, k)
            for row in np.flatnonzero((got != want).any(axis=1)):
                measured_distances = [distances[row, column[label]] for label in got[row]]
                expected_distances = [distances[row, column[label]] for label in want[row]]
                np.testing.assert_allclose(measured_distances, expected_distances, rtol=1e-5)
                assert len(set(got[row])) == k
    clf.set_params(search="exact")
    assert clf.predictor_.pruned_search is not None, "nothing was searched"


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_exhaustive_search(name, counts):
    X, y = samples(COUNTS[counts])
    if name == "few-shot" and counts == "one sample":
        X = X + 0.01
    assert_same_answers(make(name).fit(X, y), close_queries(X))


def make_less_certain(monkeypatch):
    """Lower the sharpness of the softmax, so that several classes are likely."""
    monkeypatch.setattr(predictions, "fitted_sharpness", lambda rows, reference: reference / 10)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", ["default", "paper", "unnormalized"])
def test_probabilities_sum_over_all_classes_within_the_cutoff(name, counts, k, monkeypatch):
    make_less_certain(monkeypatch)
    X, y = samples(COUNTS[counts])
    clf, Q = make(name).fit(X, y), close_queries(X)
    distances, exhaustive = -clf.decision_function(Q).astype(np.float64), clf.predict_proba(Q)
    column = {label: i for i, label in enumerate(clf.classes_)}
    divisor = temperature.softmax_temperature(
        clf.predictor_.expected_distances(),
        temperature.reference_sharpness(lognormal.relative_variance(clf.state_.classes.values()))
        / 10,
    )
    n_likely = []
    for search in ("exhaustive", "exact", "auto"):
        predictions = clf.set_params(search=search).predict_detailed(Q, k)
        for row, shares in enumerate(predictions.probabilities):
            roots = np.sqrt(distances[row])
            excess = (roots - roots.min()) / divisor
            weights = np.where(excess <= softmax.SOFTMAX_CUTOFF, np.exp(-excess), 0)
            n_likely.append(np.count_nonzero(weights))
            want = [weights[column[label]] / weights.sum() for label in predictions.labels[row]]
            # A class at the cutoff may fall on either side.
            at_cutoff = np.min(np.abs(excess - softmax.SOFTMAX_CUTOFF)) < 1e-2
            np.testing.assert_allclose(shares, want, atol=1e-2 if at_cutoff else 1e-3)
    assert np.mean(np.abs(predictions.probabilities[:, 0] - exhaustive.max(axis=1))) < 0.03
    assert np.mean(n_likely) > 1, "only the nearest class was likely"


def test_models_of_these_tests_have_classes_of_all_forms():
    X, y = samples(COUNTS["all forms"])
    predictor = make("paper").fit(X, y).predictor_
    assert {type(precision) for precision in predictor.precisions} == {
        BlockCholesky,
        LowRankPrecision,
    }
    search = predictor.pruned_search
    assert len(search.direct) == 12 and search.prior_bounds is None
    assert {bounds.size: len(bounds.indices) for bounds in search.prefix_bounds} == {
        10: 6,
        N_FEATURES // 4: 6,
    }
    search = make("default").fit(X, y).predictor_.pruned_search
    assert len(search.prior_bounds.indices) == 18
    assert [bounds.size for bounds in search.prefix_bounds] == [N_FEATURES // 4]


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "unnormalized"]))
def test_random_models(seed, name):
    rng = np.random.default_rng(seed)
    counts = rng.choice([1, 2, 4, 10, 24, 30, 70], size=rng.integers(16, 30))
    X, y = samples(counts, seed=seed)
    assert_same_answers(make(name).fit(X, y), close_queries(X, 20, seed))


def within_radius(name, seed, tolerance):
    """The radius, all distances, those of a search, and the classes in the shared basis."""
    X, y = samples(COUNTS["all forms"], seed=seed)
    clf = make(name).fit(X, y)
    clf._tuning = SearchTuning(**SMALL, radius_tolerance=tolerance)
    clf._predictor = None
    predictor = clf.predictor_
    Q = np.concatenate([close_queries(X, 20, seed), 30 * close_queries(X, 5, seed), X[:5]])
    want = -clf.decision_function(Q).astype(np.float64)
    radius = 5 * float(np.median(want))
    queries = clf._queries(Q, predictor)
    (distances,) = predictor.pruned_search.search(queries, 1, radius, 0.0, lambda d, _: d)
    finite = np.isfinite(distances)
    assert np.mean(finite) > 0.3, "nearly all classes were pruned"
    assert np.all(finite[want <= want.min(axis=1, keepdims=True) + radius * (1 - 1e-4)])
    return radius, want, distances, list(predictor.pruned_search.in_basis)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "unnormalized"]))
def test_all_distances_within_the_radius_are_returned_exactly(seed, name):
    _, want, distances, cholesky = within_radius(name, seed, tolerance=0.0)
    finite = np.isfinite(distances)
    np.testing.assert_allclose(distances[finite], want[finite], rtol=1e-4, atol=1e-6)
    finite, measured, exact = finite[:, cholesky], distances[:, cholesky], want[:, cholesky]
    np.testing.assert_allclose(measured[finite], exact[finite], rtol=2e-5)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["paper", "default", "unnormalized"]),
    tolerance=st.sampled_from([1e-4, 1e-2, 1.0]),
)
def test_only_distances_of_classes_that_are_not_nearest_are_estimated(seed, name, tolerance):
    radius, want, distances, _ = within_radius(name, seed, tolerance)
    finite, nearest = np.isfinite(distances), want.argmin(axis=1)[:, None]
    np.testing.assert_allclose(
        np.take_along_axis(distances, nearest, 1), want.min(axis=1)[:, None], rtol=1e-4, atol=1e-6
    )
    assert np.array_equal(distances.argmin(axis=1), nearest[:, 0])
    error = np.abs(np.sqrt(distances[finite]) - np.sqrt(want[finite]))
    assert error.max() <= tolerance * radius + 1e-4 * np.sqrt(want[finite]).max()


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
@pytest.mark.parametrize("count", [3, 24, 60])
def test_of_identical_classes_the_first_wins(name, count):
    X, y = samples([count] * 18)
    clf = make(name).fit(np.concatenate([X, X]), np.concatenate([y + 100, y]))
    Q = close_queries(X)
    want = clf.set_params(search="exhaustive").predict_top_k(Q, 4)
    assert np.all(want[:, 0] < 100) and np.all(want[:, 1] == want[:, 0] + 100)
    for search in ("exact", "auto"):
        np.testing.assert_array_equal(clf.set_params(search=search).predict(Q), want[:, 0])
    assert np.all(clf.set_params(search="approximate").predict(Q) < 100)
    np.testing.assert_array_equal(clf.set_params(search="exact").predict_top_k(Q, 4), want)


@pytest.mark.parametrize("name", ["paper", "default", "variance"])
def test_classes_with_one_and_the_same_prototype(name):
    """They differ by their covariances alone."""
    rng = np.random.default_rng(0)
    X, y = [], []
    for label in range(20):
        half = rng.normal(size=(30, N_FEATURES)) * np.exp(rng.normal(size=N_FEATURES)) * 0.1
        X += [1 + half, 1 - half]
        y += [label] * 60
    X = np.concatenate(X) ** 2
    clf = make(name, **({"tukey": 0.5} if name != "paper" else {})).fit(X, y)
    assert_same_answers(clf, X[::37])


@pytest.mark.parametrize("name", ["paper", "default", "unnormalized", "variance"])
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e6])
def test_features_of_any_scale(name, scale):
    X, y = samples(COUNTS["all forms"])
    assert_same_answers(make(name).fit(X * scale, y), close_queries(X) * scale)


@pytest.mark.parametrize("name", ["default", "unnormalized", "variance"])
def test_one_class_far_away_and_one_much_wider(name):
    X, y = samples([60] * 20 + [3] * 4)
    X = X.astype(np.float64)
    X[y == 3] += 1e4
    X[y == 7] *= 1e3
    clf = make(name, tukey=None, l2=None).fit(X, y)
    assert_same_answers(clf, np.concatenate([close_queries(X), X[y == 3][:5], X[y == 7][:5]]))


@pytest.mark.parametrize("name", ["default", "unnormalized"])
def test_features_far_from_zero(name):
    X, y = samples(COUNTS["all forms"])
    clf = make(name, tukey=None, l2=None).fit(X.astype(np.float64) + 1e5, y)
    assert_same_answers(clf, close_queries(X).astype(np.float64) + 1e5)


def test_queries_unlike_any_class():
    X, y = samples([60] * 20)
    clf = make("paper").fit(X, y)
    zeros, axes = np.zeros((2, N_FEATURES)), np.eye(N_FEATURES)[:5]
    Q = np.concatenate([zeros, axes, 1e6 * np.ones((2, N_FEATURES)), X[:9]])
    assert_same_answers(clf, Q.astype(np.float32))


def test_constant_features():
    X, y = samples([60] * 20)
    X[:, ::3] = 0
    X[y == 2] = X[y == 2][:1]
    assert_same_answers(make("paper").fit(X, y), close_queries(X))
    assert_same_answers(make("default").fit(X, y), close_queries(X))


def test_a_new_basis_replaces_the_old_one_in_all_classes():
    """With such a low floor, Woodbury's identity is inaccurate even for few samples."""
    X, y = samples([6] * 56)
    clf = make("default", pooling=0, shrinkage=(0.001, 0), search="exact")
    clf.fit(X[y < 16], y[y < 16]).predict(X[:5])
    old = clf.predictor_.axes
    clf.partial_fit(X[y >= 16], y[y >= 16])
    assert_same_answers(clf, close_queries(X))
    axes = {id(p.axes) for p in clf.predictor_.precisions if isinstance(p, BlockCholesky)}
    assert axes == {id(clf.predictor_.axes)} and clf.predictor_.axes is not old


@pytest.mark.parametrize("gammas", [(1, 0.5), (1, 0.9), (1, 0.99)])
def test_rows_that_sum_to_zero_under_a_prior(gammas):
    """Their mean covariance is negative, so the square of one row is added, not subtracted."""
    X, y = samples(COUNTS["all forms"])
    X = X - X.mean(axis=1, keepdims=True)
    for pooling in ("auto", 0):
        clf = make("default", tukey=None, l2=None, shrinkage=gammas, pooling=pooling).fit(X, y)
        rng = np.random.default_rng(0)
        Q = X[::2] + rng.normal(size=X[::2].shape).astype(np.float32) * 0.3
        assert_same_answers(clf, Q - Q.mean(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["default", "paper", "vit"])
def test_one_sample_with_two_labels(name):
    """At a distance of zero the order of the labels decides."""
    X, _ = samples([1] * 20)
    clf = make(name).fit(np.concatenate([X, X]), np.arange(40))
    for search in ("exhaustive", "exact", "auto"):
        clf.set_params(search=search)
        np.testing.assert_array_equal(clf.predict(X), np.arange(20))
        assert [clf.predict(row[None])[0] for row in X] == list(range(20))


def test_features_so_small_that_bounds_overflow():
    X, y = samples(COUNTS["many samples"])
    clf = make("unnormalized", tukey=None, l2=None).fit(X * np.float32(1e-18), y)
    assert_same_answers(clf, close_queries(X) * np.float32(1e-18))


@pytest.mark.parametrize("pooling", [0.0, "auto"])
def test_the_same_distances_overflow(pooling):
    """The factor of a class decides for some of them whether they fit into single precision."""
    rng = np.random.default_rng(0)
    centers = np.repeat(3 * rng.normal(size=(30, 64)), 200, axis=0)
    X = (rng.normal(size=centers.shape) + centers) * 1e-12
    clf = make("unnormalized", tukey=None, l2=None, pooling=pooling, mean_uncertainty=20.0)
    clf.fit(X.astype(np.float32), np.repeat(np.arange(30), 200))
    Q = (3e6 * rng.normal(size=(300, 64))).astype(np.float32)
    labels = [clf.set_params(search=s).predict_top_k(Q, 3) for s in ("exact", "exhaustive")]
    assert np.isinf(clf.decision_function(Q)).any(axis=1).sum() > 10, "some distances overflow"
    np.testing.assert_array_equal(*labels)


@pytest.mark.parametrize("seed", [1, 3, 9, 20, 22])
def test_classes_of_both_signs_side_by_side(seed):
    """The mean covariance, which shrinkage adds, is negative for some classes only."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 64)).astype(np.float32)
    clf = FeCAMClassifier(shrinkage=(1, 1)).fit(X, np.repeat(np.arange(20), 5))
    assert {precision.signs is None for precision in clf.predictor_.precisions} == {True, False}
    assert_same_answers(clf, X + rng.normal(size=X.shape).astype(np.float32))


def test_equal_classes_tie_next_to_their_center():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 6, 64)), np.repeat(np.arange(20), 6)
    X[1::2] = X[::2]  # every other class equals the one before it
    rows = X.reshape(-1, 64).astype(np.float32)
    clf = FeCAMClassifier(l2=None, tukey=None).fit(rows, y)
    Q = (X.mean(axis=1) + 1e-3 * rng.normal(size=(20, 64))).astype(np.float32)
    for search in ("exhaustive", "exact"):
        labels = clf.set_params(search=search).predict(Q)
        np.testing.assert_array_equal(labels, np.arange(20) // 2 * 2)


def test_predictions_after_learning_and_forgetting():
    """What was derived is reused for the classes that did not change, and for no others."""
    X, y = samples(COUNTS["all forms"])
    clf = make("paper").fit(X, y)
    Q = close_queries(X)
    clf.predict(Q)
    for label in (0, 7, 30):
        more = np.abs(close_queries(X, 12, seed=label)) * (1 + label / 10)
        clf.partial_fit(more, [label] * 12)
        assert_same_answers(clf, np.concatenate([Q, more]))
    clf.forget(7)
    assert_same_answers(clf, Q)


def test_novelty_of_an_exact_search():
    X, y = samples(COUNTS["all forms"])
    clf = make("default").fit(X, y)
    Q = close_queries(X)
    want = clf.set_params(search="exhaustive").novelty(Q)
    np.testing.assert_allclose(clf.set_params(search="exact").novelty(Q), want, rtol=1e-3)


def test_tensors_on_the_cpu():
    torch = pytest.importorskip("torch")
    X, y = samples(COUNTS["all forms"])
    clf = make("paper", search="exact").fit(torch.tensor(X), y)
    Q = close_queries(X)
    got = clf.predict(torch.tensor(Q))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), make("paper").fit(X, y).predict(Q))
    assert clf.predictor_.pruned_search is not None
    twins = make("paper", search="exact").fit(
        torch.tensor(np.concatenate([X, X])), np.concatenate([y, y + 100])
    )
    assert torch.all(twins.predict_top_k(torch.tensor(Q), 4)[:, 1] >= 100)


# ---------------------------------------------------------------- approximate search


@pytest.mark.parametrize("name", ["paper", "default"])
def test_approximate_search_nearly_always_agrees(name):
    X, y = samples([90] * 40)
    clf = make(name).fit(X[::3], y[::3])
    Q = np.concatenate([X[1::3], X[2::3]])
    want = clf.set_params(search="exhaustive").predict(Q)
    assert np.mean(clf.set_params(search="approximate").predict(Q) == want) >= 0.999


@pytest.mark.parametrize(("rank", "factor"), [(2, 3), (4, 2), (8, 4)])
def test_approximate_search_finds_classes_that_only_their_own_rows_bring_near(rank, factor):
    """Far along the few directions of a class's own variance, other prototypes are nearer."""
    rng, n_classes, count, n_features = np.random.default_rng(0), 40, 40, 192
    centers = np.repeat(rng.random((n_classes, n_features)), count, axis=0)
    directions = 3 * rng.normal(size=(n_classes, rank, n_features)) / n_features**0.5
    offsets = np.concatenate([rng.normal(size=(count, rank)) @ own for own in directions])
    offsets += 0.1 * rng.normal(size=offsets.shape)
    X, Q = (np.abs(centers + times * offsets).astype(np.float32) for times in (1, factor))
    clf = FeCAMClassifier(pooling=30).fit(X, np.repeat(np.arange(n_classes), count))
    assert len(clf.predictor_.pruned_search.prior_bounds.indices) == n_classes
    want = clf.set_params(search="exhaustive").predict(Q)
    assert np.mean(clf.set_params(search="approximate").predict(Q) == want) >= 0.999


@pytest.mark.parametrize("spread", [0.1, 0.001])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_approximate_search_at_the_prototypes(name, spread):
    """Estimates may be negative there, because rounding is subtracted."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(20), 100)
    X = (rng.random((20, 64)) + 1)[y]
    X = np.abs(X + spread * rng.normal(size=X.shape)).astype(np.float32)
    clf = make(name, search="approximate").fit(X, y)
    centers = np.stack([X[y == label].mean(axis=0) for label in range(20)])
    for Q, want in ((centers, np.arange(20)), (X[::7], y[::7])):
        for k in (1, 3):
            for probabilities in (True, False):
                predictions = clf.predict_detailed(Q, k, probabilities=probabilities)
                assert np.isfinite(predictions.distances).all()
                assert np.mean(predictions.labels[:, 0] == want) == 1


@pytest.mark.parametrize("count", [30, 90, 300])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_probabilities_of_an_approximate_search(name, count, monkeypatch):
    make_less_certain(monkeypatch)
    X, y = samples([count] * 40)
    clf = make(name).fit(X, y)
    Q = np.mean([close_queries(X, 300, seed) for seed in range(4)], axis=0)  # amid many classes
    want = clf.set_params(search="exact").predict_detailed(Q, 2)
    predictions = clf.set_params(search="approximate").predict_detailed(Q, 2)
    assert np.mean(want.probabilities[:, 0] < 0.9) > 0.1, "every prediction was certain"
    error = np.abs(predictions.probabilities - want.probabilities)
    assert error.mean() < 1e-3 and error.max() < 0.05


# ---------------------------------------------------------------- work, memory, threads


@pytest.mark.parametrize("name", ["paper", "default"])
def test_few_classes_are_evaluated(name, monkeypatch):
    X, y = samples([60] * 40)
    clf = make(name, search="exact").fit(X, y)
    n_evaluated, n_refined = [], []
    filter_and_refine = search_module.filter_and_refine

    def counted(*args, evaluate, refine, **options):
        def counting(rows, classes):
            n_evaluated.append(len(rows))
            return evaluate(rows, classes)

        def refining(rows, classes, threshold):
            result = refine(rows, classes, threshold)
            n_refined.append(len(rows))
            n_evaluated.append(np.count_nonzero(np.isfinite(result)))
            return result

        return filter_and_refine(*args, evaluate=counting, refine=refining, **options)

    monkeypatch.setattr(search_module, "filter_and_refine", counted)
    Q = close_queries(X, 200)
    clf.predict(Q)
    exact = sum(n_refined)
    assert 0 < exact < 0.75 * len(Q) * 40
    assert len(Q) <= sum(n_evaluated) < 0.5 * exact, "classes are abandoned block by block"
    n_refined.clear()
    clf.set_params(search="approximate").predict(Q)
    assert sum(n_refined) <= exact


def test_a_class_beyond_the_threshold_is_abandoned_after_a_block(monkeypatch):
    X, y = samples([60] * 40)
    clf = make("paper", search="exact").fit(X, y)
    n_pairs = {}
    block_terms = PrunedSearch._block_terms

    def counted(self, rotated, norms, blocks, rows, classes):
        end = max(map(len, blocks.values()))
        n_pairs[end] = n_pairs.get(end, 0) + len(rows)
        return block_terms(self, rotated, norms, blocks, rows, classes)

    monkeypatch.setattr(PrunedSearch, "_block_terms", counted)
    clf.predict(close_queries(X, 200))
    levels = [n_pairs[end] for end in sorted(n_pairs)]
    assert levels == sorted(levels, reverse=True) and levels[-1] < 0.5 * levels[0]


def test_searches_in_several_threads_leave_the_number_of_blas_threads_alone():
    X, y = samples(COUNTS["many samples"])
    clf = make("paper", search="exact").fit(X, y)
    Q = close_queries(X, 5000)
    want = clf.predict(Q)

    def blas_threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    with threadpool_limits(2), ThreadPoolExecutor(4) as pool:
        before = blas_threads()
        for got in pool.map(lambda _: clf.predict(Q), range(12)):
            np.testing.assert_array_equal(got, want)
        assert blas_threads() == before


def test_first_predictions_in_several_threads():
    """All threads derive from one state at once, and all get the same answers."""
    X, y = samples(COUNTS["all forms"])
    Q = close_queries(X)
    want = make("default", search="exact").fit(X, y).predict(Q)
    for _ in range(3):
        clf = make("default", search="exact").fit(X, y)
        with ThreadPoolExecutor(4) as pool:
            for got in pool.map(lambda _, clf=clf: clf.predict(Q), range(4)):
                np.testing.assert_array_equal(got, want)


def test_a_search_does_not_keep_the_previous_one():
    X, y = samples(COUNTS["all forms"])
    clf = make("paper", search="exact").fit(X, y)
    clf.predict(X[:3])
    predictor, search = map(weakref.ref, (clf.predictor_, clf.predictor_.pruned_search))
    for label in (0, 1, 2):
        clf.partial_fit(X[:2], [label, label]).predict(X[:3])
    gc.collect()
    assert predictor() is None and search() is None


@pytest.mark.parametrize("search", ["exact", "exhaustive", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_the_number_of_threads_does_not_change_answers(name, search):
    X, y = samples(COUNTS["all forms"])
    Q = close_queries(X, 400)
    answers = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            clf = make(name, search=search).fit(X, y)
            answers.append((clf.predict(Q), clf.novelty(Q)))
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("search", ["exact", "exhaustive", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_memory_does_not_grow_with_the_number_of_queries(name, search):
    X, y = samples([30] * 20 + [4] * 20)
    clf = make(name, search=search)
    clf._tuning = SearchTuning(**SMALL, block_bytes=2**20, block_rows=1024)
    clf.fit(X, y)
    Q = close_queries(X, 40_000)
    clf.predict(Q[:1000])
    peaks = []
    for n in (20_000, 40_000):
        tracemalloc.start()
        clf.predict(Q[:n])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more_queries = 20_000 * N_FEATURES * 4 * 2  # they are checked and transformed as a whole
    assert peaks[1] - peaks[0] < more_queries * 1.2
    assert peaks[1] < 40_000 * N_FEATURES * 4 * 3 + 2 * 16 * 2**20


def test_distances_that_overflow_are_equal():
    """Classes that are evaluated directly, at distances beyond single precision."""
    rng = np.random.default_rng(0)
    X = (rng.random((600, 64)) * 3e-19).astype(np.float32)
    settings = {"pooling": 0, "l2": None, "tukey": None, "normalization": None}
    clf = FeCAMClassifier(**settings, shrinkage=(0, 0), search="exact")
    clf.fit(X, np.repeat(np.arange(20), 30))
    Q = rng.random((5, 64)).astype(np.float32)
    labels = clf.predict_top_k(Q, 3)
    np.testing.assert_array_equal(labels, clf.set_params(search="exhaustive").predict_top_k(Q, 3))
    np.testing.assert_array_equal(labels, np.tile([0, 1, 2], (5, 1)))
