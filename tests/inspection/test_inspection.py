"""Estimates without samples, against slow literal versions and classes made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from fecam import FeCAMClassifier, inspection
from fecam.core.calibration_rows import N_COLUMNS
from fecam.inspection import close_pairs, overlaps, weak_classes
from helpers.features import relu_features, signed_features

PLAIN = {"tukey": None, "l2": None}
"""With these settings a prototype can be passed as a sample."""


def literal_pairs(clf):
    """Return every pair with its relative distance, from the decision function of prototypes."""
    labels = clf.classes_.tolist()
    classes = list(clf.state_.classes.values())
    expected = clf.predictor_.expected_distances(range(len(labels)))
    found = {}
    for a in range(len(labels)):
        for b in range(a + 1, len(labels)):
            from_a = -clf.decision_function(classes[a].mean[None])[0, b]
            from_b = -clf.decision_function(classes[b].mean[None])[0, a]
            found[labels[a], labels[b]] = (from_a + from_b) / (expected[a] + expected[b])
    return found


def literal_errors(clf, factor):
    """Return expected and observed errors of left-out rows, one row and rival at a time."""
    distances, labels = literal_pairs(clf), clf.classes_.tolist()
    expected, observed, n_rows = 0.0, 0, 0
    for label in labels:
        for row in clf.state_.classes[label].calibration:
            if row[1] < len(labels) / 2:
                continue
            observed += bool(row[-1] > math.log(2))
            n_rows += 1
            share = (row[1] - 1) / (len(labels) - 1)
            for rival in set(labels) - {label}:
                apart = distances[min(label, rival), max(label, rival)]
                expected += share * NormalDist().cdf(-factor * math.sqrt(apart))
    return expected, (observed + 0.5) * n_rows / (n_rows + 1)


@pytest.mark.parametrize("covariance", ["class", "pooled", "diagonal", "identity"])
@pytest.mark.parametrize("steps", [1, 3])
def test_pairs_equal_the_literal_version(covariance, steps):
    X, y = signed_features(7, 20, 12, 0)
    clf = FeCAMClassifier(covariance=covariance, **PLAIN)
    for some in np.array_split(np.arange(7), steps):
        clf.partial_fit(X[np.isin(y, some)], y[np.isin(y, some)])
    pairs, literal = close_pairs(clf), literal_pairs(clf)
    assert {(pair.first, pair.second) for pair in pairs} == literal.keys()
    for pair in pairs:
        np.testing.assert_allclose(pair.apart, literal[pair.first, pair.second], rtol=2e-3)
    order = [pair.apart for pair in pairs]
    assert order == sorted(order)
    factor = -NormalDist().inv_cdf(pairs[0].overlap) / math.sqrt(pairs[0].apart)
    for pair in pairs:
        due = NormalDist().cdf(-factor * math.sqrt(pair.apart))
        assert pair.overlap == pytest.approx(due, rel=1e-6, abs=1e-12)
    expected, observed = literal_errors(clf, factor)
    assert expected == pytest.approx(observed, rel=1e-2)


def test_candidate_pairs_are_a_subset_of_all_pairs(monkeypatch):
    """The candidates contain the closest pairs, and each pair once."""
    X, y = signed_features(150, 6, 16, 1)
    clf = FeCAMClassifier().fit(X, y)
    everything = {(pair.first, pair.second): pair for pair in close_pairs(clf)}
    monkeypatch.setattr(inspection, "ALL_PAIRS", 20)
    monkeypatch.setattr(inspection, "CANDIDATES", 12)
    some = close_pairs(clf)
    assert len(some) < 150 * 12 < len(everything) == 150 * 149 // 2
    assert len({(pair.first, pair.second) for pair in some}) == len(some)
    for pair in some:
        due = everything[pair.first, pair.second]
        assert pair.apart == pytest.approx(due.apart)
        assert pair.overlap >= due.overlap, "fewer pairs explain the same errors"
    assert [(p.first, p.second) for p in some[:5]] == list(everything)[:5]


def test_two_gaussians_by_hand():
    """NCM, prototypes 3 apart, samples at distance 1 from theirs: D = 9 twice, E as expected."""
    around = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    clf = FeCAMClassifier.from_preset("ncm", dtype="float64")
    clf.fit(np.concatenate([around, around + np.array([3, 0])]), [0] * 4 + [1] * 4)
    (pair,) = close_pairs(clf)
    expected = clf.predictor_.expected_distances([0, 1])
    assert pair.apart == pytest.approx(18 / sum(expected))
    # A left-out sample lies 4/3 of its distance from the mean of the others; then 1 + 1/n.
    assert expected[0] == pytest.approx(4 / 3 * 5 / 4)


@given(st.floats(0, 50), st.floats(0, 10), st.floats(1, 3))
def test_overlap_decreases_with_the_distance(apart, factor, further):
    near, far = overlaps(np.array([apart, apart * further]), factor)
    assert 0 <= far <= near <= 0.5
    assert overlaps(np.zeros(1), factor)[0] == 0.5


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    others=st.lists(st.floats(1.2, 3), min_size=2, max_size=4),
    features=st.sampled_from([6, 20]),
    covariance=st.sampled_from(["class", "pooled", "identity"]),
)
def test_shares_of_gaussian_classes_are_within_a_factor_of_two(seed, others, features, covariance):
    """Pairs of Gaussians of unit variance, far from other pairs: the error has a formula.

    One pair is confused often, so that the left-out errors are not a handful.
    """
    rng, separations = np.random.default_rng(seed), [1.5, *others]
    means = np.zeros((2 * len(separations), features))
    for i, separation in enumerate(separations):
        means[2 * i : 2 * i + 2, i] = 20
        means[2 * i + 1, -1] = separation
    y = np.repeat(np.arange(len(means)), 200)
    clf = FeCAMClassifier(covariance=covariance, **PLAIN)
    clf.fit(means[y] + rng.normal(size=(len(y), features)), y)
    estimated = {(pair.first, pair.second): pair.overlap for pair in close_pairs(clf)}
    for i, separation in enumerate(separations):
        due = NormalDist().cdf(-separation / 2)
        assert due / 2 < estimated.pop((2 * i, 2 * i + 1)) < 2 * due
    assert max(estimated.values()) < 0.001, "pairs far from each other"


def test_too_few_measured_rows_give_ranks_only():
    X, y = relu_features(3, 6, 8, 0)
    clf = FeCAMClassifier().fit(X, y)
    assert sum(len(stats.calibration) for stats in clf.state_.classes.values()) == 18
    pairs = close_pairs(clf)
    assert [pair.overlap for pair in pairs] == [None] * 3
    assert [pair.apart for pair in pairs] == sorted(pair.apart for pair in pairs)
    assert all(one.risk is None for one in weak_classes(clf, pairs))


def test_rows_of_a_much_smaller_model_are_not_used():
    """The first rows have one rival; those of the other 18 classes are too few."""
    X, y = relu_features(20, 8, 8, 0)
    clf = FeCAMClassifier()
    clf.partial_fit(X[y < 2], y[y < 2])
    clf.partial_fit(X[y >= 2], y[y >= 2])
    measured = with_measured_rows(clf, {i: (None if i > 3 else 8, 0) for i in range(2, 20)})
    assert close_pairs(measured)[0].overlap is None
    assert close_pairs(clf)[0].overlap is not None


def with_measured_rows(clf, rows_and_errors):
    """Return a classifier whose classes have this many measured rows and left-out errors."""
    classes = dict(clf.state_.classes)
    for label, (n_rows, n_errors) in rows_and_errors.items():
        rows = None
        if n_rows is not None:
            rows = np.zeros((n_rows, N_COLUMNS), np.float32)
            rows[:, :2] = 100, len(classes)
            rows[:n_errors, -1] = 3.0
        classes[label] = replace(classes[label], calibration=rows)
    return clf.copy().set_state(replace(clf.state_, classes=classes))


def test_frequent_left_out_errors_make_a_class_weak():
    X, y = relu_features(6, 30, 8, 0)
    clf = with_measured_rows(
        FeCAMClassifier().fit(X, y), {0: (16, 7), 1: (16, 3), **dict.fromkeys(range(2, 6), (16, 1))}
    )
    (weak,) = weak_classes(clf, close_pairs(clf))
    reason = (
        "7 of 16 samples left out were predicted as another class, 7 of 80 of the other classes"
    )
    assert (weak.label, weak.reasons) == (0, (reason,))
    assert (weak.left_out, weak.left_out_errors) == (16, 7)
    expected = sum(pair.overlap for pair in close_pairs(clf) if 0 in (pair.first, pair.second))
    assert weak.risk == pytest.approx((7 + 16 * expected) / 32)


@pytest.mark.parametrize("wrong", range(1, 9))
def test_a_class_is_weak_at_a_significance_of_one_percent(wrong):
    X, y = relu_features(6, 30, 8, 0)
    clf = with_measured_rows(
        FeCAMClassifier().fit(X, y), {0: (16, wrong), **dict.fromkeys(range(1, 6), (16, 2))}
    )
    p_value = binomtest(wrong, 16, 10.5 / 81, alternative="greater").pvalue
    weak = [one.label for one in weak_classes(clf, close_pairs(clf))]
    assert weak == ([0] if p_value <= 0.01 else [])


def test_left_out_errors_are_compared_with_those_of_other_classes_only():
    X, y = relu_features(6, 30, 8, 0)
    measured = {0: (16, 16), **dict.fromkeys(range(1, 6), (None, 0))}
    clf = with_measured_rows(FeCAMClassifier().fit(X, y), measured)
    assert weak_classes(clf, close_pairs(clf)) == []


@pytest.mark.parametrize(
    ("known", "weak"), [(6, []), (2, [0])], ids=["with all rivals", "with one rival"]
)
def test_errors_with_fewer_rivals_weigh_more(known, weak):
    X, y = relu_features(6, 30, 8, 0)
    clf = with_measured_rows(
        FeCAMClassifier().fit(X, y), {0: (16, 5), **dict.fromkeys(range(1, 6), (16, 4))}
    )
    clf.state_.classes[0].calibration[:, 1] = known
    assert [one.label for one in weak_classes(clf, close_pairs(clf))] == weak


def test_rows_with_few_rivals_are_no_evidence_against_later_classes():
    """Four early classes had one rival and no errors; the rate of later ones is the usual one."""
    X, y = relu_features(6, 30, 8, 0)
    clf = with_measured_rows(
        FeCAMClassifier().fit(X, y), {i: (16, 6 if i > 3 else 0) for i in range(6)}
    )
    assert {one.label for one in weak_classes(clf, close_pairs(clf))} == {4, 5}
    for label in range(4):
        clf.state_.classes[label].calibration[:, 1] = 2
    assert weak_classes(clf, close_pairs(clf)) == []


def test_more_errors_than_any_factor_explains():
    X, y = relu_features(2, 30, 8, 0)
    clf = with_measured_rows(FeCAMClassifier().fit(X, y), {0: (16, 16), 1: (16, 16)})
    (pair,) = close_pairs(clf)
    assert pair.overlap == pytest.approx(0.5, abs=1e-3)


def test_identical_classes_without_observed_errors():
    X, y = relu_features(3, 20, 8, 0)
    clf = FeCAMClassifier().fit(np.concatenate([X, X[y == 1]]), [*y, *[7] * 20])
    pairs = close_pairs(with_measured_rows(clf, dict.fromkeys([0, 1, 2, 7], (16, 0))))
    assert pairs[0].overlap == pytest.approx(0.5)
    assert all(pair.overlap < 1e-6 for pair in pairs[1:])


def test_overlap_of_identical_classes():
    X, y = relu_features(3, 20, 8, 0)
    clf = FeCAMClassifier().fit(np.concatenate([X, X[y == 1]]), [*y, *[7] * 20])
    pairs = close_pairs(clf)
    assert (pairs[0].first, pairs[0].second) == (1, 7)
    assert pairs[0].overlap == pytest.approx(0.5)
    assert pairs[1].overlap < 0.2


def test_estimates_agree_with_measured_confusions(digits):
    """On digits, of the pairs that are confused most, most are among the first third."""
    X, y, test, due = digits
    few = np.concatenate([np.flatnonzero(y == label)[:10] for label in range(10)])
    clf = FeCAMClassifier().fit(X[few], y[few])
    order = [(pair.first, pair.second) for pair in close_pairs(clf)]
    answers = clf.predict(test)
    confused = {
        (a, b): np.sum((answers == a) & (due == b)) + np.sum((answers == b) & (due == a))
        for a, b in order
    }
    worst = sorted(order, key=lambda pair: -confused[pair])[:5]
    assert sum(pair in order[:15] for pair in worst) >= 4


def test_reasons_contain_numbers():
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(6)
    rows = {
        "single": centres[0] + 0.1 * rng.normal(size=(1, 6)),
        "few": centres[1] + 0.1 * rng.normal(size=(3, 6)),
        "fine": centres[2] + 0.1 * rng.normal(size=(50, 6)),
        "same": centres[3] + np.zeros((12, 6)),
        "wide": centres[4] + 0.3 * rng.normal(size=(50, 6)),
        "other": centres[5] + 0.1 * rng.normal(size=(50, 6)),
    }
    labels = [label for label, some in rows.items() for _ in some]
    clf = FeCAMClassifier(**PLAIN).fit(np.concatenate(list(rows.values())), labels)
    weak = weak_classes(clf, close_pairs(clf))
    reasons = {one.label: one.reasons for one in weak}
    assert reasons["single"] == ("one sample only",)
    assert reasons["few"] == ("few samples: 3",)
    assert reasons["same"] == ("all samples are the same",)
    (word,) = reasons["wide"]
    assert word.startswith("much wider than the others: its samples vary ")
    spread = {
        label: np.var(some, axis=0, ddof=1).sum() for label, some in rows.items() if len(some) > 2
    }
    usual = np.median([value for value in spread.values() if value > 1e-12])
    assert f"{spread['wide'] / usual:.1f} times" in word
    assert "fine" not in reasons and "other" not in reasons
    assert weak[0].label == "single", "the weakest comes first"


def test_single_class_has_no_pairs():
    clf = FeCAMClassifier().fit(np.eye(3), [0, 0, 0])
    assert close_pairs(clf) == [] and weak_classes(clf, [])[0].reasons == ("few samples: 3",)


def test_tensors_give_the_same_pairs():
    torch = pytest.importorskip("torch")
    X, y = relu_features(5, 20, 8, 0)
    ours = close_pairs(FeCAMClassifier().fit(X, y))
    theirs = close_pairs(FeCAMClassifier().fit(torch.asarray(X), y))
    assert [(p.first, p.second) for p in ours] == [(p.first, p.second) for p in theirs]
    np.testing.assert_allclose([p.apart for p in ours], [p.apart for p in theirs], rtol=1e-4)


def test_page_states_the_number_of_candidates():
    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    assert f"up to {inspection.ALL_PAIRS} classes" in page
    assert f"its {inspection.CANDIDATES} nearest" in page
