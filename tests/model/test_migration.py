"""A taught classifier or model that moves to another encoder without its samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import fecam
from fecam import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.data import Dataset
from fecam.encoders import wrap
from fecam.errors import EncoderError, InputError, SettingsError, UnknownLabelError
from fecam.migration import migrate
from fecam.model.changes import CARRIED_OVER
from helpers.small_encoders import Blind, Colours, Letters, Shades

WIDTH, NEW_WIDTH = 16, 20
CENTERS = 0.6 * np.random.default_rng(0).normal(size=(5, WIDTH))
MIX = np.random.default_rng(1).normal(size=(WIDTH, NEW_WIDTH))


def items(n, seed, classes=range(5)):
    """Return features under both encoders, which see the same items, and labels."""
    rng = np.random.default_rng([seed, n])
    y = rng.choice(list(classes), size=n)
    shared = CENTERS[y] + 0.5 * rng.normal(size=(n, WIDTH))
    before = np.maximum(shared + 1 + 0.1 * rng.normal(size=shared.shape), 0)
    after = np.maximum(shared @ MIX / 2 + 2 + 0.3 * rng.normal(size=(n, NEW_WIDTH)), 0)
    return before.astype(np.float32), after.astype(np.float32), y


TAUGHT = items(200, 0)
TEST = items(1000, 1)
UNLABELED = items(400, 2)


@pytest.fixture(scope="module")
def old():
    return FeCAMClassifier().fit(TAUGHT[0], TAUGHT[2])


def test_most_of_the_accuracy_of_teaching_anew_is_kept(old):
    anew = FeCAMClassifier().fit(TAUGHT[1], TAUGHT[2]).score(TEST[1], TEST[2])
    untouched = old.decision_function(TEST[0])
    done = migrate(old, *UNLABELED[:2])
    assert done.classifier.score(TEST[1], TEST[2]) > 0.95 * anew
    assert np.array_equal(old.decision_function(TEST[0]), untouched)
    assert done.classifier.class_count_.tolist() == old.class_count_.tolist()
    again = migrate(old, *UNLABELED[:2]).classifier
    assert np.array_equal(
        again.decision_function(TEST[1]), done.classifier.decision_function(TEST[1])
    )


def test_the_estimate_is_close_to_what_happens(old):
    estimate = migrate(old, *UNLABELED[:2]).estimate
    after = migrate(old, *UNLABELED[:2]).classifier
    accuracy = after.score(TEST[1], TEST[2])
    assert estimate.n_items == 400 and estimate.n_held_out == 80
    assert estimate.lowest_accuracy <= estimate.accuracy <= estimate.accuracy_before
    assert abs(estimate.accuracy - accuracy) < 0.1
    agreement = np.mean(after.predict(TEST[1]) == old.predict(TEST[0]))
    assert abs(estimate.agreement - agreement) < 0.1
    assert estimate.novel < 0.15 and estimate.unseen_classes == []


def test_probabilities_and_novelty_fit_the_new_features(old):
    after = migrate(old, *UNLABELED[:2]).classifier
    confidence = after.predict_proba(TEST[1]).max(axis=1).mean()
    assert abs(confidence - after.score(TEST[1], TEST[2])) < 0.12
    rejected = np.mean(after.novelty(TEST[1]) > novelty_threshold(0.05))
    assert rejected < 0.15
    strange = np.random.default_rng(0).random((200, NEW_WIDTH)).astype(np.float32) * 8
    assert np.median(after.novelty(strange)) > np.quantile(after.novelty(TEST[1]), 0.9)


def test_the_migrated_classifier_goes_on_learning(old):
    after = migrate(old, *UNLABELED[:2]).classifier
    new = TEST[1][:30] + np.float32(20) * np.eye(1, NEW_WIDTH, dtype=np.float32)
    after.partial_fit(new, np.full(30, 9))
    assert (after.predict(new) == 9).mean() > 0.9
    assert after.forget(9).score(TEST[1], TEST[2]) > 0.8


def test_known_labels_count(old):
    labels = [int(label) if i % 2 else None for i, label in enumerate(UNLABELED[2])]
    estimate = migrate(old, *UNLABELED[:2], labels=labels).estimate
    assert 20 < estimate.n_labeled < 60
    assert estimate.labeled_accuracy > 0.7 and estimate.labeled_accuracy_before > 0.7
    assert migrate(old, *UNLABELED[:2]).estimate.labeled_accuracy is None
    with pytest.raises(UnknownLabelError, match="never learned"):
        migrate(old, *UNLABELED[:2], labels=[7] * 400)
    with pytest.raises(InputError, match="3 labels for 400 items"):
        migrate(old, *UNLABELED[:2], labels=[1, 2, 3])


def test_items_of_other_classes_are_reported(old):
    few = items(100, 3, classes=[0, 1])
    estimate = migrate(old, *few[:2]).estimate
    assert estimate.unseen_classes and set(estimate.unseen_classes) <= {2, 3, 4}
    rng = np.random.default_rng(0)
    strange = (8 * rng.random((60, WIDTH))).astype(np.float32)
    estimate = migrate(old, strange, np.abs(strange @ MIX).astype(np.float32)).estimate
    assert estimate.novel > 0.5


def test_the_same_features_change_nothing(old):
    after = migrate(old, UNLABELED[0], UNLABELED[0]).classifier
    assert np.array_equal(after.predict(TEST[0]), old.predict(TEST[0]))


@pytest.mark.parametrize(
    "settings",
    [
        {"covariance": "identity"},
        {"covariance": "diagonal"},
        {"prototype": "transform-of-mean", "l2": "compare"},
        {"priors": {i: i + 1.0 for i in range(5)}},
        {"dtype": "float64", "tukey": None},
        {"domains": "average"},
    ],
)
def test_all_settings_migrate(settings):
    old = FeCAMClassifier(**settings).fit(TAUGHT[0], TAUGHT[2])
    anew = FeCAMClassifier(**settings).fit(TAUGHT[1], TAUGHT[2]).score(TEST[1], TEST[2])
    after = migrate(old, *UNLABELED[:2]).classifier
    assert after.score(TEST[1], TEST[2]) > 0.85 * anew
    assert after.get_params() == old.get_params()


def test_tensors_stay_tensors(old):
    tensors = FeCAMClassifier().fit(torch.from_numpy(TAUGHT[0]), TAUGHT[2])
    after = migrate(tensors, *map(torch.from_numpy, UNLABELED[:2])).classifier
    assert isinstance(after.state_.classes[0].mean, torch.Tensor)
    same = migrate(old, *UNLABELED[:2]).classifier.predict(TEST[1])
    assert np.mean(np.asarray(after.predict(torch.from_numpy(TEST[1]))) == same) > 0.99


def test_what_cannot_be_migrated(old):
    before, after, _ = UNLABELED
    with pytest.raises(InputError, match="19 items"):
        migrate(old, before[:19], after[:19])
    with pytest.raises(InputError, match="same samples"):
        migrate(old, before, after[:30])
    with pytest.raises(SettingsError, match="compressed"):
        migrate(old.copy().compress(4), before, after)
    fixed = FeCAMClassifier(tukey=0.5).fit(TAUGHT[0], TAUGHT[2])
    with pytest.raises(InputError, match=r"tukey=0\.5, such as -"):
        migrate(fixed, before, after - 3)
    assert migrate(old, before, after - 3).classifier.tukey_ is None
    empty = FeCAMClassifier().fit(TAUGHT[0][:2], [1, 1]).forget(1)
    with pytest.raises(NotFittedError, match="no classes to migrate"):
        migrate(empty, before, after)


# -- models ----------------------------------------------------------------------------------------


def color(seed, name):
    rng = np.random.default_rng([seed, ord(name[0])])
    base = {"blue": (20, 30, 210), "green": (20, 190, 40), "red": (210, 30, 20)}[name]
    return (np.asarray(base) + rng.integers(0, 40, size=(12, 12, 3))).astype(np.uint8)


NAMES = ["blue", "green", "red"]
PICTURES = [color(i, name) for i in range(20) for name in NAMES]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))
    with fecam.open(tmp_path / "m.fecam", encoder=Colours()) as model:
        model.learn([color(100 + i, name) for i in range(4) for name in NAMES], 4 * NAMES)
        yield model


def test_a_model_is_copied_for_the_new_encoder(model):
    content, seen = model.path.read_bytes(), []
    path = model.path.with_name("new.fecam")
    done = model.migrate(Shades(), PICTURES, path)
    assert done.path == str(path) and done.encoder == "shades" and done.unreadable == []
    assert model.path.read_bytes() == content
    with fecam.open(path, encoder=Shades()) as migrated:
        test = [color(7, name) for name in NAMES]
        assert migrated.predict(test) == NAMES
        assert [(each.label, each.count) for each in migrated.classes] == [
            (name, 4) for name in NAMES
        ]
        (step,) = migrated.steps
        assert "migrated from m.fecam (colours) to shades" in step.note
        again = [color(100 + i, "red") for i in range(4)]
        assert migrated.learn(again, ["red"] * 4).n_duplicates == {"red": 3}  # one for the mark
        with pytest.raises(InputError, match="carried over from another encoder"):
            migrated.unlearn(again, ["red"] * 4)
        migrated.learn([color(9, "red")], ["red"])
    with pytest.raises(InputError, match="exists already"):
        model.migrate(Shades(), PICTURES, path)
    data = Dataset("p", "images", PICTURES, np.zeros(60, int), ("x",), "p-1")
    done = model.migrate(
        Shades(),
        data,
        None,
        labeled=[color(50 + i, name) for i in range(6) for name in NAMES],
        labels=6 * NAMES,
        report=lambda now: seen.append((now.done, now.total)),
    )
    assert done.path is None and done.estimate.n_items == 78 and done.estimate.n_labeled > 0
    assert seen[0][1] == 156 and max(seen)[0] <= 156 and seen == sorted(seen)


def test_migrated_copies_can_be_merged(model, tmp_path):
    paths = [tmp_path / "a.fecam", tmp_path / "b.fecam"]
    model.migrate(Shades(), PICTURES, paths[0])
    with fecam.open(tmp_path / "other.fecam", encoder=Colours()) as other:
        other.learn([color(300 + i, "red") for i in range(4)], ["red"] * 4)
        other.learn([color(300 + i, "blue") for i in range(4)], ["blue"] * 4)
        other.migrate(Shades(), PICTURES, paths[1])
    with fecam.open(paths[0], encoder=Shades()) as migrated:
        migrated.merge(paths[1])
        assert {each.label: each.count for each in migrated.classes}["red"] == 8


def test_unreadable_items_are_left_out_of_both(model, tmp_path):
    dark = [np.zeros((12, 12, 3), np.uint8), *PICTURES]
    done = model.migrate(Blind(), dark, None)
    assert len(done.unreadable) == 1 and "too dark" in done.unreadable[0]
    assert done.estimate.n_items == 60
    with pytest.raises(InputError, match="cannot be read"):
        model.migrate(Blind(), dark, None, strict=True)
    with pytest.raises(InputError, match="none of 1 item"):
        model.migrate(Blind(), dark[:1], None)


def test_encoders_that_do_not_fit(model, tmp_path):
    with pytest.raises(EncoderError, match="nothing to migrate"):
        model.migrate(Colours(), PICTURES, None)
    with pytest.raises(EncoderError, match="is for texts"):
        model.migrate(Letters(), PICTURES, None)
    means = wrap(lambda images: [[x.mean()] for x in images], name="x", kind="images")
    with pytest.raises(EncoderError, match="no fingerprint"):
        model.migrate(means, PICTURES, None)
    with fecam.open(tmp_path / "f.fecam") as features:
        features.learn(TAUGHT[0], TAUGHT[2])
        with pytest.raises(EncoderError, match=r"fecam\.migration\.migrate"):
            features.migrate(Shades(), PICTURES, None)
    assert CARRIED_OVER.tolist() == [0]
