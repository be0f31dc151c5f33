"""Renaming and joining classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.errors import InputError, SettingsError, UnknownLabelError
from helpers.features import relu_features

X, Y = relu_features(5, 12, 6, 0)
NAMES = np.asarray(["ant", "bee", "cow", "dog", "emu"])


def learned(labels, **params):
    return FeCAMClassifier(dtype="float64", **params).fit(X, labels)


def test_a_renamed_class_keeps_its_statistics():
    clf = learned(NAMES[Y])
    before = clf.decision_function(X)
    stats = clf.state_.classes["bee"]
    assert clf.rename("bee", "zebra") is clf
    assert clf.classes_.tolist() == ["ant", "cow", "dog", "emu", "zebra"]
    assert clf.state_.classes["zebra"] is stats
    np.testing.assert_allclose(clf.decision_function(X), before[:, [0, 2, 3, 4, 1]], rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    joined=st.sets(st.sampled_from(NAMES.tolist()), min_size=2), new=st.sampled_from(["bee", "x"])
)
def test_joined_classes_equal_one_that_was_learned_at_once(joined, new):
    clf = learned(NAMES[Y])
    clf.join(joined, new)
    group = joined | ({new} & set(NAMES.tolist()))
    at_once = learned([new if name in group else name for name in NAMES[Y].tolist()])
    assert clf.classes_.tolist() == at_once.classes_.tolist()
    np.testing.assert_array_equal(clf.class_count_, at_once.class_count_)
    np.testing.assert_allclose(clf.decision_function(X), at_once.decision_function(X), rtol=1e-8)


def test_priors_follow_their_labels():
    clf = learned(NAMES[Y], priors={"ant": 3.0, "bee": 2.0})
    clf.rename("ant", "wasp")
    assert clf.priors == {"wasp": 3.0, "bee": 2.0}
    before = clf.predict_proba(X)
    clf.join(["wasp", "cow"], "animal")
    assert clf.priors == {"animal": 4.0, "bee": 2.0}
    clf.rename("dog", "hound")
    assert clf.priors == {"animal": 4.0, "bee": 2.0}, "a class without a weight has none"
    assert before.shape[1] == clf.predict_proba(X).shape[1] + 1


def test_labels_of_numpy_and_one_class_of_another_type():
    clf = FeCAMClassifier().fit(X, Y)
    clf.rename(np.int64(3), np.int64(9))
    assert clf.classes_.tolist() == [0, 1, 2, 4, 9]
    alone = FeCAMClassifier().fit(X[:5], Y[:5])
    assert alone.rename(0, "zero").classes_.tolist() == ["zero"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda clf: clf.rename("fox", "x"), UnknownLabelError, "'fox' was never learned"),
        (lambda clf: clf.rename("ant", "bee"), InputError, "Join the classes"),
        (lambda clf: clf.rename("ant", 3), InputError, "one kind of label"),
        (lambda clf: clf.rename("ant", 1.5), InputError, "boolean, an integer or a string"),
        (lambda clf: clf.join(["ant"], "x"), InputError, "1 class cannot be joined"),
        (lambda clf: clf.join([], "x"), InputError, "two classes"),
        (lambda clf: clf.join(["ant", "fox"], "x"), UnknownLabelError, "'fox'"),
    ],
)
def test_a_failed_change_leaves_the_model_as_it_was(change, error, message):
    clf = learned(NAMES[Y])
    before = clf.state_
    with pytest.raises(error, match=message):
        change(clf)
    assert clf.state_ is before


def test_averaged_domains_cannot_be_joined():
    clf = learned(NAMES[Y], domains="average")
    clf.partial_fit(X, NAMES[Y])
    with pytest.raises(SettingsError, match="domains='average'"):
        clf.join(["ant", "bee"], "insect")
