"""A search that skips classes must answer as one that measures them all: random and nasty cases."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from fecam import FeCAMClassifier
from fecam.core import calibration, panel
from fecam.core import hunt as hunt_module
from fecam.core import leaning as leaning_module
from fecam.core import search as search_module
from fecam.core.factors import FramedFactor, frame_levels
from fecam.core.thin import ThinFactor
from helpers.features import relu_features


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Classes are small here, and those of more than a few rows are to be there as well."""
    monkeypatch.setattr(search_module, "FEW", 6)
    monkeypatch.setattr(search_module, "THIN_SIZE", 10)
    monkeypatch.setattr(leaning_module, "FEW_ROWS", 6)


WIDTH = 96
SETTINGS = {
    "default": {},
    "paper": None,
    "few-shot": None,
    "vit": None,
    "pooling 7": {"pooling": 7},
    "unnormalised": {"normalization": None, "pooling": 0, "shrinkage": (1, 1)},
    "variance": {"normalization": "variance", "l2": None},
    "float64": {"dtype": "float64"},
}


def make(name, **changes):
    options = SETTINGS[name]
    if options is None:
        return FeCAMClassifier.from_preset(name, **changes)
    return FeCAMClassifier(**{**options, **changes})


def lessons(counts, seed=0, width=WIDTH):
    """Classes of so many samples each."""
    X, y = relu_features(len(counts), max(counts), width, seed)
    keep = [np.flatnonzero(y == label)[:count] for label, count in enumerate(counts)]
    keep = np.concatenate(keep)
    return X[keep].astype(np.float32), y[keep]


def queries(X, n=60, seed=1):
    """Samples with some noise, and points half-way between two, which are close calls."""
    rng = np.random.default_rng(seed)
    a, b = X[rng.integers(len(X), size=n)], X[rng.integers(len(X), size=n)]
    a[::2] = (a[::2] + b[::2]) / 2
    noise = rng.normal(size=a.shape) * 0.1 * np.abs(X).mean()
    return np.abs(a + noise).astype(X.dtype)


def assert_same_answers(clf, Q, ks=(1, 2, 5)):
    """The same labels as by measuring every class.

    Only where two classes are closer to each other than single precision can tell (a relative
    1e-5) may a label differ, and then the distances must agree.
    """
    far = -clf.decision_function(Q)
    column = {label: i for i, label in enumerate(clf.classes_)}
    for k in ks:
        clf.set_params(search="exhaustive")
        want = clf.predict_top_k(Q, k)
        for search in ("exact", "auto"):
            got = clf.set_params(search=search).predict_top_k(Q, k)
            for row in np.flatnonzero((got != want).any(axis=1)):
                mine = [far[row, column[label]] for label in got[row]]
                theirs = [far[row, column[label]] for label in want[row]]
                np.testing.assert_allclose(mine, theirs, rtol=1e-5)
                assert len(set(got[row])) == k
    clf.set_params(search="exact")
    assert clf._derived.search(clf.state_, clf.metric_) is not None, "nothing was searched"


COUNTS = {
    "many samples": [60] * 20,
    "few samples": [5] * 24,
    "one sample": [1] * 30,
    "some rows": [24] * 20,
    "all kinds": [1, 2, 3, 5, 20, 24, 40, 90] * 3,
}


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_measuring_every_class(name, counts):
    X, y = lessons(COUNTS[counts])
    if name == "few-shot" and counts == "one sample":
        X = X + 0.01
    assert_same_answers(make(name).fit(X, y), queries(X))


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", ["default", "paper", "unnormalised"])
def test_probabilities_count_all_likely_classes_and_no_others(name, counts, k, monkeypatch):
    warmer = 100 * calibration.USUAL_TEMPERATURE  # so that several classes are likely here
    monkeypatch.setattr(calibration, "USUAL_TEMPERATURE", warmer)
    X, y = lessons(COUNTS[counts])
    clf, Q = make(name).fit(X, y), queries(X)
    far, all_of_them = -clf.decision_function(Q).astype(np.float64), clf.predict_proba(Q)
    column = {label: i for i, label in enumerate(clf.classes_)}
    variance = calibration.relative_variance(clf.state_.classes.values())
    expected = clf._derived.expected(clf.state_, clf.metric_)
    warmth, likely = calibration.temperature(expected, variance), list[int]()
    for search in ("exhaustive", "exact", "auto"):
        judged = clf.set_params(search=search).predict_detailed(Q, k)
        for row, shares in enumerate(judged.probabilities):
            farther = (far[row] - far[row].min()) / warmth
            weights = np.where(farther <= panel.REACH, np.exp(-farther), 0)
            likely.append(np.count_nonzero(weights))
            expected = [weights[column[label]] / weights.sum() for label in judged.labels[row]]
            edge = np.min(np.abs(farther - panel.REACH)) < 1e-2  # may fall on either side
            np.testing.assert_allclose(shares, expected, atol=1e-2 if edge else 1e-3)
    assert np.mean(np.abs(judged.probabilities[:, 0] - all_of_them.max(axis=1))) < 0.03
    assert np.mean(likely) > 1, "nothing but the nearest was likely"


