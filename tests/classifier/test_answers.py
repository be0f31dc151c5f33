"""What the classifier answers: probabilities, novelty, rejection, and the default's robustness."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from fecam import FeCAMClassifier
from fecam.errors import InputError
from helpers.features import relu_features, signed_features

HEADS = {
    "default": FeCAMClassifier,
    "paper": lambda: FeCAMClassifier.from_preset("paper"),
    "ncm": lambda: FeCAMClassifier.from_preset("ncm"),
    "pooled": lambda: FeCAMClassifier(covariance="pooled"),
    "common": lambda: FeCAMClassifier(covariance="common"),
    "diagonal": lambda: FeCAMClassifier(covariance="diagonal"),
}


@pytest.mark.parametrize("head", HEADS)
def test_probabilities_sum_to_one_and_agree_with_predict(head, digits):
    X, y, Q, _ = digits
    clf = HEADS[head]().fit(X, y)
    proba = clf.predict_proba(Q)
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(clf.classes_[proba.argmax(axis=1)], clf.predict(Q))
    np.testing.assert_array_equal(
        np.argsort(-clf.decision_function(Q), axis=1, kind="stable")[:, :3],
        clf.predict_top_k(Q, 3),
    )


@pytest.mark.parametrize("signed", [False, True])
def test_probabilities_do_not_collapse_in_512_dimensions(signed):
    """Classes that overlap: a plain softmax of squared distances would be sure of each."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(512, 512)) * np.linspace(1, 0.05, 512)[:, None] / 16
    centers = 0.09 * rng.normal(size=(5, 512)) + (0 if signed else 2)
    y = np.repeat(np.arange(5), 160)
    X = centers[y] + rng.normal(size=(800, 512)) @ shared
    X = X if signed else np.maximum(X, 0)
    train = np.arange(800) % 2 == 0
    clf = FeCAMClassifier().fit(X[train], y[train])
    proba = clf.predict_proba(X[~train])
    right = clf.score(X[~train], y[~train])
    assert 0.6 < right < 0.99, "the classes overlap"
    assert 0.4 < proba.max(axis=1).mean() < 0.97
    assert np.mean(proba.max(axis=1) > 0.999) < 0.5


def test_confidence_on_digits_is_calibrated(digits):
    X, y, Q, y_test = digits
    clf = FeCAMClassifier().fit(X, y)
    confidence = clf.predict_proba(Q).max(axis=1)
    assert abs(confidence.mean() - clf.score(Q, y_test)) < 0.05


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_samples_of_known_classes_are_rejected_at_the_stated_rate(head, rate, digits):
    X, y, Q, _ = digits
    clf = HEADS[head]().fit(X, y)
    rejected = np.mean(clf.predict(Q, reject=rate, unknown=-1) == -1)
    assert rate / 2.5 < rejected < rate * 1.6


def test_the_rate_holds_for_classes_learned_one_by_one_in_small_batches(digits):
    X, y, Q, _ = digits
    clf = FeCAMClassifier()
    for label in range(10):
        for rows in np.array_split(np.flatnonzero(y == label), 9):
            clf.partial_fit(X[rows], y[rows])
    rejected = np.mean(clf.predict(Q, reject=0.1, unknown=-1) == -1)
    assert 0.04 < rejected < 0.16


@pytest.mark.parametrize("head", ["default", "paper"])
def test_novelty_separates_digits_that_were_never_learned(head, digits):
    X, y, Q, y_test = digits
    is_learned, is_new = ~np.isin(y, [3, 7]), np.isin(y_test, [3, 7])
    scores = HEADS[head]().fit(X[is_learned], y[is_learned]).novelty(Q)
    assert roc_auc_score(is_new, scores) > 0.93


def test_novelty_grows_with_distance_and_means_the_same_for_every_class_and_unit(digits):
    X, y, Q, y_test = digits
    clf = FeCAMClassifier(tukey=None, l2=None).fit(X, y)
    far = [clf.novelty(Q + shift).mean() for shift in (0, 5, 20, 80)]
    assert far == sorted(far)
    per_class = [np.median(clf.novelty(Q[y_test == k])) for k in range(10)]
    assert np.ptp(per_class) < 2
    other_unit = FeCAMClassifier(tukey=None, l2=None).fit(X * 1000, y)
    np.testing.assert_allclose(other_unit.novelty(Q * 1000), clf.novelty(Q), atol=0.02)


