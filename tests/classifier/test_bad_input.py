"""Whatever is wrong with the input: a helpful error, and a model that is as it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.errors import InputError, SettingsError, SingularMatrixError, UnknownLabelError
from helpers.features import relu_features

torch = pytest.importorskip("torch")

X, Y = relu_features(3, 10, 6, 0)


def with_value(value, row=4, column=2):
    invalid = X.copy()
    invalid[row, column] = value
    return invalid


@pytest.fixture
def clf():
    return FeCAMClassifier(tukey=0.5).fit(X, Y)


def state_of(clf):
    return pickle.dumps(clf)


DATA = {
    "NaN": (with_value(np.nan), Y, "NaN.*row 4, column 2.*Remove"),
    "infinity": (with_value(np.inf), Y, "infinity.*row 4, column 2"),
    "negative under a power": (
        with_value(-0.5),
        Y,
        r"-0.5 at row 4, column 2.*tukey=0.5.*tukey=None",
    ),
    "wrong width": (X[:, :5], Y, "5 features.*expecting 6"),
    "no rows": (X[:0], Y[:0], "0 sample"),
    "one dimension": (X[0], Y[:1], "1D array|1d array"),
    "labels of another length": (X, Y[:-1], "29 labels.*30 samples"),
    "labels of another kind": (X, Y.astype(str), "strings.*integers"),
    "labels of mixed kinds": (X, [0, "a"] * 15, "int, str"),
    "labels that are no labels": (X, np.linspace(0, 1, 30), "Unknown label type"),
    "labels missing": (X, None, "requires y"),
    "labels not a number": (X, np.where(Y == 1, np.nan, Y), "NaN"),
    "a dictionary as a label": (X, [{}] * 30, "dict"),
}


# A new fit may have any width and any kind of label.
LEARNING = [
    (verb, name)
    for verb in ("partial_fit", "fit", "unlearn")
    for name in DATA
    if (verb, name) not in [("fit", "wrong width"), ("fit", "labels of another kind")]
]


@pytest.mark.parametrize(("verb", "name"), LEARNING)
def test_learning(clf, verb, name):
    invalid, labels, message = DATA[name]
    before = state_of(clf)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        getattr(clf, verb)(invalid, labels)
    assert state_of(clf) == before


@pytest.mark.parametrize("name", [n for n in DATA if not n.startswith(("labels", "a dict"))])
@pytest.mark.parametrize("verb", ["predict", "predict_proba", "decision_function", "novelty"])
def test_predicting(clf, verb, name):
    before = state_of(clf)
    with pytest.raises(ValueError, match=f"(?s){DATA[name][2]}"):
        getattr(clf, verb)(DATA[name][0])
    assert state_of(clf) == before


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (with_value(np.nan), "NaN.*row 4, column 2"),
        (X[0], r"two dimensions.*\(6,\).*X\[None, :\]"),
        (X[:0], "empty"),
        (X.astype(np.complex64), "Complex"),
        (X[:, :5], "5 features"),
        (torch.asarray(X).to_sparse(), "to_dense"),
    ],
)
def test_predicting_tensors(clf, invalid, message):
    with pytest.raises(ValueError, match=message):
        clf.predict(torch.asarray(invalid))


def test_a_first_batch_that_fails_leaves_an_unfitted_model():
    clf = FeCAMClassifier()
    with pytest.raises(InputError):
        clf.partial_fit(with_value(np.nan), Y)
    assert not hasattr(clf, "n_features_in_")
    with pytest.raises(ValueError, match="partial_fit"):
        clf.predict(X)
    clf.partial_fit(X[:, :3], Y)


@pytest.mark.parametrize(
    "method", ["predict", "predict_proba", "decision_function", "novelty", "unlearn"]
)
def test_before_any_fit(method):
    arguments = (X, Y) if method == "unlearn" else (X,)
    with pytest.raises(ValueError, match=r"has no classes yet.*partial_fit"):
        getattr(FeCAMClassifier(), method)(*arguments)


def test_unknown_labels(clf):
    before = state_of(clf)
    with pytest.raises(UnknownLabelError, match=r"7 was never learned\. Learned: 0, 1, 2"):
        clf.forget(7)
    with pytest.raises(UnknownLabelError, match="7 was never learned"):
        clf.unlearn(X, np.full(30, 7))
    with pytest.raises(UnknownLabelError, match="never learned"):
        clf.forget([1])
    assert state_of(clf) == before


def test_unlearning_more_than_was_learned(clf):
    before = state_of(clf)
    with pytest.raises(InputError, match="20 samples of class 1: only 10"):
        clf.unlearn(np.concatenate([X[Y == 1]] * 2), np.ones(20, int))
    with pytest.raises(InputError, match="not among those"):
        clf.unlearn(X[Y == 1] * np.float32([9, 1, 1, 1, 1, 1]), np.ones(10, int))
    far = X[Y == 1][:5] * np.float32([9, 1, 1, 1, 1, 1])
    with pytest.raises(InputError, match="not among those"):
        clf.unlearn(far, np.ones(5, int))
    assert state_of(clf) == before


def test_gammas_that_make_a_matrix_indefinite(clf):
    clf.set_params(shrinkage=(0, 40), pooling=0)
    with pytest.raises(SingularMatrixError, match=r"class 0 .*shrinkage=\(0, 40\).*Raise"):
        clf.predict(X)
    assert clf.set_params(shrinkage=(1, 0)).score(X, Y) > 0.9


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("covariance", "clas", "'clas'.*Did you mean 'class'"),
        ("tukey", "yes", "tukey='yes'"),
        ("tukey", np.nan, "tukey=nan"),
        ("shrinkage", 1, "shrinkage=1 must be two numbers"),
        ("shrinkage", (1, -1), r"shrinkage\[1\]=-1"),
        ("normalization", "corr", "correlation"),
        ("pooling", -1, "pooling=-1"),
        ("pooling", "much", "pooling='much'"),
        ("mean_uncertainty", -0.1, "mean_uncertainty=-0.1"),
        ("mean_uncertainty", True, "mean_uncertainty=True"),
        ("mean_uncertainty", np.float32(np.inf), "must be a finite number"),
        ("prototype", "mean", "prototype='mean'"),
        ("l2", "yes", "l2='yes'"),
        ("domains", "both", "domains='both'"),
        ("search", "fast", "search='fast'"),
        ("dtype", "float16", "dtype='float16'"),
        ("off_diagonal", "some", "off_diagonal='some'"),
    ],
)
def test_invalid_parameters(clf, name, value, message):
    with pytest.raises(SettingsError, match=message):
        FeCAMClassifier(**{name: value}).fit(X, Y)
    before = state_of(clf)
    with pytest.raises(SettingsError, match=message):
        clf.set_params(**{name: value})
    assert state_of(clf) == before


@pytest.mark.parametrize(
    ("fitted", "changes", "message"),
    [
        ({"tukey": 0.5}, {"tukey": 0.25}, "tukey=0.25 cannot be set after learning"),
        ({"l2": "features"}, {"l2": None}, "l2=None cannot be set after learning"),
        ({"l2": None}, {"l2": "features"}, "l2='features' cannot be set after learning"),
        ({"dtype": "float32"}, {"dtype": "float64"}, "dtype='float64' cannot"),
        ({"covariance": "identity"}, {"covariance": "class"}, "needs matrices.*only means"),
        ({"covariance": "diagonal"}, {"covariance": "pooled"}, "needs matrices.*only variances"),
    ],
)
def test_parameters_that_cannot_change_after_learning(fitted, changes, message):
    clf = FeCAMClassifier(**fitted).fit(X, Y)
    before = clf.get_params()
    with pytest.raises(SettingsError, match=message):
        clf.set_params(**changes)
    assert clf.get_params() == before
    for name, value in changes.items():  # without set_params, the next call raises
        setattr(clf, name, value)
    with pytest.raises(SettingsError, match=message):
        clf.predict(X)


def test_domain_averaging_cannot_change_after_learning():
    pooled = FeCAMClassifier().partial_fit(X, Y).partial_fit(X, Y)
    with pytest.raises(SettingsError, match="2 batches of class 0"):
        pooled.set_params(domains="average")
    averaged = FeCAMClassifier(domains="average").partial_fit(X, Y).partial_fit(X, Y)
    with pytest.raises(SettingsError, match="cannot be undone"):
        averaged.unlearn(X, Y)


def test_all_other_parameters_can_change_after_learning():
    clf = FeCAMClassifier(l2=None).fit(X, Y)
    for changes in (
        {"covariance": "pooled"},
        {"covariance": "common"},
        {"covariance": "diagonal"},
        {"covariance": "identity"},
        {"covariance": "class", "shrinkage": (2, 2)},
        {"normalization": "variance"},
        {"normalization": None},
        {"pooling": 3.0},
        {"mean_uncertainty": 0.5},
        {"prototype": "transform-of-mean"},
        {"l2": "compare"},
        {"search": "exhaustive"},
        {"search": "exact"},
        {"search": "approximate"},
    ):
        clf.set_params(**changes)
        anew = FeCAMClassifier(**clf.get_params()).fit(X, Y)
        np.testing.assert_allclose(
            clf.decision_function(X), anew.decision_function(X), rtol=1e-4, atol=1e-6
        )


def test_merging_models_that_do_not_match(clf):
    before = state_of(clf)
    other = FeCAMClassifier(tukey=0.5, shrinkage=(2, 0)).fit(X, Y)
    with pytest.raises(SettingsError, match=r"shrinkage=\(1.0, 0.0\) here.*\(2, 0\) there"):
        clf.merge(other)
    with pytest.raises(InputError, match="6 and 4 features"):
        clf.merge(FeCAMClassifier(tukey=0.5).fit(X[:, :4], Y))
    with pytest.raises(InputError, match=r"strings.*integers"):
        clf.merge(FeCAMClassifier(tukey=0.5).fit(X, Y.astype(str)))
    auto = FeCAMClassifier().fit(X, Y)
    with pytest.raises(SettingsError, match=r"Tukey powers 0\.5 and None"):
        auto.merge(FeCAMClassifier().fit(X - 1, Y))
    with pytest.raises(SettingsError, match=r"tukey=0.25 cannot"):
        FeCAMClassifier(tukey=0.25).merge(clf)
    with pytest.raises(TypeError, match="FeCAMClassifier"):
        clf.merge("birds.fecam")
    assert state_of(clf) == before


@pytest.mark.parametrize("k", [0, 4, 1.5, "all"])
def test_top_k_out_of_range(clf, k):
    with pytest.raises(InputError, match="from 1 to 3"):
        clf.predict_top_k(X, k)


def test_numbers_too_large_to_be_squared():
    huge = X * np.float32(1e25)
    with pytest.raises(InputError, match=r"size .*e\+25.*float32.*dtype='float64'"):
        FeCAMClassifier(tukey=None, l2=None).fit(huge, Y)
    double = FeCAMClassifier(tukey=None, l2=None, dtype="float64").fit(huge, Y)
    assert double.score(huge, Y) > 0.9
    clf = FeCAMClassifier(tukey=None, l2=None).fit(X, Y)
    before = state_of(clf)
    for method in (clf.predict, clf.novelty, lambda q: clf.partial_fit(q, Y)):
        with pytest.raises(InputError, match="Scale the features down"):
            method(huge)
    assert state_of(clf) == before


def test_models_with_equivalent_parameters_merge():
    clf = FeCAMClassifier(tukey=0.5, shrinkage=[1, 0]).fit(X[Y < 2], Y[Y < 2])
    clf.merge(FeCAMClassifier().fit(X[Y == 2], Y[Y == 2]))
    assert clf.classes_.tolist() == [0, 1, 2]