def test_the_forms_that_are_tested_are_really_there():
    X, y = lessons(COUNTS["all kinds"])
    clf = make("paper").fit(X, y)
    kinds = {type(f) for f in clf._derived.factors(clf.state_, clf.metric_)}
    assert kinds == {FramedFactor, ThinFactor}
    found = clf._derived.search(clf.state_, clf.metric_)
    assert found.direct
    assert {size: len(at) for size, (at, _) in found.bounds.items()} == {10: 6, WIDTH // 4: 6}
    assert {leading.further.shape for leading in found.further.values()} == {(WIDTH // 4, 14)}
    clf = make("default").fit(X, y)
    found = clf._derived.search(clf.state_, clf.metric_)
    assert len(found.leaning.places) == 18 and set(found.bounds) == {WIDTH // 4}


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "unnormalised"]))
def test_random_models(seed, name):
    rng = np.random.default_rng(seed)
    counts = rng.choice([1, 2, 4, 10, 24, 30, 70], size=rng.integers(16, 30))
    X, y = lessons(counts, seed)
    assert_same_answers(make(name).fit(X, y), queries(X, 20, seed))


def share_of(some, distances):
    """The median share; but a class's only sample lies at its centre, at a distance of zero."""
    known = distances > 0
    return np.median(some[known] / distances[known])


def searched(seed, name):
    """A search in classes of all kinds, queries near and far, and how far every class is."""
    X, y = lessons(COUNTS["all kinds"], seed)
    clf = make(name).fit(X, y)
    Q = np.concatenate([queries(X, 20, seed), 30 * queries(X, 5, seed), X[:5]])
    known, metric = clf.state_, clf.metric_
    found = clf._derived.search(known, metric)
    (block,) = found.panel.blocks(clf._queries(Q, known, metric))
    return found, block, -clf.decision_function(Q).astype(np.float64)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "pooling 7"]))
def test_no_bound_is_above_its_distance(seed, name):
    found, block, far = searched(seed, name)
    hunt = hunt_module.Hunt(found, block)
    assert np.all(hunt.lower <= far * (1 + hunt_module.SLACK) + 1e-12)
    assert share_of(hunt.lower, far) > 0.2, "bounds of zero would hold as well"
    every = np.arange(len(far))
    for position in found.further:
        hunt.limit = far[:, position] + 1e-12
        assert len(hunt._look_further(position, every)) == len(far)
        hunt.limit = hunt.lower[:, position].astype(np.float64)
        assert len(hunt._look_further(position, every)) < len(far) / 2, "it says nothing new"


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paper", "default", "unnormalised"]))
def test_distances_that_only_count_for_a_probability_are_distances(seed, name):
    found, block, far = searched(seed, name)
    framed = np.flatnonzero(found.is_framed)
    hunt = hunt_module.Hunt(found, block, warmth=float(np.median(far)))
    hunt.nearest(1)
    known = np.isfinite(hunt.distances[:, framed])
    assert np.mean(known) > 0.3, "next to nothing was likely"
    measured, exact = hunt.distances[:, framed][known], far[:, framed][known]
    np.testing.assert_allclose(measured, exact, rtol=2e-5)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["default", "pooling 7", "float64"]))
