"""Evaluation of one model: metrics against literal loops, and its report."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.bench.evaluation import BINS, evaluate, evaluate_classifier
from fecam.errors import InputError

CLASSES = ["ant", "bee", "cow", "dog"]


@st.composite
def evaluations(draw):
    """Answers of a model of four classes, to samples some of which have labels never taught."""
    count = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    expected = rng.choice([*CLASSES, "elk", "fly"], size=count).tolist()
    nearest = np.stack([rng.permutation(4)[:2] for _ in range(count)])
    novelty = np.round(3 * rng.normal(size=count), 1)
    novelty[rng.random(count) < 0.1] = np.nan
    return expected, nearest, rng.random(count), novelty


@given(evaluations(), st.lists(st.floats(-5, 20), max_size=9), st.floats(0.01, 0.5))
def test_numbers_are_those_of_literal_loops(answers, unlabeled, reject):
    expected, nearest, confidence, novelty = answers
    found = evaluate(
        expected, nearest, confidence, novelty, CLASSES, reject=reject, unknown=unlabeled
    )
    rows = [
        (due, [CLASSES[at] for at in top], sure, new)
        for due, top, sure, new in zip(*answers, strict=True)
    ]
    known = [row for row in rows if row[0] in CLASSES]
    strange = [row for row in rows if row[0] not in CLASSES]
    right = [row for row in known if row[1][0] == row[0]]
    assert (found.count, found.n_correct, found.top_k) == (len(known), len(right), 2)
    assert found.unknown == dict(Counter(row[0] for row in strange))
    strange += [(None, [], 0.0, value) for value in unlabeled]
    assert found.n_unknown == len(strange)
    limit = NormalDist().inv_cdf(1 - reject)
    for value, some in ((found.rejected, known), (found.unknown_rejected, strange)):
        due = sum(new > limit for *_, new in some) / len(some) if some else None
        assert value == pytest.approx(due)
    if known:
        assert found.accuracy == pytest.approx(len(right) / len(known))
        among = sum(row[0] in row[1] for row in known) / len(known)
        assert found.top_k_accuracy == pytest.approx(among)
    else:
        assert found.accuracy is found.top_k_accuracy is found.calibration_error is None
    ours, theirs = ([x for *_, x in rows if x == x] for rows in (known, strange))  # without NaN
    assert found.n_without_novelty == len(known) + len(strange) - len(ours) - len(theirs)
    if ours and theirs:
        wins = [(b > a) + (b == a) / 2 for a in ours for b in theirs]
        assert found.novelty_auroc == pytest.approx(np.mean(wins))
        assert found.separates == (np.mean(wins) >= 0.7)
        threshold = min(t for t in ours if np.mean([x <= t for x in ours]) >= 0.95)
        accepted = np.mean([x <= threshold for x in theirs])
        assert found.fpr_at_95_tpr == pytest.approx(accepted)
    else:
        assert found.novelty_auroc is found.fpr_at_95_tpr is found.separates is None
    for name, values in (("known", ours), ("unknown", theirs)):
        inside = [np.clip(value, -4, 9.99) for value in values]
        for one in found.novelty_bins:
            assert getattr(one, name) == sum(one.low <= value < one.high for value in inside)
        assert sum(getattr(one, name) for one in found.novelty_bins) == len(values)
    taken = Counter((due, top[0]) for due, top, *_ in known if due != top[0])
    assert {(a, b): n for a, b, n in found.confusions} == taken
    assert [n for *_, n in found.confusions] == sorted(taken.values(), reverse=True)
    assert [one.label for one in found.classes] == CLASSES
    for one in found.classes:
        own = [row for row in known if row[0] == one.label]
        answered = [row for row in known if row[1][0] == one.label]
        both = [row for row in own if row[1][0] == one.label]
        assert one.count == len(own)
        assert one.recall == (pytest.approx(len(both) / len(own)) if own else None)
        assert one.precision == (pytest.approx(len(both) / len(answered)) if answered else None)
        mistakes = Counter(top[0] for due, top, *_ in own if top[0] != due)
        assert one.confused == max(mistakes.values(), default=0)
        assert one.confused_with is None if not mistakes else mistakes[one.confused_with]
    assert sum(one.count for one in found.bins) == len(known)
    gap = sum(one.count * abs(one.accuracy - one.confidence) for one in found.bins)
    if known:
        assert found.calibration_error == pytest.approx(gap / len(known))
    assert len(found.bins) <= BINS
    assert json.loads(json.dumps(found.as_dict()))["count"] == len(known)


def test_an_invalid_reject_is_an_error():
    with pytest.raises(InputError, match="between 0 and 1"):
        evaluate(["ant"], [[0]], [1.0], [0.0], CLASSES, reject=1)


def test_a_classifier_is_evaluated_with_unknown_samples(digits):
    X, y, X_test, y_test = digits
    clf = FeCAMClassifier().fit(X[y < 8], y[y < 8])
    seen, calls = y_test < 8, []
    found = evaluate_classifier(
        clf,
        X_test[seen],
        y_test[seen].tolist(),
        unknown=X_test[~seen],
        reject=0.1,
        report=lambda *counts: calls.append(counts),
    )
    mixed = evaluate_classifier(clf, X_test, y_test.tolist(), reject=0.1)
    assert mixed.unknown == dict(Counter(y_test[~seen].tolist())) and found.unknown == {}
    for name in ("count", "accuracy", "n_unknown", "rejected", "unknown_rejected", "fpr_at_95_tpr"):
        assert getattr(mixed, name) == getattr(found, name) is not None
    assert found.accuracy == clf.score(X_test[seen], y_test[seen])
    left = clf.predict(X_test[~seen], reject=0.1, unknown=-1) == -1
    assert found.unknown_rejected == left.mean()
    assert calls[-1] == (len(X_test), len(X_test)) and found.separates


# -- the page --------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page holds: texts, tags, ids."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.text = Counter(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_data(self, data):
        self.text += data


def some(classes, count=300, strange=0.1):
    rng = np.random.default_rng(0)
    due = rng.integers(0, len(classes), size=count)
    wrong = rng.random(count) < 0.3
    answer = np.where(wrong, rng.integers(0, len(classes), size=count), due)
    other = (answer + 1) % len(classes)
    expected = [classes[at] for at in due]
    for at in np.flatnonzero(rng.random(count) < strange):
        expected[at] = "never <i>taught</i>"
    confidence = np.where(wrong, 0.5, 0.9) + 0.1 * rng.random(count)
    novelty = rng.normal(size=count)
    return evaluate(expected, np.stack([answer, other], 1), confidence, novelty, classes)


@pytest.mark.parametrize("count", [3, 60])
def test_the_page_shows_all_metrics(tmp_path, count):
    pytest.importorskip("matplotlib")
    from fecam.report.evaluation import MAX_LABELS, write_evaluation

    classes = ["<script>alert(1)</script>", *[f"class {at}" for at in range(count - 1)]]
    found = some(classes, 10 * count)
    path = write_evaluation(found, {"model": "birds.fecam"}, tmp_path / "new" / "page.html")
    text = path.read_text()
    page = Page(text)
    assert page.tags["script"] == 0 and "http-equiv" in text
    assert len(page.ids) == len(set(page.ids))
    for name in ("what", "results", "confusions", "calibration", "novelty", "classes", "unknown"):
        assert name in page.ids
    assert page.tags["svg"] == 3, "pictures of confusions, calibration and novelty"
    assert {"novelty-histogram-known", "novelty-histogram-unknown"} <= set(page.ids)
    assert ("do not rely on rejection" in page.text) == (not found.separates)
    assert found.separates == (count == 3), "random novelty; one sample of three classes is unknown"
    assert f"{100 * found.accuracy:.1f}" in page.text
    assert "never <i>taught</i>" in page.text and page.tags["i"] == 0
    assert classes[0] in page.text
    assert (f"the {MAX_LABELS} most confused classes" in page.text) == (count > MAX_LABELS)
    assert not re.search(r'(src|href)="(?!#|data:)', text), "nothing is loaded from elsewhere"
    assert list(path.parent.iterdir()) == [path]
    write_evaluation(found, {"model": "birds.fecam"}, path)
    assert path.read_text() == text, "the same evaluation, the same page"


def test_the_confusion_plot_shows_the_counts():
    from fecam.report.evaluation import confused_classes, confusion_fractions

    found = evaluate(
        ["ant", "ant", "ant", "bee", "cow"],
        [[0], [1], [1], [1], [0]],
        np.ones(5),
        np.zeros(5),
        CLASSES,
    )
    shown = confused_classes(found)
    assert shown == ["ant", "bee", "cow"], "dog has no samples"
    due = [[1 / 3, 2 / 3, 0], [0, 1, 0], [1, 0, 0]]
    np.testing.assert_allclose(confusion_fractions(found, shown), due)


def test_many_classes_are_drawn_by_their_confusions(monkeypatch):
    from fecam.report import evaluation

    monkeypatch.setattr(evaluation, "MAX_LABELS", 2)
    found = evaluate(CLASSES, [[0], [2], [2], [3]], np.ones(4), np.zeros(4), CLASSES)
    assert evaluation.confused_classes(found) == ["bee", "cow"]


def test_a_page_without_known_samples(tmp_path):
    pytest.importorskip("matplotlib")
    from fecam.report.evaluation import evaluation_page

    found = evaluate(["elk"], [[0]], [0.9], [4.0], CLASSES)
    page = Page(evaluation_page(found, {}))
    assert "No sample has a label of the model" in page.text
    assert "confusions" not in page.ids and "unknown" in page.ids


def test_the_text_says_how_many_items_have_no_novelty():
    from fecam.report.evaluation import novelty_sentences

    found = evaluate(["ant", "bee"], [[0], [1]], [1.0, 1.0], [0.5, np.nan], CLASSES, unknown=[9.0])
    assert found.novelty_auroc == 1 and found.rejected == 0
    (sentence,) = novelty_sentences(found)
    assert sentence.startswith("1 of 3 items have no novelty")


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    from fecam.report.evaluation import write_evaluation

    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_evaluation(some(CLASSES), {}, tmp_path / "file" / "page.html")
