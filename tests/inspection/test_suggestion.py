"""What to label next, and which labels look wrong."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.errors import InputError, UnknownLabelError
from fecam.suggestion import find_mislabeled, suggest
from helpers.features import relu_features, signed_features


def separated(n_classes=8, per_class=40, width=16, seed=5):
    X, y = signed_features(n_classes, per_class, width, seed)
    return X + 2 * np.random.default_rng(1).normal(size=(n_classes, width))[y].astype(np.float32), y


def test_suggestions_cover_classes_that_are_not_learned():
    X, y = separated()
    learned = (y < 5) & (np.arange(len(y)) % 40 < 20)
    clf = FeCAMClassifier().fit(X[learned], y[learned])
    pool, truth = X[~learned], y[~learned]
    chosen = suggest(clf, pool, 8)
    assert {5, 6, 7} <= {*truth[[one.item for one in chosen]].tolist()}
    assert len({one.item for one in chosen}) == 8
    by_item = {one.item: one for one in chosen}
    detailed = clf.predict_detailed(pool, 2)
    for item, one in by_item.items():
        assert one.label == detailed.labels[item, 0]
        margin = detailed.probabilities[item, 0] - detailed.probabilities[item, 1]
        assert one.margin == pytest.approx(float(margin), abs=1e-6)
        assert one.novelty == pytest.approx(float(detailed.novelty[item]), abs=1e-4)
    assert sum(one.n_similar for one in chosen) == len(pool)
    assert "fits no class" in chosen[0].reason


def test_few_items_equal_items_and_one_class():
    X, y = separated(3)
    clf = FeCAMClassifier().fit(X, y)
    assert sorted(one.item for one in suggest(clf, X[:3], 20)) == [0, 1, 2]
    assert len({one.item for one in suggest(clf, np.repeat(X[:1], 9, axis=0), 4)}) == 4
    single = FeCAMClassifier().fit(X[:40], y[:40])
    assert len(suggest(single, X, 5)) == 5
    with pytest.raises(InputError, match="n=0"):
        suggest(clf, X, 0)


def test_a_large_pool_is_thinned(monkeypatch):
    from fecam import suggestion

    monkeypatch.setattr(suggestion, "MAX_ITEMS", 50)
    X, y = separated()
    clf = FeCAMClassifier().fit(X, y)
    items = [one.item for one in suggest(clf, X, 10)]
    assert len({*items}) == 10 and max(items) >= 50


@pytest.mark.parametrize(
    "settings",
    [{}, {"covariance": "pooled"}, {"covariance": "identity"}, {"l2": "compare"}],
    ids=str,
)
def test_wrong_labels_are_found(settings):
    X, y = relu_features(6, 50, 16, 2)
    noisy, wrong = y.copy(), np.arange(0, 300, 23)
    noisy[wrong] = (y[wrong] + 1) % 6
    clf = FeCAMClassifier(**settings).fit(X, noisy)
    suspects = find_mislabeled(clf, X, noisy)
    found = {one.item for one in suspects}
    errors = {*np.flatnonzero(clf.predict(X) != y).tolist()}
    assert len({*wrong.tolist()} - errors - found) <= 2
    assert len(found - {*wrong.tolist()}) <= 8
    for one in suspects:
        assert one.label == noisy[one.item] != one.suggested
    order = [one.probability for one in suspects[:3]]
    assert max(order) < 0.1


def test_learned_items_are_measured_without_themselves():
    """A sample that alone makes its class wide is only suspicious if it is left out."""
    X, y = separated(4, 6)
    noisy = y.copy()
    noisy[0] = 3
    clf = FeCAMClassifier().fit(X, noisy)
    with_itself = find_mislabeled(clf, X, noisy, learned=np.zeros(len(y), bool))
    left_out = find_mislabeled(clf, X, noisy)
    probability = {one.item: one.probability for one in with_itself}
    assert left_out[0].item == 0 and left_out[0].suggested == 0
    assert left_out[0].probability < probability.get(0, 1.0)


def test_labels_that_were_not_learned_and_wrong_lengths_are_errors():
    X, y = separated(3)
    clf = FeCAMClassifier().fit(X, y)
    with pytest.raises(UnknownLabelError, match="7 was never learned"):
        find_mislabeled(clf, X[:1], [7])
    with pytest.raises(InputError, match="2 samples but 1 label"):
        find_mislabeled(clf, X[:2], [0])


def test_the_only_sample_of_a_class_is_not_judged():
    X, y = separated(3)
    rows = np.r_[0:80, 80:81]
    clf = FeCAMClassifier().fit(X[rows], y[rows])
    assert 80 not in {one.item for one in find_mislabeled(clf, X[rows], y[rows])}