def test_distances_to_classes_with_a_prior_lie_between_their_bounds(seed, name):
    found, block, far = searched(seed, name)
    leaning = found.leaning
    known = leaning.bound(leaning.asked(block))
    scales, exact = found.scales[leaning.places], far[:, leaning.places]
    lower, upper, estimate = (some * scales for some in known)
    assert np.all(lower <= exact * (1 + hunt_module.SLACK) + 1e-12)
    assert np.all(upper >= exact * (1 - hunt_module.SLACK) - 1e-12)
    assert share_of(upper - lower, exact) < 0.1, "anything lies between bounds so far apart"
    assert share_of(np.abs(estimate - exact), exact) < 0.005
    rough = leaning.estimate(leaning.asked(block)) * scales
    assert np.all(rough >= estimate * (1 - 1e-3) - 1e-9), "something was taken off twice"
    first = np.argmin(exact, axis=1)[:, None]
    nearest = np.take_along_axis(exact, first, axis=1)
    assert share_of(np.abs(np.take_along_axis(rough, first, axis=1) - nearest), nearest) < 0.005
    rows, columns = np.nonzero(np.ones(exact.shape))
    square = (leaning.measure(block, rows, columns) * scales[columns]).reshape(exact.shape)
    np.testing.assert_allclose(square, exact, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
@pytest.mark.parametrize("count", [3, 24, 60])
def test_identical_classes_go_to_the_first(name, count):
    X, y = lessons([count] * 18)
    twice = np.concatenate([X, X]), np.concatenate([y + 100, y])
    clf = make(name).fit(*twice)
    Q = queries(X)
    want = clf.set_params(search="exhaustive").predict_top_k(Q, 4)
    assert np.all(want[:, 0] < 100) and np.all(want[:, 1] == want[:, 0] + 100)
    for search in ("exact", "auto"):
        np.testing.assert_array_equal(clf.set_params(search=search).predict(Q), want[:, 0])
    assert np.all(clf.set_params(search="approximate").predict(Q) < 100)
    np.testing.assert_array_equal(clf.set_params(search="exact").predict_top_k(Q, 4), want)


@pytest.mark.parametrize("name", ["paper", "default", "variance"])
def test_duplicated_prototypes(name):
    """Classes around one and the same centre differ by their spread alone."""
    rng = np.random.default_rng(0)
    X, y = [], []
    for label in range(20):
        half = rng.normal(size=(30, WIDTH)) * np.exp(rng.normal(size=WIDTH)) * 0.1
        X += [1 + half, 1 - half]
        y += [label] * 60
    X = np.concatenate(X) ** 2
    clf = make(name, **({"tukey": 0.5} if name != "paper" else {})).fit(X, y)
    assert_same_answers(clf, X[::37])


@pytest.mark.parametrize("name", ["paper", "default", "unnormalised", "variance"])
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e6])
def test_features_of_any_scale(name, scale):
    X, y = lessons(COUNTS["all kinds"])
    assert_same_answers(make(name).fit(X * scale, y), queries(X) * scale)


@pytest.mark.parametrize("name", ["default", "unnormalised", "variance"])
def test_one_class_far_away_and_one_much_wider(name):
    X, y = lessons([60] * 20 + [3] * 4)
    X = X.astype(np.float64)
    X[y == 3] += 1e4
    X[y == 7] *= 1e3
    clf = make(name, tukey=None, l2=None).fit(X, y)
    assert_same_answers(clf, np.concatenate([queries(X), X[y == 3][:5], X[y == 7][:5]]))


@pytest.mark.parametrize("name", ["default", "unnormalised"])
def test_far_from_zero(name):
    X, y = lessons(COUNTS["all kinds"])
    clf = make(name, tukey=None, l2=None).fit(X.astype(np.float64) + 1e5, y)
    assert_same_answers(clf, queries(X).astype(np.float64) + 1e5)


def test_queries_that_are_nothing_like_the_classes():
    X, y = lessons([60] * 20)
    clf = make("paper").fit(X, y)
    Q = np.concatenate([np.zeros((2, WIDTH)), np.eye(WIDTH)[:5], 1e6 * np.ones((2, WIDTH)), X[:9]])
    assert_same_answers(clf, Q.astype(np.float32))


