"""Bounds enclose the distances, and are close enough to them to be of use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fecam.core import search as search_module
from fecam.core.predictor import Predictor
from fecam.core.tuning import TUNING, SearchTuning
from helpers import literal
from helpers.search_cases import SETTINGS, close_queries, exact_distances, make, samples

ALL_FORMS = [1, 2, 3, 5, 20, 24, 40, 90] * 3
RTOL = TUNING.bound_rtol


def median_ratio(values, distances):
    """The median of the ratios; the only sample of a class lies at a distance of zero."""
    positive = distances > 0
    return np.median(values[positive] / distances[positive])


def searched(seed, name):
    """A search over classes of all forms, queries near and far, and all distances."""
    X, y = samples(ALL_FORMS, seed=seed)
    clf = make(name)
    clf._tuning = SearchTuning(max_direct_rank=6, low_rank_prefix=10)
    clf.fit(X, y)
    Q = np.concatenate([close_queries(X, 20, seed), 30 * close_queries(X, 5, seed), X[:5]])
    queries = clf._queries(Q, clf.predictor_)
    return clf.predictor_.pruned_search, queries, -clf.decision_function(Q).astype(np.float64)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "pooling 7"]))
def test_no_lower_bound_of_a_search_is_above_its_distance(seed, name):
    search, queries, distances = searched(seed, name)
    all_bounds = []
    filter_and_refine = search_module.filter_and_refine

    def recorded(bounds, *args, **options):
        all_bounds.append(bounds)
        return filter_and_refine(bounds, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "filter_and_refine", recorded)
        search.search(queries, 1, 0.0, 0.0, lambda *_: None)
    ((lower, estimate),) = all_bounds
    assert np.all(lower <= distances * (1 + RTOL) + 1e-12)
    assert median_ratio(lower, distances) > 0.2, "bounds of zero would hold as well"
    assert 0.5 < median_ratio(estimate, distances) < 1.5


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "pooling 7"]))
def test_prefix_bounds(seed, name):
    search, queries, distances = searched(seed, name)
    rotated = search.exhaustive.shift(queries) @ search.axes
    assert len(search.prefix_bounds) == (2 if name == "paper" else 1)
    for bounds in search.prefix_bounds:
        lower, estimate = bounds.bound(rotated)
        exact = distances[:, bounds.indices]
        assert np.all(lower <= exact * (1 + RTOL) + 1e-12)
        assert median_ratio(lower, exact) > 0.1
        assert 0.5 < median_ratio(estimate, exact) < 1.5


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["default", "pooling 7", "float64"]))
def test_prior_bounds(seed, name):
    search, queries, distances = searched(seed, name)
    bounds, block = search.prior_bounds, search.exhaustive.shift(queries)
    exact = distances[:, bounds.indices]
    for k, radius in ((1, 0.0), (3, float(np.median(exact)) / 10), (1, np.inf)):
        lower, estimate = bounds.bound(block, k, radius)
        assert np.all(lower <= exact * (1 + RTOL) + 1e-12)
    assert median_ratio(estimate - lower, exact) < 0.05
    assert median_ratio(np.abs(estimate - exact), exact) < 0.005
    columns, rows = np.nonzero(np.ones(exact.T.shape))
    evaluated = bounds.evaluate(block, rows, columns).reshape(exact.T.shape).T
    np.testing.assert_allclose(evaluated, exact, rtol=1e-4, atol=1e-9)


# ---------------------------------------------------------------- conjugate gradients


def predictor_of(clf, **tuning):
    return Predictor(clf.state_, clf.metric_, tuning=SearchTuning(**tuning))


def cg_bounds(clf, Q, **tuning):
    """The bounds of all classes, without a threshold."""
    predictor = predictor_of(clf, **tuning)
    queries = clf._queries(Q, predictor)
    return predictor.cg_bounds.bound(queries, len(predictor.labels), np.inf)


@pytest.mark.parametrize("steps", [1, 2, 5, 64])
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "pooling 7"])
def test_cg_bounds(name, steps):
    X, y = samples([60] * 6 + [5] * 4, 32)
    clf = make(name).fit(X, y)
    Q = np.concatenate([close_queries(X, 12), X[:3]])
    by_the_paper = literal.PRESETS.get(name)
    exact = by_the_paper(X, y, Q) if by_the_paper else exact_distances(clf, Q)
    lower, upper = cg_bounds(clf, Q, cg_max_steps=steps)
    assert np.all(lower <= exact) and np.all(exact <= upper)
    if steps == 64:
        assert np.median(lower / exact) > 0.998 and np.median(exact / upper) > 0.998
    if steps == 1:
        assert 0.1 < np.median(lower / exact) < 0.999, "one step already converges"


def test_cg_bounds_without_a_floor_are_trivial():
    """The prior makes the matrices positive definite, but they have no floor."""
    X, y = samples([60] * 6 + [5] * 4, 32, lift=0.01)
    clf = make("default", pooling=1e4, shrinkage=(0.3, 0.5)).fit(X, y)
    lower, upper = cg_bounds(clf, X[:3])
    assert not np.any(lower) and np.all(np.isinf(upper))


def test_a_threshold_only_stops_conjugate_gradients():
    X, y = samples([60] * 8, 32, lift=0.01)
    clf = make("paper").fit(X, y)
    Q = close_queries(X, 10)
    exact = exact_distances(clf, Q)
    predictor = predictor_of(clf)
    bounds = predictor.cg_bounds
    rows = clf._queries(Q, predictor).astype(np.float64) - bounds.origin
    noise = np.finfo(np.float32).eps * (1 + np.linalg.norm(rows, axis=1))
    threshold = np.median(exact, axis=1)
    for i in range(8):
        lower, upper = bounds.bound_class(i, rows, noise, threshold)
        assert np.all(lower <= exact[:, i]) and np.all(exact[:, i] <= upper)
        clear = np.abs(exact[:, i] / threshold - 1) > 0.01
        beyond = exact[:, i] > threshold
        np.testing.assert_array_equal((lower > threshold)[clear], beyond[clear])
        np.testing.assert_array_equal((upper < threshold)[clear], ~beyond[clear])
