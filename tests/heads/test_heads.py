"""One contract for all heads: what a runner, a user and scikit-learn may rely on."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from fecam.core.calibration_rows import N_COLUMNS
from fecam.core.statistics import MAX_CALIBRATION_ROWS
from fecam.errors import InputError, SettingsError
from fecam.heads import available, make, state_nbytes
from helpers.features import relu_features, signed_features

ENTRIES = {entry.name: entry for entry in available()}
VARIANTS = [
    ("fecam", {}),
    ("fecam", {"preset": "paper", "covariance": "common"}),
    ("ncm", {}),
    ("ncm", {"metric": "cosine"}),
    ("slda", {}),
    ("deesil", {}),
    ("fetril", {}),
    ("fetril", {"classifier": "svm", "samples": 8}),
    ("gaussian-linear", {"samples": 40}),
    ("gaussian-linear", {"classifier": "svm", "samples": 40}),
    ("ridge", {}),
    ("ridge", {"ridge": 0.1}),
    ("ranpac", {"projections": 100}),
    ("fenec", {}),
    ("fenec", {"n_centroids": 2, "n_neighbors": 3, "preset": "ncm"}),
    ("calibrated-fecam", {}),
    ("teen", {}),
]
SMALL = {"ranpac": {"projections": 100}}
MERGEABLE = [(name, options) for name, options in VARIANTS if ENTRIES[name].mergeable]
PROBABLE = ("fecam", "slda", "fetril", "gaussian-linear")
WITH_SEED = [name for name in ENTRIES if "seed" in ENTRIES[name].options]


def name_of(variant):
    name, options = variant
    return name + "".join(f"-{value}" for value in options.values())


def each(variants):
    return pytest.mark.parametrize("variant", variants, ids=name_of)


def new(variant, **changes):
    name, options = variant
    return make(name, **{**options, **changes})


X, Y = relu_features(6, 12, 8, 0)
QUERIES, _ = relu_features(6, 5, 8, 0)
WORDS = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])[Y]
TASKS = [Y < 3, Y == 3, Y > 3]


def taught(head, labels=Y, tasks=TASKS):
    for task in tasks:
        head.partial_fit(X[task], labels[task])
    return head


# ---------------------------------------------------------------------- the catalogue


def test_every_head_has_a_variant():
    assert {name for name, _ in VARIANTS} == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_options_are_the_parameters(name):
    head = make(name, **ENTRIES[name].options)
    extra = {"preset"} if name == "fecam" else set()  # gives parameters, and is none
    assert set(head.get_params()) | extra == set(ENTRIES[name].options)
    assert head.get_params() == make(name).get_params()
    assert ENTRIES[name].description and ENTRIES[name].mergeable == hasattr(head, "merge")


def test_fecam_takes_a_preset_and_overrides():
    head = make("fecam", preset="few-shot", covariance="diagonal")
    assert (head.shrinkage, head.covariance, head.tukey) == ((100.0, 100.0), "diagonal", 0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ranpack", {}, "no head 'ranpack'.*Did you mean 'ranpac'.*Available: fecam, ncm"),
        ("knn", {}, "no head 'knn'. Available"),
        (7, {}, "no head 7"),
        ("ranpac", {"projection": 10}, "no option 'projection'.*Did you mean 'projections'"),
        ("fecam", {"tuckey": 0.5}, "no option 'tuckey'.*Did you mean 'tukey'"),
        ("fecam", {"preset": "papr"}, "no preset 'papr'.*'paper'"),
    ],
)
def test_unknown_names_raise_with_a_suggestion(name, options, message):
    with pytest.raises(SettingsError, match=f"(?s){message}"):
        make(name, **options)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fecam", "covariance", "clas"),
        ("fecam", "shrinkage", 5),
        ("fecam", "pooling", -1.0),
        ("fecam", "tukey", "half"),
        ("ncm", "metric", "cosin"),
        ("slda", "shrinkage", 2),
        ("fetril", "classifier", "logistic"),
        ("fetril", "samples", 0),
        ("gaussian-linear", "samples", 2.5),
        ("gaussian-linear", "seed", -1),
        ("ridge", "ridge", "best"),
        ("ridge", "ridge", -1.0),
        ("ranpac", "projections", True),
        ("ranpac", "seed", None),
        ("fenec", "n_centroids", 0),
        ("fenec", "n_neighbors", "3"),
        ("fenec", "preset", "papr"),
        ("calibrated-fecam", "alpha", 1.5),
        ("calibrated-fecam", "softmax_scale", np.nan),
        ("calibrated-fecam", "max_samples", -1),
        ("calibrated-fecam", "shrinkage", 1),
        ("calibrated-fecam", "tukey", "yes"),
    ],
)
def test_invalid_values_raise_in_make_and_in_partial_fit(name, option, value):
    with pytest.raises(SettingsError, match=re.escape(repr(value))):
        make(name, **{option: value})
    head = make(name).set_params(**{option: value})
    with pytest.raises(SettingsError, match=re.escape(repr(value))):
        head.partial_fit(X, Y)
    assert not head.__sklearn_is_fitted__()


# ---------------------------------------------------------------------- learning and answering


@each(VARIANTS)
@pytest.mark.parametrize("labels", [Y, WORDS, Y[::-1] - 3], ids=["integers", "strings", "negative"])
def test_learning_task_by_task(variant, labels):
    head = new(variant)
    known = set()
    for task in TASKS:
        head.partial_fit(X[task], labels[task])
        known |= set(labels[task].tolist())
        assert head.classes_.tolist() == sorted(known)
        answers = head.predict(QUERIES)
        assert set(answers.tolist()) <= known
        scores = head.decision_function(QUERIES)
        assert scores.shape == (len(QUERIES), len(known))
        assert np.isfinite(scores).all()
        np.testing.assert_array_equal(head.classes_[scores.argmax(axis=1)], answers)
    assert head.n_features_in_ == 8
    assert head.score(X, labels) > 0.5  # chance is 0.17


@each(VARIANTS)
def test_single_class_is_always_predicted(variant):
    head = new(variant).partial_fit(X[Y == 2], WORDS[Y == 2])
    assert set(head.predict(QUERIES)) == {"cat"}
    head.fit(X[:1], [7])  # and of a single sample
    assert head.predict(QUERIES).tolist() == [7] * len(QUERIES)
    assert head.decision_function(QUERIES).shape == (len(QUERIES), 1)


@each(VARIANTS)
def test_one_sample_per_class(variant):
    first = np.unique(Y, return_index=True)[1]
    head = new(variant).partial_fit(X[first[:4]], Y[first[:4]])
    head.partial_fit(X[first[4:]], Y[first[4:]])
    assert head.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isfinite(head.decision_function(X)).all()


@each(VARIANTS)
def test_identical_samples(variant):
    same = np.ones((10, 8), np.float32)
    head = new(variant).partial_fit(same, [0] * 5 + [1] * 5).partial_fit(2 * same, [2] * 10)
    assert np.isfinite(head.decision_function(np.concatenate([same, 0 * same]))).all()


@each(VARIANTS)
def test_fit_discards_earlier_tasks(variant):
    head = taught(new(variant)).fit(X[Y < 2][:, :5], WORDS[Y < 2])
    once = new(variant).fit(X[Y < 2][:, :5], WORDS[Y < 2])
    assert head.classes_.tolist() == ["ant", "bee"] and head.n_features_in_ == 5
    np.testing.assert_array_equal(
        head.decision_function(X[:, :5]), once.decision_function(X[:, :5])
    )


@each(VARIANTS)
def test_signed_features(variant):
    if variant[1].get("preset") == "paper":
        pytest.skip("Tukey's power takes no negative features")
    signed, labels = signed_features(6, 15, 8, 3)
    head = new(variant)
    head.partial_fit(signed[labels < 3], labels[labels < 3])
    head.partial_fit(signed[labels > 2], labels[labels > 2])
    assert head.score(signed, labels) > 0.5


@each(VARIANTS)
def test_digits_in_three_tasks(variant, digits):
    X_train, y_train, X_test, y_test = digits
    head = new(variant)
    for digits_of_task in ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9]):
        task = np.isin(y_train, digits_of_task)
        head.partial_fit(X_train[task], y_train[task])
    assert head.score(X_test, y_test) > (0.6 if variant[0] == "deesil" else 0.85)


@each([v for v in VARIANTS if v[0] in PROBABLE and v[1].get("classifier") != "svm"])
def test_probabilities(variant):
    head = taught(new(variant))
    chances = head.predict_proba(QUERIES)
    assert chances.shape == (len(QUERIES), 6) and (chances >= 0).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    scores = head.decision_function(QUERIES)
    np.testing.assert_array_equal(chances.argmax(axis=1), scores.argmax(axis=1))
    two = new(variant).fit(X[Y < 2], Y[Y < 2])
    np.testing.assert_array_equal(two.predict_proba(X).argmax(axis=1), two.predict(X))


@each([v for v in VARIANTS if v[0] not in PROBABLE or v[1].get("classifier") == "svm"])
def test_other_heads_have_no_predict_proba(variant):
    assert not hasattr(taught(new(variant)), "predict_proba")


@each(VARIANTS)
def test_repeated_class(variant):
    head = taught(new(variant))
    before = state_nbytes(head)
    for seed in (1, 2, 3):
        again, labels = relu_features(6, 12, 8, 0)
        head.partial_fit(again[labels < 2] + 0.01 * seed, labels[labels < 2])
        assert head.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    # A few more rows of a factor, some centroids: bounded, and no sample among them.
    measured_rows = 6 * 4 * MAX_CALIBRATION_ROWS * N_COLUMNS
    assert state_nbytes(head) <= 1.1 * before + measured_rows
    assert head.score(X, Y) > 0.4


@each(VARIANTS)
def test_no_sample_is_stored(variant):
    wide, labels = relu_features(3, 400, 8, 5)
    some = np.arange(len(labels)) % 10 == 0
    few, many = new(variant).fit(wide[some], labels[some]), new(variant).fit(wide, labels)
    assert state_nbytes(few) == state_nbytes(many) > 0
    if variant[0] != "ranpac":  # a hundred random features here
        assert state_nbytes(many) < wide.nbytes / 4
    assert len(pickle.dumps(many)) < state_nbytes(many) + 6000


def test_unfitted_heads_have_no_state():
    assert [state_nbytes(make(name)) for name in ENTRIES] == [0] * len(ENTRIES)


def test_state_nbytes_by_hand():
    fitted = {name: taught(make(name)) for name in ("ncm", "slda", "ridge")}
    means = 6 * (8 + 8 + 8 * 8)  # label, count, mean
    assert state_nbytes(fitted["ncm"]) == means
    assert state_nbytes(fitted["slda"]) == means + 8 * 8 * 8
    assert state_nbytes(fitted["ridge"]) == means + 8 * 8 * 8 + 17 * 8


@each(VARIANTS)
def test_same_seed_gives_same_scores(variant):
    a, b = taught(new(variant)), taught(new(variant))
    np.testing.assert_array_equal(a.decision_function(QUERIES), b.decision_function(QUERIES))


@pytest.mark.parametrize("name", WITH_SEED)
def test_another_seed_gives_other_scores(name):
    wide, labels = relu_features(6, 60, 8, 4)
    options = {"fenec": {}, **SMALL}.get(name, {"samples": 20})
    scores = []
    for seed in (0, 1):
        head = make(name, seed=seed, **options)
        head.partial_fit(wide[labels < 3], labels[labels < 3])
        head.partial_fit(wide[labels > 2], labels[labels > 2])
        scores.append(head.decision_function(wide))
    assert np.abs(scores[0] - scores[1]).max() > 1e-6


# ---------------------------------------------------------------------- scikit-learn


@each(VARIANTS)
def test_clone_and_parameters(variant):
    head = taught(new(variant))
    copy = clone(head)
    assert copy.get_params() == head.get_params() and not copy.__sklearn_is_fitted__()
    assert clone(copy.set_params(**head.get_params())).get_params() == head.get_params()


@each(VARIANTS)
def test_pickle_round_trip(variant):
    head = taught(new(variant))
    expected = head.decision_function(QUERIES)
    again = pickle.loads(pickle.dumps(head))
    np.testing.assert_array_equal(again.decision_function(QUERIES), expected)
    assert state_nbytes(again) == state_nbytes(head)


@each(VARIANTS)
def test_predicting_before_learning_raises(variant):
    head = new(variant)
    for ask in (head.predict, head.decision_function):
        with pytest.raises(ValueError, match=r"(knows no class|has no classes) yet.*partial_fit"):
            ask(QUERIES)
    assert not hasattr(head, "classes_") and not hasattr(head, "n_features_in_")


@each(VARIANTS)
def test_tensors_in_tensors_out(variant):
    torch = pytest.importorskip("torch")
    head, plain = new(variant), taught(new(variant))
    for task in TASKS:
        head.partial_fit(torch.asarray(X[task]), torch.asarray(Y[task]))
    answers = head.predict(torch.asarray(QUERIES))
    assert isinstance(answers, torch.Tensor)
    np.testing.assert_array_equal(answers.numpy(), plain.predict(QUERIES))
    assert isinstance(head.decision_function(torch.asarray(QUERIES)), torch.Tensor)


# ---------------------------------------------------------------------- bad input


def spoilt(value):
    bad = X.copy()
    bad[4, 2] = value
    return bad


TEACHING = {
    "NaN": (spoilt(np.nan), Y, "NaN.*row 4, column 2"),
    "infinity": (spoilt(np.inf), Y, "infinity.*row 4, column 2"),
    "wrong width": (X[:, :5], Y, "5 features.*expecting 8"),
    "no rows": (X[:0], Y[:0], "0 sample"),
    "one dimension": (X[0], Y[:1], "1D array|1d array"),
    "labels of another length": (X, Y[:-1], "71 labels.*72 samples"),
    "labels of another kind": (X, WORDS, "strings.*integers"),
    "labels of mixed kinds": (X, [0, "a"] * 36, "int, str"),
    "labels that are no labels": (X, np.linspace(0, 1, 72), "Unknown label type"),
    "labels missing": (X, None, "requires y"),
}
NAMES = [(name, SMALL.get(name, {})) for name in ENTRIES]


@each(NAMES)
def test_invalid_tasks_raise_and_change_nothing(variant):
    head = taught(new(variant))
    before = pickle.dumps(head)
    for bad, labels, message in TEACHING.values():
        with pytest.raises(ValueError, match=f"(?s){message}"):
            head.partial_fit(bad, labels)
        assert pickle.dumps(head) == before
    fresh = new(variant)
    with pytest.raises(InputError):
        fresh.partial_fit(spoilt(np.nan), Y)
    assert not hasattr(fresh, "n_features_in_")


@each(NAMES)
def test_invalid_queries_raise_and_change_nothing(variant):
    head = taught(new(variant))
    before = pickle.dumps(head)
    for name in ("NaN", "infinity", "wrong width", "no rows", "one dimension"):
        bad, _, message = TEACHING[name]
        for ask in (head.predict, head.decision_function):
            with pytest.raises(ValueError, match=f"(?s){message}"):
                ask(bad)
    assert pickle.dumps(head) == before


@pytest.mark.parametrize("name", ["fecam", "fenec", "calibrated-fecam"])
def test_negative_features_raise_after_a_power_transform(name):
    head = taught(make(name))
    before = pickle.dumps(head)
    for ask in (head.predict, lambda bad: head.partial_fit(bad, Y)):
        with pytest.raises(InputError, match=r"-0.5 at row 4, column 2.*tukey"):
            ask(spoilt(-0.5))
    assert pickle.dumps(head) == before


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("ranpac", "projections", 50),
        ("ranpac", "seed", 3),
        ("fetril", "classifier", "svm"),
        ("fenec", "preset", "ncm"),
        ("calibrated-fecam", "tukey", 0.3),
    ],
)
def test_fixed_parameters_cannot_change_after_learning(name, option, value):
    head = taught(make(name, **SMALL.get(name, {}))).set_params(**{option: value})
    for call in (lambda: head.predict(X), lambda: head.partial_fit(X, Y)):
        with pytest.raises(SettingsError, match=f"{option}.*cannot be changed"):
            call()


def test_other_parameters_may_change_after_learning():
    head = taught(make("ncm"))
    other = taught(make("ncm", metric="cosine")).decision_function(QUERIES)
    assert np.abs(head.decision_function(QUERIES) - other).max() > 0.1
    np.testing.assert_array_equal(
        head.set_params(metric="cosine").decision_function(QUERIES), other
    )


# ---------------------------------------------------------------------- merging


def test_which_heads_merge():
    cannot = {name for name, entry in ENTRIES.items() if not entry.mergeable}
    assert cannot == {"fetril", "gaussian-linear"}


@each(MERGEABLE)
@pytest.mark.parametrize("overlap", [False, True])
def test_merging_equals_learning_both(variant, overlap):
    second = TASKS[1:] if not overlap else [Y < 2, Y > 3]
    a, b = taught(new(variant), tasks=TASKS[:1]), taught(new(variant), tasks=second)
    theirs = pickle.dumps(b)
    both = taught(new(variant), tasks=[TASKS[0], *second])
    a.merge(b)
    assert a.classes_.tolist() == both.classes_.tolist()
    np.testing.assert_allclose(
        a.decision_function(QUERIES), both.decision_function(QUERIES), rtol=1e-4, atol=1e-6
    )
    assert pickle.dumps(b) == theirs


@each(MERGEABLE)
def test_merging_with_an_unfitted_head(variant):
    head, empty = taught(new(variant)), new(variant)
    expected = head.decision_function(QUERIES)
    np.testing.assert_array_equal(head.merge(new(variant)).decision_function(QUERIES), expected)
    np.testing.assert_allclose(empty.merge(head).decision_function(QUERIES), expected, rtol=1e-6)
    assert empty.n_features_in_ == 8
    empty.partial_fit(X, Y)


@each([(name, options) for name, options in NAMES if ENTRIES[name].mergeable])
def test_invalid_merges_raise(variant):
    head = taught(new(variant))
    before = pickle.dumps(head)
    with pytest.raises(TypeError, match="merge takes another"):
        head.merge(object())
    with pytest.raises(InputError, match="8 and 5 features"):
        head.merge(new(variant).fit(X[:, :5], Y))
    with pytest.raises(InputError, match=r"strings.*integers"):
        head.merge(new(variant).fit(X, WORDS))
    assert pickle.dumps(head) == before


def test_heads_with_different_parameters_do_not_merge():
    one, other = (taught(make("ranpac", projections=9, seed=seed)) for seed in (0, 1))
    with pytest.raises(SettingsError, match=r"seed=0 and seed=1"):
        one.merge(other)


# ---------------------------------------------------------------------- the page


def test_the_reference_lists_every_head_and_option():
    page = (Path(__file__).parents[2] / "docs/reference/heads.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line.split("|") for line in page.splitlines() if line[:3] == "| `"}
    assert set(rows) == set(ENTRIES)
    for name, entry in ENTRIES.items():
        if name != "fecam":
            assert all(f"`{option}`" in rows[name][2] for option in entry.options)
        assert ("yes" in rows[name][4]) == entry.mergeable
        assert bool(rows[name][5].strip()) == (name in PROBABLE)
