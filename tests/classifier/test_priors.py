"""Class priors: the parameter ``priors`` of the classifier."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from sklearn.base import clone

import fecam
from fecam import FeCAMClassifier, load
from fecam.errors import ModelFileError, SettingsError
from fecam.transfer import export_model, import_model

PRIORS = {0: 5.0, 1: 0.2, 3: 1e-3}
WEIGHTS = np.array([5.0, 0.2, 1.0, 1e-3, 1.0])
METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "novelty")


@pytest.fixture(scope="module")
def overlapping():
    """Five classes that overlap, and queries."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 40)
    centers = 0.5 * np.eye(5, 12)
    X = 2 + centers[y] + 0.3 * rng.normal(size=(200, 12))
    Q = 2 + centers[y] + 0.3 * rng.normal(size=(200, 12))
    return X, y, Q


@pytest.mark.parametrize("covariance", ["class", "common", "pooled", "diagonal", "identity"])
def test_the_posterior_is_the_prior_times_the_likelihood(overlapping, covariance):
    X, y, Q = overlapping
    equal = FeCAMClassifier(covariance=covariance).fit(X, y)
    clf = clone(equal).set_params(priors=PRIORS).fit(X, y)
    likelihood = equal.predict_proba(Q).astype(np.float64)
    expected = np.empty_like(likelihood)
    for i, row in enumerate(likelihood):
        products = [weight * value for weight, value in zip(WEIGHTS, row, strict=True)]
        expected[i] = np.array(products) / sum(products)
    np.testing.assert_allclose(clf.predict_proba(Q), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(Q)), expected, rtol=1e-4, atol=1e-6)
    scores = clf.decision_function(Q)
    scores -= scores.max(axis=1, keepdims=True)
    np.testing.assert_allclose(
        scores, np.log(expected) - np.log(expected.max(axis=1, keepdims=True)), atol=1e-3
    )
    assert np.mean(clf.predict(Q) != equal.predict(Q)) > 0.03, "the priors matter"


@pytest.mark.parametrize("search", ["auto", "exhaustive", "exact", "approximate"])
def test_all_predictions_agree(overlapping, search):
    X, y, Q = overlapping
    clf = FeCAMClassifier(priors=PRIORS, search=search).fit(X, y)
    order = np.argsort(-clf.predict_proba(Q), axis=1, kind="stable")
    np.testing.assert_array_equal(clf.predict(Q), order[:, 0])
    np.testing.assert_array_equal(clf.predict_top_k(Q, 3), order[:, :3])
    np.testing.assert_array_equal(clf.decision_function(Q).argmax(axis=1), order[:, 0])
    detailed = clf.predict_detailed(Q, 3)
    np.testing.assert_array_equal(detailed.labels, order[:, :3])
    np.testing.assert_allclose(
        detailed.probabilities,
        np.take_along_axis(clf.predict_proba(Q), order[:, :3], axis=1),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        np.sqrt(detailed.distances),
        np.take_along_axis(clf.transform(Q), order[:, :3], axis=1),
        rtol=1e-4,
    )
    without = clf.predict_detailed(Q, 3, probabilities=False)
    np.testing.assert_array_equal(without.labels, detailed.labels)
    assert np.isnan(without.probabilities).all()
    kept = clf.predict(Q, reject=0.05)
    assert all(a is None or a == b for a, b in zip(kept, order[:, 0], strict=True))


