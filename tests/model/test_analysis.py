"""`explain`, `discover`, `suggest` and `find_mislabeled` of a model."""

from __future__ import annotations

import numpy as np
import pytest

import fecam as package
from fecam.errors import InputError, ModelFileError
from helpers.features import signed_features

X, Y = signed_features(8, 40, 12, 5)
X = X + 2 * np.random.default_rng(1).normal(size=(8, 12))[Y].astype(np.float32)
LEARNED = (np.arange(len(Y)) % 40 < 25) & (Y < 6)


@pytest.fixture
def model(tmp_path):
    with package.open(tmp_path / "m.fecam") as opened:
        opened.learn(X[LEARNED], Y[LEARNED])
        yield opened


def test_a_group_becomes_a_class_in_one_step_that_can_be_undone(model):
    items = X[~LEARNED]
    found = model.discover(items)
    truth = Y[~LEARNED]
    group = next(g for g in found.groups if {*truth[g.items]} == {6})
    model.learn([items[i] for i in group.items], [6] * len(group.items))
    assert model.predict(X[Y == 6][-3:]) == [6, 6, 6]
    before = model.classifier.decision_function(X[:3])[:, :6]
    model.undo()
    assert [record.label for record in model.classes] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(model.classifier.decision_function(X[:3]), before, rtol=0.2)


def test_it_explains_and_suggests_as_the_classifier_does(model):
    assert model.explain(X[0]) == model.classifier.explain(X[0])
    assert model.explain(X[0], label=3).explained == 3
    assert [one.item for one in model.suggest(X, 4)] == [one.item for one in model.suggest(X, 4)]


def test_learned_items_are_recognized_by_their_content(model):
    rows, labels = X[LEARNED].copy(), Y[LEARNED].copy()
    labels[0] = 5
    with package.open(model.path) as other:
        other.unlearn(rows[:1], [0])
        other.learn(rows[:1], [5])
        (first, *_) = other.find_mislabeled(rows, labels)
    assert (first.item, first.label, first.suggested) == (0, 5, 0)


def test_nothing_and_an_empty_model_are_explained(model, tmp_path):
    for call in (model.discover, model.suggest):
        with pytest.raises(InputError, match="there are no items"):
            call([])
    with package.open(tmp_path / "new.fecam") as new:
        for call in (new.discover, new.suggest):
            with pytest.raises(ModelFileError, match="no class yet"):
                call(X[:3])
        with pytest.raises(ModelFileError, match="no class yet"):
            new.explain(X[0])
    assert not (tmp_path / "new.fecam").exists()