def test_features_that_never_vary():
    X, y = lessons([60] * 20)
    X[:, ::3] = 0
    X[y == 2] = X[y == 2][:1]
    assert_same_answers(make("paper").fit(X, y), queries(X))
    assert_same_answers(make("default").fit(X, y), queries(X))


def test_a_new_frame_is_taken_by_classes_that_could_have_been_rows():
    """With so low a floor a class of few samples is measured through its whole matrix."""
    X, y = lessons([6] * 56)
    clf = make("default", pooling=0, shrinkage=(0.001, 0), search="exact")
    clf.fit(X[y < 16], y[y < 16]).predict(X[:5])
    clf.partial_fit(X[y >= 16], y[y >= 16])
    assert_same_answers(clf, queries(X))
    factors = clf._derived.factors(clf.state_, clf.metric_)
    assert len({id(f.frame) for f in factors if isinstance(f, FramedFactor)}) == 1


@pytest.mark.parametrize("gammas", [(1, 0.5), (1, 0.9), (1, 0.99)])
def test_rows_that_sum_to_zero_under_a_prior(gammas):
    """The mean covariance is negative then, and a row's square is added instead of taken off."""
    X, y = lessons(COUNTS["all kinds"])
    X = X - X.mean(axis=1, keepdims=True)
    for pooling in ("auto", 0):
        clf = make("default", tukey=None, l2=None, shrinkage=gammas, pooling=pooling).fit(X, y)
        rng = np.random.default_rng(0)
        Q = X[::2] + rng.normal(size=X[::2].shape).astype(np.float32) * 0.3
        assert_same_answers(clf, Q - Q.mean(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["default", "paper", "vit"])
def test_the_very_sample_of_two_labels(name):
    """At a distance of zero nothing but the order of the labels decides."""
    X, _ = lessons([1] * 20)
    clf = make(name).fit(np.concatenate([X, X]), np.arange(40))
    for search in ("exhaustive", "exact", "auto"):
        clf.set_params(search=search)
        np.testing.assert_array_equal(clf.predict(X), np.arange(20))
        assert [clf.predict(row[None])[0] for row in X] == list(range(20))


def test_features_so_small_that_bounds_overflow():
    X, y = lessons(COUNTS["many samples"])
    clf = make("unnormalised", tukey=None, l2=None).fit(X * np.float32(1e-18), y)
    assert_same_answers(clf, queries(X) * np.float32(1e-18))


def test_two_searches_at_once_leave_the_threads_as_they_were():
    X, y = lessons(COUNTS["many samples"])
    clf = make("paper", search="exact").fit(X, y)
    Q = queries(X, 5000)
    want = clf.predict(Q)
    with threadpool_limits(2), ThreadPoolExecutor(4) as pool:
        before = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
        for got in pool.map(lambda _: clf.predict(Q), range(12)):
            np.testing.assert_array_equal(got, want)
        after = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert before == after


def test_a_search_does_not_keep_the_one_before_it():
    X, y = lessons(COUNTS["all kinds"])
    clf = make("paper", search="exact").fit(X, y)
    clf.predict(X[:3])
    first = weakref.ref(clf._derived._search)
    for label in (0, 1, 2):
        clf.partial_fit(X[:2], [label, label]).predict(X[:3])
    gc.collect()
    assert first() is None


def test_lessons_between_answers():
    """What a search has prepared is kept for the classes that did not change, and only for them."""
    X, y = lessons(COUNTS["all kinds"])
    clf = make("paper").fit(X, y)
    Q = queries(X)
    clf.predict(Q)
    for label in (0, 7, 30):
        more = np.abs(queries(X, 12, seed=label)) * (1 + label / 10)
        clf.partial_fit(more, [label] * 12)
        assert_same_answers(clf, np.concatenate([Q, more]))
    clf.forget(7)
    assert_same_answers(clf, Q)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_shortlist_nearly_always_agrees(name):
    X, y = lessons([90] * 40)
    clf = make(name).fit(X[::3], y[::3])
    Q = np.concatenate([X[1::3], X[2::3]])
    want = clf.set_params(search="exhaustive").predict(Q)
    assert np.mean(clf.set_params(search="approximate").predict(Q) == want) >= 0.999


@pytest.mark.parametrize(("directions", "far"), [(2, 3), (4, 2), (8, 4)])
def test_a_shortlist_finds_classes_that_only_their_own_rows_bring_near(directions, far):
    """Far out along the few directions in which a class spreads, others look nearer at first."""
    rng, classes, count, width = np.random.default_rng(0), 40, 40, 192
    centres = np.repeat(rng.random((classes, width)), count, axis=0)
    axes = 3 * rng.normal(size=(classes, directions, width)) / width**0.5
    along = np.concatenate([rng.normal(size=(count, directions)) @ own for own in axes])
    along += 0.1 * rng.normal(size=along.shape)
    X, Q = (np.abs(centres + times * along).astype(np.float32) for times in (1, far))
    clf = FeCAMClassifier(pooling=30).fit(X, np.repeat(np.arange(classes), count))
    assert not clf._derived.search(clf.state_, clf.metric_).leaning.is_quick
    want = clf.set_params(search="exhaustive").predict(Q)
    assert np.mean(clf.set_params(search="approximate").predict(Q) == want) >= 0.999


@pytest.mark.parametrize("spread", [0.1, 0.001])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_shortlist_knows_the_centres(name, spread):
    """Where estimates are lower than zero, for rounding is taken off."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(20), 100)
    X = (rng.random((20, 64)) + 1)[y]
    X = np.abs(X + spread * rng.normal(size=X.shape)).astype(np.float32)
    clf = make(name, search="approximate").fit(X, y)
    centres = np.stack([X[y == label].mean(axis=0) for label in range(20)])
    for Q, want in ((centres, np.arange(20)), (X[::7], y[::7])):
        for k in (1, 3):
            for probabilities in (True, False):
                found = clf.predict_detailed(Q, k, probabilities=probabilities)
                assert np.isfinite(found.distances).all()
                assert np.mean(found.labels[:, 0] == want) == 1


@pytest.mark.parametrize("count", [30, 90, 300])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_probabilities_of_a_shortlist_count_all_that_is_likely(name, count):
    X, y = lessons([count] * 40)
    clf = make(name).fit(X, y)
    Q = np.mean([queries(X, 300, seed) for seed in range(4)], axis=0)  # in the midst of many
    want = clf.set_params(search="exact").predict_detailed(Q, 2)
    found = clf.set_params(search="approximate").predict_detailed(Q, 2)
    assert np.mean(want.probabilities[:, 0] < 0.9) > 0.1, "all were sure"
    off = np.abs(found.probabilities - want.probabilities)
    assert off.mean() < 1e-3 and off.max() < 0.05


@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_search_follows_few_classes(name, monkeypatch):
    """Otherwise it would be right, and useless."""
    X, y = lessons([60] * 40)
    clf = make(name, search="exact").fit(X, y)
    settled = []
    settle = hunt_module.Hunt._settle

    def counted(self, asked, *, guess):
        settled.append(np.count_nonzero(asked))
        settle(self, asked, guess=guess)

    monkeypatch.setattr(hunt_module.Hunt, "_settle", counted)
    Q = queries(X, 200)
    clf.predict(Q)
    exact = sum(settled)
    assert exact < 0.75 * len(Q) * 40
    settled.clear()
    clf.set_params(search="approximate").predict(Q)
    assert sum(settled) <= exact


@pytest.mark.parametrize("search", ["exact", "exhaustive", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_the_number_of_threads_changes_nothing(name, search):
    X, y = lessons(COUNTS["all kinds"])
    Q = queries(X, 400)
    answers = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            clf = make(name, search=search).fit(X, y)
            answers.append((clf.predict(Q), clf.novelty(Q)))
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("search", ["exact", "exhaustive", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_memory_does_not_grow_with_the_number_of_queries(name, search, monkeypatch):
    monkeypatch.setattr(panel, "BLOCK_BYTES", 2**20)
    monkeypatch.setattr(search_module, "BLOCK_ROWS", 1024)
    X, y = lessons([30] * 20 + [4] * 20)
    clf = make(name, search=search).fit(X, y)
    Q = queries(X, 40_000)
    clf.predict(Q[:1000])
    peaks = []
    for n in (20_000, 40_000):
        tracemalloc.start()
        clf.predict(Q[:n])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more_queries = 20_000 * WIDTH * 4 * 2  # they are checked and transformed as a whole
    assert peaks[1] - peaks[0] < more_queries * 1.2
    assert peaks[1] < 40_000 * WIDTH * 4 * 3 + 2 * 16 * 2**20


def test_novelty_needs_no_other_class_either():
    X, y = lessons(COUNTS["all kinds"])
    clf = make("default").fit(X, y)
    Q = queries(X)
    want = clf.set_params(search="exhaustive").novelty(Q)
    np.testing.assert_allclose(clf.set_params(search="exact").novelty(Q), want, rtol=1e-3)


def test_levels_end_with_the_width():
    for width in (1, 2, 5, 64, 128, 512, 1280):
        ends = frame_levels(width)
        assert ends[-1] == width and ends == sorted(set(ends))


def test_it_searches_tensors_on_the_processor_too():
    torch = pytest.importorskip("torch")
    X, y = lessons(COUNTS["all kinds"])
    clf = make("paper", search="exact").fit(torch.tensor(X), y)
    Q = queries(X)
    got = clf.predict(torch.tensor(Q))
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), make("paper").fit(X, y).predict(Q))
    assert clf._derived.search(clf.state_, clf.metric_) is not None
    twins = make("paper", search="exact").fit(
        torch.tensor(np.concatenate([X, X])), np.concatenate([y, y + 100])
    )
    assert torch.all(twins.predict_top_k(torch.tensor(Q), 4)[:, 1] >= 100)


def test_several_centres_of_a_class_share_its_rotation():
    X, y = lessons([12] * 6)
    clf = make("default").fit(X, y)
    factors = clf._derived.factors(clf.state_, clf.metric_)
    centres = np.asarray(queries(X, 18), np.float64)
    shared = [replace(factors[at // 3], centre=one) for at, one in enumerate(centres)]
    apart = [replace(one, deviations=one.deviations.copy()) for one in shared]
    Q = clf._queries(queries(X, 20, 5), clf.state_, clf.metric_)
    together, one_by_one = (panel.Panel(some, np.float32) for some in (shared, apart))
    assert together._classes._groups[0].kin and one_by_one._classes._groups[0].kin is None
    np.testing.assert_allclose(together.distances(Q), one_by_one.distances(Q), rtol=1e-4)


@pytest.mark.parametrize("seed", [1, 3, 9, 20, 22])
def test_classes_of_both_signs_side_by_side(seed):
    """The mean covariance, which shrinkage adds, is negative for some classes only."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 64)).astype(np.float32)
    clf = FeCAMClassifier(shrinkage=(1, 1)).fit(X, np.repeat(np.arange(20), 5))
    factors = clf._derived.factors(clf.state_, clf.metric_)
    assert {one.signs is None for one in factors} == {True, False}
    assert_same_answers(clf, X + rng.normal(size=X.shape).astype(np.float32))


def test_twins_are_a_tie_also_next_to_their_centre():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 6, 64)), np.repeat(np.arange(20), 6)
    X[1::2] = X[::2]  # every other class is the one before
    rows = X.reshape(-1, 64).astype(np.float32)
    clf = FeCAMClassifier(l2=None, tukey=None).fit(rows, y)
    Q = (X.mean(axis=1) + 1e-3 * rng.normal(size=(20, 64))).astype(np.float32)
    for search in ("exhaustive", "exact"):
        found = clf.set_params(search=search).predict(Q)
        np.testing.assert_array_equal(found, np.arange(20) // 2 * 2)


def test_one_large_class_does_not_make_all_others_large():
    X, y = lessons([3] * 30 + [24])
    clf = make("default").fit(X, y)
    found = clf._derived.search(clf.state_, clf.metric_).leaning
    assert sum(squares.columns.size for _, squares in found._along) < (30 * 4 + 32) * WIDTH