def test_labels_of_rejected_samples():
    X, y = load_digits(return_X_y=True)
    clf = FeCAMClassifier().fit(X[y < 5], y[y < 5])
    plain = clf.predict(X, reject=0.05)
    assert plain.dtype == object and None in plain
    numbers = clf.predict(X, reject=0.05, unknown=-1)
    assert numbers.dtype.kind == "i"
    np.testing.assert_array_equal(numbers == -1, [label is None for label in plain])
    accepted = numbers != -1
    np.testing.assert_array_equal(numbers[accepted], clf.predict(X)[accepted])
    words = np.array(["zero", "one", "two", "three", "four"])[y[y < 5]]
    named = FeCAMClassifier().fit(X[y < 5], words)
    assert "none of these" in named.predict(X, reject=0.05, unknown="none of these")


@pytest.mark.parametrize("rate", [0, 1, -0.1, "5%", np.nan])
def test_rates_out_of_range(rate, digits):
    X, y, Q, _ = digits
    with pytest.raises(InputError, match="reject="):
        FeCAMClassifier().fit(X, y).predict(Q, reject=rate)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("shots", [1, 2, 3, 5])
def test_one_sample_per_class_is_enough(head, shots, digits):
    X, y, Q, y_test = digits
    rows = np.concatenate([np.flatnonzero(y == k)[:shots] for k in range(10)])
    clf = HEADS[head]().fit(X[rows], y[rows])
    for answer in (clf.decision_function(Q), clf.predict_proba(Q)):
        assert np.isfinite(answer).all()
    novelty = clf.novelty(Q)
    assert np.isfinite(novelty).all() or (shots < 3 and np.isnan(novelty).all())
    ncm = HEADS["ncm"]().fit(X[rows], y[rows]).score(Q, y_test)
    if head == "default":
        assert clf.score(Q, y_test) > ncm - 0.02
    assert clf.score(Q, y_test) > 0.4


@pytest.mark.parametrize("head", HEADS)
def test_a_single_class_and_a_single_sample(head):
    clf = HEADS[head]().fit(np.ones((1, 4)), ["only"])
    assert clf.predict(np.eye(4)).tolist() == ["only"] * 4
    np.testing.assert_array_equal(clf.predict_proba(np.eye(4)), np.ones((4, 1)))
    assert np.isnan(clf.novelty(np.eye(4))).all(), "nothing tells how far samples lie"
    assert clf.predict(100 * np.eye(4), reject=0.05).tolist() == ["only"] * 4


def test_without_normalization_a_class_of_one_sample_does_not_attract_all_queries(digits):
    X, y, Q, y_test = digits
    rows = np.concatenate([np.flatnonzero(y == 0)[:1], np.flatnonzero(y > 0)])
    clf = FeCAMClassifier(normalization=None, pooling=0).fit(X[rows], y[rows])
    assert np.mean(clf.predict(Q) == 0) < 0.3
    assert clf.score(Q, y_test) > 0.7


def test_the_default_is_better_than_the_paper_preset_on_imbalanced_classes(digits):
    X, y, Q, y_test = digits
    rng = np.random.default_rng(0)
    sizes = [90, 65, 47, 34, 24, 17, 12, 9, 6, 4]
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(y == k))[:n] for k, n in enumerate(sizes)]
    )
    scores = {name: HEADS[name]().fit(X[rows], y[rows]).score(Q, y_test) for name in HEADS}
    assert scores["default"] > max(scores["ncm"], scores["paper"]) + 0.02


def test_the_uncertainty_of_a_prototype_is_taken_into_account():
    X, y = relu_features(2, 10, 6, 0)
    rows = np.r_[np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:4]]
    plain = FeCAMClassifier(mean_uncertainty=0).fit(X[rows], y[rows])
    fair = FeCAMClassifier(mean_uncertainty=0.5).fit(X[rows], y[rows])
    ratio = plain.decision_function(X) / fair.decision_function(X)
    np.testing.assert_allclose(ratio, np.tile([1 + 0.5 / 10, 1 + 0.5 / 4], (20, 1)), rtol=1e-4)


@pytest.mark.parametrize(("shift", "power"), [(0, 0.5), (-0.1, None)])
def test_auto_tukey_is_decided_at_the_first_fit(shift, power):
    X, y = relu_features(2, 10, 6, 0)
    clf = FeCAMClassifier().partial_fit(X + shift, y)
    assert clf.tukey_ == power
    if power is None:
        clf.partial_fit(X, y)
        assert clf.tukey_ is None


