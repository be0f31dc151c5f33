"""Estimates without samples, against slow literal versions and classes made by hand."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier, inspection
from fecam.core.calibration import relative_variance
from fecam.inspection import close_pairs, overlaps, weak_classes
from helpers.features import relu_features, signed_features

PLAIN = {"tukey": None, "l2": None}
"""With these settings a prototype can be passed as a sample."""


def literal_pairs(clf):
    """Return every pair, from the decision function of the other prototype."""
    labels, counts = clf.classes_.tolist(), clf.class_count_.tolist()
    classes = list(clf.state_.classes.values())
    expected = clf.predictor_.expected_distances(range(len(labels)))
    variance = relative_variance(classes)
    found = {}
    for a in range(len(labels)):
        for b in range(a + 1, len(labels)):
            from_a = -clf.decision_function(classes[a].mean[None])[0, b]
            from_b = -clf.decision_function(classes[b].mean[None])[0, a]
            apart = (from_a + from_b) / (expected[a] + expected[b])
            real = max(apart - 1 / counts[a] - 1 / counts[b], 0)
            deviations = real / math.sqrt(2 * apart * variance) if apart else 0
            found[labels[a], labels[b]] = (NormalDist().cdf(-deviations), apart)
    return found


@pytest.mark.parametrize("covariance", ["class", "pooled", "diagonal", "identity"])
@pytest.mark.parametrize("per_class", [3, 40])
def test_pairs_equal_the_literal_version(covariance, per_class):
    X, y = signed_features(7, per_class, 12, 0)
    clf = FeCAMClassifier(covariance=covariance, **PLAIN).fit(X, y)
    pairs, literal = close_pairs(clf), literal_pairs(clf)
    assert {(pair.first, pair.second) for pair in pairs} == literal.keys()
    for pair in pairs:
        due = literal[pair.first, pair.second]
        np.testing.assert_allclose((pair.overlap, pair.apart), due, rtol=2e-3, atol=1e-6)
    order = [pair.overlap for pair in pairs]
    assert order == sorted(order, reverse=True)


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
        assert pair.overlap == pytest.approx(due.overlap) and pair.apart == pytest.approx(due.apart)
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


@given(
    st.floats(0, 50), st.floats(0, 2), st.floats(1e-3, 1), st.floats(1, 3)
)  # fmt: skip
def test_overlap_decreases_with_the_distance(apart, chance, variance, further):
    near, far = overlaps(np.array([apart, apart * further]), np.full(2, chance), variance)
    assert 0 <= far <= near <= 0.5
    assert overlaps(np.array([apart]), np.array([apart]), variance)[0] == 0.5
    assert overlaps(np.array([apart]), np.array([chance + 1]), variance)[0] >= near - 1e-12


def test_overlap_of_identical_classes():
    X, y = relu_features(3, 20, 8, 0)
    clf = FeCAMClassifier().fit(np.concatenate([X, X[y == 1]]), [*y, *[7] * 20])
    assert (close_pairs(clf)[0].first, close_pairs(clf)[0].second) == (1, 7)
    assert close_pairs(clf)[0].overlap == pytest.approx(0.5)
    weak = {one.label: one for one in weak_classes(clf, close_pairs(clf))}
    assert weak[1].risk >= 0.5 and "overlaps with 7 (50 %)" in weak[1].reasons


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


def test_many_overlaps_are_counted():
    X, _ = relu_features(1, 120, 8, 0)
    clf = FeCAMClassifier().fit(X, np.arange(120) % 6)
    weak = weak_classes(clf, close_pairs(clf))
    assert len(weak) == 6
    assert all("and 2 more" in one.reasons[0] for one in weak)


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
