"""Answers before there are factors must be those that factors give."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import cache as cache_module
from fecam.core import glance as glance_module
from fecam.core.cache import FactorCache
from fecam.core.glance import Glance, can_glance
from fecam.core.metric import class_covariance, distance_scale, prototype_of
from fecam.core.scatter import Scatter
from fecam.errors import SingularMatrixError
from helpers import literal
from helpers.features import relu_features

SETTINGS = {
    "default": {},
    "paper": None,
    "few-shot": None,
    "vit": None,
    "official-resnet": None,
    "official-vit": None,
    "avalanche": None,
    "weak prior": {"pooling": 0.01},
    "strong prior": {"pooling": 1e4, "shrinkage": (0.3, 0.2)},
    "variance": {"normalization": "variance", "l2": None},
    "unnormalised": {"normalization": None, "pooling": 0, "shrinkage": (1, 1)},
    "unnormalised prior": {"normalization": None, "l2": "compare", "shrinkage": (0.1, 0)},
    "low floor": {"pooling": 0, "shrinkage": (0.02, 0.0)},
    "nonzero": {"pooling": 0, "shrinkage": (1, 1), "off_diagonal": "nonzero"},
    "double": {"dtype": "float64"},
}
COUNTS = {
    "many samples": [60] * 12,
    "all kinds": [1, 2, 3, 5, 9, 24, 40, 90] * 2,
    "one sample": [1] * 12,
}


def make(name, **changes):
    options = SETTINGS[name]
    if options is None:
        return FeCAMClassifier.from_preset(name, **changes)
    return FeCAMClassifier(**{**options, **changes})


def lessons(counts, width, seed=0, lift=0.01):
    """Classes of so many samples each; a lift leaves no sample without length."""
    X, y = relu_features(len(counts), max(counts), width, seed)
    keep = [np.flatnonzero(y == label)[:count] for label, count in enumerate(counts)]
    keep = np.concatenate(keep)
    return X[keep] + np.float32(lift), y[keep]


def queries(X, n, seed=1):
    """Samples with some noise, and points half-way between two, which are close calls."""
    rng = np.random.default_rng(seed)
    a, b = X[rng.integers(len(X), size=n)], X[rng.integers(len(X), size=n)]
    a[::2] = (a[::2] + b[::2]) / 2
    return np.abs(a + rng.normal(size=a.shape) * 0.1 * np.abs(X).mean()).astype(X.dtype)


def at_a_glance(clf, Q, k=1):
    """The positions and distances that a glance finds, and the cache it took factors from."""
    known, metric, derived = clf.state_, clf.metric_, FactorCache()
    derived._use(metric)
    prior = derived.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
    labels = list(known.classes)
    order, distances, _ = Glance(known, metric, prior).find(
        clf._queries(Q, known, metric),
        k,
        factor_of=lambda at: derived._any_factor(labels[at], known, metric, prior),
        spare=lambda: derived._spare(known, metric),
    )
    return order, distances, derived


def assert_same_answers(clf, Q, ks=(1, 3), sizes=(1, 20)):
    """Those of measuring every class, but where single precision cannot tell two of them apart."""
    assert can_glance(clf.state_, clf.metric_)
    far = -clf.decision_function(Q).astype(np.float64)
    for k in ks:
        want = clf.set_params(search="exhaustive").predict_top_k(Q, k)
        want = np.searchsorted(clf.classes_, want)
        for size in sizes:
            some = Q[:4] if size == 1 else Q
            for at in range(0, len(some), size):
                got, distances, _ = at_a_glance(clf, some[at : at + size], k)
                for row, mine in enumerate(got, start=at):
                    measured = far[row, mine]
                    noise = 1e-6 * far[row].max()
                    np.testing.assert_allclose(distances[row - at], measured, 2e-4, noise)
                    assert len(set(mine)) == k
                    if np.any(mine != want[row]):
                        np.testing.assert_allclose(measured, far[row, want[row]], 1e-5, noise)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_measuring_every_class(name, counts):
    X, y = lessons(COUNTS[counts], 40)
    assert_same_answers(make(name).fit(X, y), queries(X, 12), sizes=(1, 12))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 80),
    name=st.sampled_from(list(SETTINGS)),
)
def test_random_models(seed, width, name):
    rng = np.random.default_rng(seed)
    counts = rng.choice([1, 2, 4, 10, 24, 30, 70], size=rng.integers(4, 12))
    X, y = lessons(counts, width, seed)
    X = X * np.exp(rng.normal(size=width)).astype(np.float32)
    assert_same_answers(make(name).fit(X, y), queries(X, 8, seed), ks=(1, 2), sizes=(1, 8))


@pytest.mark.parametrize("name", ["default", "paper", "unnormalised"])
def test_wider_models(name):
    X, y = lessons([200] * 12 + [20] * 8, 128)
    assert_same_answers(make(name).fit(X, y), queries(X, 12))


@pytest.mark.parametrize("name", ["default", "paper", "unnormalised", "variance"])
@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6])
def test_features_of_any_scale(name, scale):
    X, y = lessons(COUNTS["all kinds"], 24)
    clf = make(name).fit(X * np.float32(scale), y)
    assert_same_answers(clf, queries(X, 12) * np.float32(scale))


@pytest.mark.parametrize("name", ["default", "unnormalised"])
def test_far_from_zero_and_far_from_each_other(name):
    X, y = lessons(COUNTS["all kinds"], 24)
    X = X.astype(np.float64) + 1e5
    X[y == 3] += 1e3
    X[y == 7] = (X[y == 7] - 1e5) * 50 + 1e5
    clf = make(name, tukey=None, l2=None).fit(X, y)
    assert_same_answers(clf, np.concatenate([queries(X - 1e5, 12) + 1e5, X[::40]]))


def test_features_that_never_vary():
    X, y = lessons(COUNTS["all kinds"], 24)
    X[:, ::3] = 0.5
    X[y == 7] = X[y == 7][:1]
    for name in ("paper", "default", "unnormalised"):
        assert_same_answers(make(name).fit(X, y), queries(X, 12))


@pytest.mark.parametrize("gammas", [(1, 0.5), (1, 0.9), (1, 0.99)])
@pytest.mark.parametrize("pooling", ["auto", 0])
def test_covariances_that_are_negative_on_the_average(gammas, pooling):
    """Then shrinkage may leave a matrix little floor, or none: such a class is measured."""
    X, y = lessons(COUNTS["all kinds"], 24)
    X = X - X.mean(axis=1, keepdims=True)
    clf = make("default", tukey=None, l2=None, shrinkage=gammas, pooling=pooling).fit(X, y)
    rng = np.random.default_rng(0)
    Q = X[::30] + rng.normal(size=X[::30].shape).astype(np.float32) * 0.3
    assert_same_answers(clf, Q - Q.mean(axis=1, keepdims=True))


def test_shrinkage_that_leaves_no_floor():
    """The matrices are sound, thanks to their prior, but no bound is: all classes are measured."""
    X, y = lessons([60] * 6 + [5] * 4, 32)
    clf = make("default", pooling=1e4, shrinkage=(0.3, 0.5)).fit(X, y)
    assert_same_answers(clf, queries(X, 12))
    assert not np.any(all_bounds(clf, X[:3])[0])


def test_a_class_that_came_in_two_domains():
    X, y = lessons([30] * 10, 24)
    clf = make("official-vit", dtype="float64").partial_fit(X, y)
    clf.partial_fit(X[::-1] * 2 + X[::-1] ** 2, y[::-1])
    assert any(one.domain_mean_covariance is not None for one in clf.state_.classes.values())
    assert_same_answers(clf, queries(X, 12))


def exact_distances(clf, Q):
    """In double precision through the inverse of every matrix, by the book."""
    known, metric = clf.state_, clf.metric_
    derived = FactorCache()
    prior = derived.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
    rows = clf._queries(Q, known, metric).astype(np.float64)
    columns = []
    for one in known.classes.values():
        inverse = np.linalg.inv(class_covariance(one, metric, prior, derived._spare(known, metric)))
        apart = rows - prototype_of(one, metric, known.transform)
        columns.append(
            np.einsum("ni,ij,nj->n", apart, inverse, apart) * distance_scale(one, metric)
        )
    return np.stack(columns, axis=1)


def all_bounds(clf, Q):
    known, metric, derived = clf.state_, clf.metric_, FactorCache()
    prior = derived.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
    glance = Glance(known, metric, prior)
    rows, noise = glance.shifted(clf._queries(Q, known, metric))
    no_limit = np.full(len(rows), np.inf)
    both = [
        glance.bounds(at, rows, noise, no_limit, lambda: derived._spare(known, metric))
        for at in range(len(known.classes))
    ]
    return np.stack([low for low, _ in both], axis=1), np.stack([high for _, high in both], axis=1)


@pytest.mark.parametrize("steps", [1, 2, 5, 64])
@pytest.mark.parametrize("name", SETTINGS)
def test_distances_lie_between_their_bounds(name, steps, monkeypatch):
    monkeypatch.setattr(glance_module, "MOST_STEPS", steps)
    X, y = lessons([60] * 6 + [5] * 4, 32, lift=0)
    clf = make(name).fit(X, y)
    Q = np.concatenate([queries(X, 12), X[:3]])
    by_the_paper = literal.PRESETS.get(name)
    far = by_the_paper(X, y, Q) if by_the_paper else exact_distances(clf, Q)
    lower, upper = all_bounds(clf, Q)
    assert np.all(lower <= far) and np.all(far <= upper)
    if steps == 64:
        assert np.median(lower / far) > 0.998 and np.median(far / upper) > 0.998
    if steps == 1:
        assert 0.1 < np.median(lower / far) < 0.999, "one step would be all"


def test_a_limit_only_ends_the_search_for_a_bound():
    X, y = lessons([60] * 8, 32)
    clf = make("paper").fit(X, y)
    Q = queries(X, 10)
    far = exact_distances(clf, Q)
    glance = Glance(clf.state_, clf.metric_, None)
    rows, noise = glance.shifted(clf._queries(Q, clf.state_, clf.metric_))
    limit = np.median(far, axis=1)
    for at in range(8):
        lower, upper = glance.bounds(at, rows, noise, limit, lambda: 1.0)
        assert np.all(lower <= far[:, at]) and np.all(far[:, at] <= upper)
        clear = np.abs(far[:, at] / limit - 1) > 0.01
        np.testing.assert_array_equal((lower > limit)[clear], (far[:, at] > limit)[clear])
        np.testing.assert_array_equal((upper < limit)[clear], (far[:, at] < limit)[clear])


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
@pytest.mark.parametrize("count", [3, 60])
def test_identical_classes_go_to_the_first(name, count):
    X, y = lessons([count] * 8, 40)
    clf = make(name).fit(np.concatenate([X, X]), np.concatenate([y + 8, y]))
    Q = queries(X, 20)
    for size in (1, 20):
        for at in range(0, 20, size):
            order, _, _ = at_a_glance(clf, Q[at : at + size], 2)
            assert np.all(order[:, 0] < 8) and np.all(order[:, 1] == order[:, 0] + 8)


@pytest.mark.parametrize("name", ["paper", "default", "vit"])
def test_the_very_sample_of_two_labels(name):
    """At a distance of zero nothing but the order of the labels decides."""
    X, _ = lessons([1] * 10, 40)
    clf = make(name).fit(np.concatenate([X, X]), np.arange(20))
    assert [at_a_glance(clf, row[None])[0][0, 0] for row in X] == list(range(10))


def test_differences_that_are_rounding_alone():
    """A query at the very centre of two classes is a tie, whatever their spread."""
    half = np.round(4 * np.random.default_rng(0).normal(size=(30, 40))) / 4  # sums are exact
    narrow, centre = np.concatenate([half, -half]), np.full((1, 40), 100 + 2.0**-19)
    X = np.concatenate([centre + narrow, centre + 3 * narrow])
    clf = make("unnormalised", tukey=None, l2=None).fit(X, np.repeat([0, 1], 60))
    Q = centre.astype(np.float32)  # which is 100
    assert clf.set_params(search="exhaustive").predict(Q) == 0
    assert at_a_glance(clf, Q)[0] == 0


@pytest.mark.parametrize("name", ["paper", "default"])
def test_few_classes_are_left_to_be_measured(name):
    X, y = lessons([90] * 40, 64)
    clf = make(name).fit(X, y)
    built = [len(at_a_glance(clf, row[None])[2]._by_class) for row in queries(X, 20)[1::2]]
    assert np.mean(built) < 2


# ---------------------------------------------------------------- when


@pytest.fixture
def for_small_models(monkeypatch):
    """A glance is worth it, and as many of them as for 512 features."""
    monkeypatch.setattr(cache_module, "WORTH_A_GLANCE", 0)
    monkeypatch.setattr(cache_module, "LOOKS", 1.0)


def built(clf):
    return len(clf._derived._by_class)


@pytest.mark.parametrize("search", ["auto", "exact", "approximate"])
@pytest.mark.parametrize("name", ["paper", "default"])
def test_a_first_answer_needs_no_factors_and_many_do(name, search, for_small_models):
    X, y = lessons([60] * 20, 64)
    clf = make(name, search=search).fit(X, y)
    Q = queries(X, 20)
    want = FeCAMClassifier(**{**clf.get_params(), "search": "exhaustive"}).fit(X, y).predict(Q)
    answers = [clf.predict(row[None])[0] for row in Q[:10]]
    assert clf._derived._panel is None and clf._derived.frame is None
    assert built(clf) <= 10
    answers += [clf.predict(row[None])[0] for row in Q[10:]]
    assert clf._derived._panel is not None and clf._derived._glance is None
    assert {made.frame for made in clf._derived._by_class.values()} == {clf._derived.frame}
    if search != "approximate":
        np.testing.assert_array_equal(answers, want)
    clf.predict(Q[:1])
    assert clf._derived._glance is None, "there are factors now"


def test_many_queries_at_once_get_factors_at_once(for_small_models):
    X, y = lessons([60] * 20, 64)
    clf = make("default").fit(X, y)
    clf.predict(X[::10])
    assert clf._derived._panel is not None


def test_factors_of_few_samples_are_soon_worth_it(for_small_models):
    X, y = lessons([5] * 20, 64)
    clf = make("default").fit(X, y)
    for _ in range(3):
        clf.predict(X[:1])
        assert clf._derived._panel is None
    clf.predict(X[:1])
    assert clf._derived._panel is not None


def test_exhaustive_means_exhaustive(for_small_models):
    X, y = lessons([60] * 20, 64)
    clf = make("default", search="exhaustive").fit(X, y)
    clf.predict(X[:1])
    assert built(clf) == 20


def test_small_models_are_not_worth_a_glance():
    X, y = lessons([60] * 20, 64)
    clf = make("default").fit(X, y)
    clf.predict(X[:1])
    assert clf._derived._panel is not None


@pytest.mark.parametrize("name", ["paper", "default"])
def test_lessons_between_glances_are_seen(name, for_small_models):
    X, y = lessons([60] * 20, 64)
    clf = make(name).fit(X, y)
    far_away = np.abs(np.random.default_rng(5).normal(size=(30, 64))).astype(np.float32) * 3
    assert clf.predict(far_away[:1])[0] != 77
    clf.partial_fit(far_away[1:], [77] * 29)
    assert clf.predict(far_away[:1])[0] == 77
    clf.forget(77)
    assert clf.predict(far_away[:1])[0] != 77
    clf.set_params(shrinkage=(3, 0))
    fresh = FeCAMClassifier(**{**clf.get_params(), "search": "exhaustive"}).set_state(clf.state_)
    Q = queries(X, 3)
    np.testing.assert_array_equal(clf.predict(Q), fresh.predict(Q))
    clf.partial_fit(far_away, np.repeat(clf.predict(Q[:1]), 30))  # whose factor is there
    fresh.set_state(clf.state_)
    _, distances, _ = clf._nearest(Q[:1], clf.state_, 1)
    np.testing.assert_allclose(distances[0, 0], -fresh.decision_function(Q[:1]).max(), rtol=1e-4)
    assert clf._derived._panel is None, "none of this was worth factors"


def test_one_new_factor_is_not_worth_a_glance(monkeypatch):
    monkeypatch.setattr(cache_module, "WORTH_A_GLANCE", 2 * 64**3)
    X, y = lessons([60] * 20, 64)
    clf = make("paper", search="exhaustive").fit(X, y)
    clf.predict(X[:1])
    clf.set_params(search="auto").partial_fit(X[:5], y[:5])
    clf.predict(X[:1])
    assert clf._derived._glance is None and clf._derived._panel_of is clf.state_


def test_what_cannot_be_glanced_at_is_measured(for_small_models):
    X, y = lessons([60] * 20, 64)
    for options in (
        {"shrinkage": (0, 0)},
        {"covariance": "diagonal"},
        {"covariance": "pooled"},
        {"covariance": "identity"},
        {"off_diagonal": "nonzero", "shrinkage": (1, 1)},
    ):
        clf = FeCAMClassifier(**options).fit(X, y)
        want = FeCAMClassifier(search="exhaustive", **options).fit(X, y).predict(X[:1])
        assert clf.predict(X[:1]) == want and clf._derived._glance is None


def test_a_matrix_that_is_none_is_an_error_at_a_glance_too(for_small_models):
    X, y = lessons([60] * 20, 64)
    X = X - X.mean(axis=1, keepdims=True)
    clf = FeCAMClassifier(tukey=None, l2=None, pooling=0, shrinkage=(0.02, 300)).fit(X, y)
    with pytest.raises(SingularMatrixError, match=r"class 0.*set_params"):
        clf.predict(X[:1])


def test_tensors_are_looked_at_where_they_are(for_small_models):
    torch = pytest.importorskip("torch")
    X, y = lessons([60] * 20, 64)
    want = make("default").fit(X, y).predict(X[:2])
    clf = make("default").fit(torch.asarray(X), y)
    got = clf.predict(torch.asarray(X[:2]))
    assert isinstance(got, torch.Tensor) and clf._derived._panel is None
    np.testing.assert_array_equal(got.numpy(), want)


# ---------------------------------------------------------------- what is read


class Watched(Scatter):
    """A scatter that counts how often its numbers are asked for."""

    __slots__ = ("asked", "kept")

    def __init__(self, scatter):
        object.__setattr__(self, "kept", scatter)
        object.__setattr__(self, "storage", scatter.storage)
        object.__setattr__(self, "n_features", scatter.n_features)
        object.__setattr__(self, "asked", [])

    @property
    def data(self):
        self.asked.append(1)
        return self.kept.data


def watched(clf):
    """The same model with watched scatters, and these."""
    known = clf.state_
    classes = {k: replace(one, scatter=Watched(one.scatter)) for k, one in known.classes.items()}
    clf.set_state(replace(known, classes=classes))
    return [one.scatter for one in classes.values()]


@pytest.mark.parametrize("name", ["paper", "default", "unnormalised"])
@pytest.mark.parametrize("counts", [[60] * 20, [60] * 10 + [5] * 10])
def test_numbers_are_asked_for_once_a_class(name, counts, for_small_models):
    X, y = lessons(counts, 64)
    clf = make(name).fit(X, y)
    metric, prior = (
        clf.metric_,
        clf._derived.renewed_prior(clf.state_, clf.metric_, may_lag=False),
    )
    scatters = watched(clf)
    clf._derived.start_from(metric, prior if metric.has_prior else None)
    clf.predict(X[:1])
    measured = [
        position for position, label in enumerate(clf.classes_) if label in clf._derived._by_class
    ]
    assert 1 <= len(measured) <= 3
    for position, one in enumerate(scatters):
        assert len(one.asked) == 1 or position in measured


def test_a_variance_to_spare_is_looked_for_where_a_class_has_none(monkeypatch, for_small_models):
    X, y = lessons([60] * 20, 64)
    seen = []
    monkeypatch.setattr(cache_module, "mean_variance", lambda some: seen.append(1) or 1.0)
    clf = make("unnormalised").fit(X, y)
    clf.predict(X[:1])
    clf.decision_function(X[:1])
    assert not seen
    clf.partial_fit(X[:1], [50])
    clf.predict(X[:1])
    assert len(seen) == 1


@pytest.mark.parametrize("pooling", [0.5, 0])
def test_one_sample_under_a_weak_prior(pooling):
    """Rows and matrices are the same thing in two forms."""
    X, y = lessons([1] * 3 + [40] * 5, 40)
    clf = make("default", pooling=pooling, normalization=None, dtype="float64").fit(X, y)
    far = exact_distances(clf, X[:5])
    np.testing.assert_allclose(-clf.decision_function(X[:5]), far, rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- expected distances


def test_a_first_novelty_takes_few_factors(for_small_models):
    X, y = lessons([30] * 150, 16)
    clf = make("default").fit(X, y)
    first = clf.novelty(X[:1])
    assert built(clf) <= 64 + 3 and clf._derived._panel is None
    clf.decision_function(X[:1])
    np.testing.assert_allclose(clf.novelty(X[:1]), first, rtol=1e-4)


def own_distances(clf):
    known, metric, derived = clf.state_, clf.metric_, clf._derived
    prior = derived.renewed_prior(known, metric, may_lag=False)
    freedom = sum(one.count - 1 for one in known.classes.values())
    return np.array(
        [derived._own_distance(label, known, metric, prior, freedom) for label in known.classes]
    )


def test_more_than_64_classes_borrow_from_64():
    X, y = lessons([30] * 100, 16)
    clf = make("default").fit(X, y)
    known, metric, derived = clf.state_, clf.metric_, clf._derived
    own = own_distances(clf)
    usual = own[::2].mean()
    want = (1 + 1 / 30) * (30 * own + 5 * usual) / 35 * distance_scale(known.classes[0], metric)
    np.testing.assert_allclose(derived.expected(known, metric, range(100)), want, rtol=1e-12)
    np.testing.assert_allclose(derived.expected(known, metric), want[::2], rtol=1e-12)
    assert abs(usual / own.mean() - 1) < 0.1, "which hardly matters"


def test_up_to_64_classes_borrow_from_all_that_can_tell():
    X, y = lessons([30, 2] * 32, 16)
    clf = make("default").fit(X, y)
    known, metric, derived = clf.state_, clf.metric_, clf._derived
    own = own_distances(clf)
    assert all(value is None for value in own[1::2])
    usual = np.mean(own[::2])
    expected = derived.expected(known, metric)
    assert len(expected) == 64
    scale = distance_scale(known.classes[1], metric)
    np.testing.assert_allclose(expected[1::2], 1.5 * usual * scale, rtol=1e-12)
    np.testing.assert_allclose(derived.expected(known, metric, [5, 4]), expected[5:3:-1])
    assert math.isfinite(clf.novelty(X[:1])[0])


@pytest.mark.parametrize("counts", [[80] * 20, [12] * 20, [1, 2, 30] * 8])
@pytest.mark.parametrize("name", ["default", "paper", "common"])
def test_what_is_prepared_need_not_be_derived_again(name, counts, monkeypatch):
    X, y = lessons(counts, 96)
    options = {"covariance": "common"} if name == "common" else {}
    clf = (FeCAMClassifier(**options) if name != "paper" else make("paper")).fit(X, y)
    want = FeCAMClassifier(**clf.get_params()).fit(X, y).predict_detailed(X[:9], 3)
    clf.warm_up()

    def refuse(*_, **__):
        raise AssertionError("it is made a second time")

    for made in ("_make", "_new_expected", "_shared_factors"):
        monkeypatch.setattr(FactorCache, made, refuse)
    for some, others in zip(clf.predict_detailed(X[:9], 3), want, strict=True):
        if some.dtype.kind == "f":
            np.testing.assert_allclose(some, others, rtol=1e-3)
        else:
            np.testing.assert_array_equal(some, others)