def test_tukey_takes_any_power():
    X, y = relu_features(3, 20, 6, 0)
    for power in (0, -0.5, 0.25, 1, 2):
        clf = FeCAMClassifier(tukey=power, l2=None).fit(X + 0.1, y)
        assert clf.score(X + 0.1, y) > 0.9
    with pytest.raises(InputError, match=r"0 at row \d+.*above zero"):
        FeCAMClassifier(tukey=0).fit(X, y)


def test_labels_of_all_kinds_are_returned():
    X, _ = relu_features(1, 6, 4, 0)
    for labels in ([2, 7, 2, 7, 7, 2], ["b", "ä", "b", "ä", "ä", "b"], [True, False] * 3):
        clf = FeCAMClassifier().fit(X, labels)
        assert clf.classes_.tolist() == sorted(set(labels))
        assert set(clf.predict(X).tolist()) <= set(labels)
        clf.forget(clf.classes_[0])
        assert clf.classes_.tolist() == sorted(set(labels))[1:]
    whole = FeCAMClassifier().fit(X, np.array([0.0, 1, 0, 1, 1, 0]))
    assert whole.classes_.dtype.kind == "i"


def test_the_value_for_rejected_samples_is_never_converted_to_a_label():
    X, y = relu_features(2, 20, 6, 0)
    clf = FeCAMClassifier().fit(X, y)
    far = X + 50
    for unknown in (1.5, np.nan, "none", None):
        answers = clf.predict(far, reject=0.05, unknown=unknown)
        assert answers.dtype == object
        assert all(a is unknown or a == unknown for a in answers)
    assert (
        FeCAMClassifier().fit(X, y == 1).predict(far, reject=0.05, unknown=-1).tolist() == [-1] * 40
    )


def test_novelty_of_few_samples(digits):
    """From one sample per class it cannot be told; from two, few known samples are rejected."""
    X, y, Q, _ = digits
    for shots, most in ((1, 0.0), (2, 0.15), (5, 0.08)):
        rejected = []
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(len(y))
            rows = np.concatenate([order[y[order] == k][:shots] for k in range(10)])
            clf = FeCAMClassifier().fit(X[rows], y[rows])
            assert np.isnan(clf.novelty(Q)).all() == (shots == 1)
            rejected.append(np.mean(clf.predict(Q, reject=0.05, unknown=-1) == -1))
        assert np.mean(rejected) <= most


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_identical_rows_have_no_variance(head, dtype):
    """Unit length leaves rounding errors; they must not be taken for a covariance."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.random((2, 5)), 3, axis=0).astype(dtype)
    y = np.repeat([0, 1], 3)
    for changes in ({}, {"normalization": None}, {"normalization": "variance"}):
        clf = HEADS[head]().set_params(dtype=dtype, **changes).fit(X, y)
        assert clf.predict(X).tolist() == y.tolist()
        assert np.abs(clf.decision_function(X)).max() < 100
        assert np.isfinite(clf.predict_proba(X)).all()
        assert np.isfinite(clf.novelty(X)).all()


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1.0, 1e7])
def test_distances_are_finite_at_any_scale(scale):
    X, y = signed_features(3, 20, 6, 0)
    X = X.astype(np.float64) * scale
    for covariance in ("class", "pooled", "diagonal", "identity"):
        clf = FeCAMClassifier(tukey=None, l2=None, covariance=covariance, dtype="float64")
        for answer in (clf.fit(X, y).predict_proba(X), clf.novelty(X)):
            assert np.isfinite(answer).all()


@pytest.mark.parametrize("covariance", ["class", "pooled", "common", "diagonal", "identity"])
def test_an_offset_has_no_effect(covariance):
    X, y = signed_features(3, 30, 6, 0)
    X = X.astype(np.float64)
    settings = {"tukey": None, "l2": None, "covariance": covariance}
    near = FeCAMClassifier(**settings).fit(X, y).decision_function(X)
    far = FeCAMClassifier(**settings).fit(X + 1e6, y).decision_function(X + 1e6)
    np.testing.assert_allclose(far, near, rtol=1e-3, atol=1e-4)


def test_unusual_values_of_unknown():
    X, y = relu_features(2, 20, 6, 0)
    clf = FeCAMClassifier().fit(X, y)
    clf.predict(X, reject=np.float32(0.05))
    assert None not in clf.predict(X, reject=1e-300)
    assert clf.predict(X + 50, reject=0.05, unknown=["?"])[0] == ["?"]
    assert clf.predict(X + 50, reject=0.05, unknown=False)[0] is False