def test_distances_and_novelty_do_not_depend_on_priors(overlapping):
    X, y, Q = overlapping
    equal, clf = FeCAMClassifier().fit(X, y), FeCAMClassifier(priors=PRIORS).fit(X, y)
    np.testing.assert_array_equal(clf.transform(Q), equal.transform(Q))
    np.testing.assert_allclose(clf.novelty(Q), equal.novelty(Q), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("priors", [{}, {7: 3.0}, dict.fromkeys(range(5), 0.2), "empirical"])
def test_equal_priors_change_nothing(overlapping, priors):
    X, y, Q = overlapping  # classes of equal size
    equal, clf = FeCAMClassifier().fit(X, y), FeCAMClassifier(priors=priors).fit(X, y)
    for method in METHODS:
        np.testing.assert_array_equal(getattr(clf, method)(Q), getattr(equal, method)(Q))


def test_priors_do_not_depend_on_their_scale(overlapping):
    X, y, Q = overlapping
    clf = FeCAMClassifier(priors=dict(enumerate(WEIGHTS))).fit(X, y)
    expected = clf.predict_proba(Q)
    clf.set_params(priors=dict(enumerate(1000 * WEIGHTS)))
    np.testing.assert_allclose(clf.predict_proba(Q), expected, rtol=1e-5)


def test_empirical_priors_are_the_class_counts_of_the_moment(overlapping):
    X, y, Q = overlapping
    rows = np.concatenate([np.flatnonzero(y == 0), *(np.flatnonzero(y == c)[:4] for c in (1, 2))])
    clf = FeCAMClassifier(priors="empirical").fit(X[rows], y[rows])
    counts = FeCAMClassifier(priors={0: 40, 1: 4, 2: 4}).fit(X[rows], y[rows])
    np.testing.assert_array_equal(clf.predict_proba(Q), counts.predict_proba(Q))
    more = (y == 1) | (y == 3)
    clf.partial_fit(X[more], y[more])
    counts.partial_fit(X[more], y[more]).set_params(priors={0: 40, 1: 44, 2: 4, 3: 40})
    np.testing.assert_array_equal(clf.predict_proba(Q), counts.predict_proba(Q))


def test_priors_of_a_shifted_test_set_improve_accuracy_and_loss(overlapping):
    X, y, Q = overlapping
    shift = np.array([20.0, 8.0, 4.0, 2.0, 1.0])
    rng = np.random.default_rng(1)
    drawn = rng.choice(200, 4000, p=(shift / (40 * shift.sum()))[y])
    Q, answers = Q[drawn], y[drawn]
    equal = FeCAMClassifier().fit(X, y)
    clf = equal.copy().set_params(priors=dict(enumerate(shift)))
    assert clf.score(Q, answers) > equal.score(Q, answers) + 0.02
    rows = np.arange(len(Q))
    before, after = (c.predict_log_proba(Q)[rows, answers].mean() for c in (equal, clf))
    assert after > before + 0.02
    opposite = equal.copy().set_params(priors=dict(enumerate(1 / shift)))
    assert opposite.score(Q, answers) < equal.score(Q, answers)


def test_tensors_get_tensors(overlapping):
    torch = pytest.importorskip("torch")
    X, y, Q = (torch.as_tensor(a) for a in overlapping)
    clf = FeCAMClassifier(priors=PRIORS).fit(X, y)
    want = FeCAMClassifier(priors=PRIORS).fit(*overlapping[:2]).predict(overlapping[2])
    assert isinstance(clf.predict(Q), torch.Tensor)
    assert clf.predict(Q).tolist() == want.tolist()
    np.testing.assert_allclose(clf.predict_proba(Q).sum(1).numpy(), 1, rtol=1e-5)


def test_merge_keeps_the_priors_of_the_first(overlapping):
    X, y, Q = overlapping
    first = FeCAMClassifier(priors=PRIORS).fit(X[y < 3], y[y < 3])
    first.merge(FeCAMClassifier(priors="empirical").fit(X[y >= 3], y[y >= 3]))
    assert first.priors == PRIORS
    assert not (first.predict(Q) == 3).any()
    with pytest.raises(SettingsError, match="pooling=2"):
        first.merge(FeCAMClassifier(pooling=2.0).fit(X, y))


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ("uniform", "priors='uniform' must be None, 'empirical' or a mapping"),
        ([0.5, 0.5], "must be None, 'empirical' or a mapping"),
        (
            {"a": 0.0},
            r"priors\['a'\]=0.0 must be a finite number > 0. To remove a class, use forget",
        ),
        ({"a": float("nan")}, r"priors\['a'\]=nan"),
        ({"a": 1, 2: 1}, "only one of these kinds"),
        ({None: 1}, "only one of these kinds"),
    ],
)
def test_invalid_priors(overlapping, priors, message):
    X, y, _ = overlapping
    with pytest.raises(SettingsError, match=message):
        FeCAMClassifier(priors=priors).fit(X, y)
    clf = FeCAMClassifier().fit(X, y)
    with pytest.raises(SettingsError, match=message):
        clf.set_params(priors=priors)
    assert clf.priors is None


def test_labels_of_another_kind(overlapping):
    X, y, Q = overlapping
    clf = FeCAMClassifier(priors={"0": 2.0}).fit(X, y)
    with pytest.raises(SettingsError, match=r"are strings \('0', ...\).*integers \(0, ...\)"):
        clf.predict(Q)


# ---------------------------------------------------------------------- files


CASES = [
    (PRIORS, list(range(5))),
    ("empirical", list(range(5))),
    ({"blue": 2.0, "é": 0.5}, ["blue", "é", "c", "d", "e"]),
    ({True: 4, False: 1}, [True, False, True, False, True]),
    ({f"{i}" * 100: 1.5 for i in range(100)}, ["1" * 100, "2", "3", "4", "5"]),
]
"""Priors, and the labels of five classes."""


@pytest.mark.parametrize(("priors", "names"), CASES)
def test_files_keep_priors(overlapping, tmp_path, priors, names):
    X, y, Q = overlapping
    clf = FeCAMClassifier(priors=priors).fit(X, np.array(names)[y])
    path = tmp_path / "m.fecam"
    clf.save(path)
    export_model(clf, tmp_path / "m.safetensors")
    for other in (load(path), import_model(tmp_path / "m.safetensors").classifier):
        assert other.priors == priors
        if isinstance(priors, dict):
            assert {*map(type, other.priors)} == {*map(type, priors)}
        np.testing.assert_array_equal(other.predict(Q), clf.predict(Q))
    clf.copy().set_params(priors=None).save(path)
    assert load(path).priors is None
    with fecam.open(path) as model:
        model.undo()
        assert model.classifier.priors == priors
        assert [p.nearest[0].label for p in model.predict_detailed(Q)] == clf.predict(Q).tolist()


def test_a_file_without_the_setting_has_equal_priors(overlapping, tmp_path):
    X, y, Q = overlapping
    clf = FeCAMClassifier().fit(X, y)
    path = tmp_path / "m.fecam"
    clf.save(path)
    with closing(sqlite3.connect(path)) as db:
        remove_setting(db, "priors")
    loaded = load(path)
    assert loaded.priors is None
    with fecam.open(path) as model:
        model.learn(X[:3], [9, 9, 9])
        model.undo()
    assert load(path).priors is None
    np.testing.assert_array_equal(loaded.predict(Q), clf.predict(Q))


@pytest.mark.parametrize(
    "text", ['"all"', "[1]", "[[[], 1]]", "[[1, -1]]", "[[1, 1], [true]]", "3"]
)
def test_a_file_with_invalid_priors(overlapping, tmp_path, text):
    X, y, _ = overlapping
    path = tmp_path / "m.fecam"
    FeCAMClassifier().fit(X, y).save(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE settings SET value = ? WHERE name = 'priors'", (text,))
        db.commit()
    with pytest.raises(ModelFileError, match="priors"):
        load(path)


def remove_setting(db, name):
    """Remove a setting, and sign the file again."""
    from fecam.model_file.writing import current_checksums, write_settings

    db.execute("DELETE FROM settings WHERE name = ?", (name,))
    settings = dict(db.execute("SELECT name, value FROM settings WHERE name != 'checksum_'"))
    write_settings(db, settings, current_checksums(db))
    db.commit()
