"""`fecam.open`: models that encode raw items with the encoder of their file."""

from __future__ import annotations

import os

import numpy as np
import pytest

import fecam
from fecam import FeCAMClassifier
from fecam.data import Dataset
from fecam.encoders import wrap
from fecam.errors import EncoderError, InputError, ModelFileError, UnknownLabelError
from fecam.presets import preset
from helpers.features import relu_features

X, Y = relu_features(3, 12, 6, 0)
NAMES = np.asarray(["cat", "dog", "owl"])
WORDS = ["a small cat", "the cat", "cats", "a dog!", "the dog barks!", "dogs!"]
KINDS = ["cat"] * 3 + ["dog"] * 3


def letters(texts):
    return [[text.count(letter) + 0.1 * len(text) for letter in "acdgot!"] for text in texts]


def encoder(name="letters", fingerprint="letters-1"):
    return wrap(letters, name=name, kind="texts", fingerprint=fingerprint)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "pets.fecam"


def test_model_takes_raw_items(path):
    with fecam.open(path, encoder=encoder()) as model:
        assert not model.exists and model.version == 0 and model.classes == []
        result = model.learn(WORDS, KINDS, note="by hand")
        assert result.new_classes == ["cat", "dog"] and result.n_learned == {"cat": 3, "dog": 3}
        assert model.predict(["one cat", "one dog!"]) == ["cat", "dog"]
        (prediction,) = model.predict_detailed(["one cat"], k=2)
        assert [candidate.label for candidate in prediction.nearest] == ["cat", "dog"]
        assert model.encode(["one cat"]).tolist() == pytest.approx(
            np.asarray(letters(["one cat"])), abs=1e-6
        )
    with fecam.open(path, encoder=encoder(), readonly=True) as model:
        assert model.kind == "texts" and model.encoder_record.name == "letters"
        assert model.predict(["one cat"]) == ["cat"]
        with pytest.raises(ModelFileError, match="read only"):
            model.learn(["more cats"], ["cat"])


def test_model_equals_classifier_on_features(path):
    clf = FeCAMClassifier(**preset("paper")).partial_fit(X, NAMES[Y])
    with fecam.open(path, settings=preset("paper")) as model:
        model.learn(X, NAMES[Y])
        np.testing.assert_allclose(model.classifier.decision_function(X), clf.decision_function(X))
        assert model.predict(X, reject=0.05) == clf.predict(X, reject=0.05).tolist()
        predictions = model.predict_detailed(X, k=2, reject=0.05)
    assert [p.label for p in predictions] == clf.predict(X, reject=0.05).tolist()
    np.testing.assert_allclose([p.novelty for p in predictions], clf.novelty(X), rtol=1e-5)
    probabilities = clf.predict_proba(X)
    for row, prediction in enumerate(predictions):
        assert len(prediction.nearest) == 2
        best = prediction.nearest[0]
        assert best.label == clf.predict(X[row : row + 1])[0]
        assert best.probability == pytest.approx(probabilities[row].max(), abs=0.03)
        assert best.distance == pytest.approx(-clf.decision_function(X[row : row + 1]).max())


def test_duplicates_are_skipped(path):
    with fecam.open(path) as model:
        model.learn(X, NAMES[Y])
        version = model.version
        result = model.learn(X, NAMES[Y])
        assert result.step is None and result.n_duplicates == dict.fromkeys(NAMES, 12)
        assert model.version == version
        result = model.learn(np.concatenate([X[:2], X[:2] + 1]), ["cat"] * 4)
        assert result.n_duplicates == {"cat": 2} and result.n_learned == {"cat": 2}
        assert model.learn(X[:2], ["dog"] * 2).n_learned == {"dog": 2}, "under another label"
        assert model.learn(X[:2], ["cat"] * 2, allow_duplicates=True).n_learned == {"cat": 2}
        model.unlearn(X[:2], ["cat"] * 2)
        assert model.learn(X[:1], ["cat"]).n_duplicates == {"cat": 1}, "it was learned twice"
        model.unlearn(X[:2], ["cat"] * 2)
        assert model.learn(X[:1], ["cat"]).n_learned == {"cat": 1}


def test_idempotency_key_is_learned_once(path):
    with fecam.open(path) as model:
        first = model.learn(X, NAMES[Y], idempotency_key="morning")
        again = model.learn(X + 1, NAMES[Y], idempotency_key="morning")
        assert again.step == first.step and again.n_learned == first.n_learned
        assert model.version == 1
        model.learn(X + 1, NAMES[Y], idempotency_key="noon")
        assert model.steps[0].idempotency_key == "noon" and model.version == 2
        model.undo()
        assert model.learn(X + 1, NAMES[Y], idempotency_key="noon").step == 3, "it was undone"
    with fecam.open(path) as model:
        assert model.learn(X + 9, NAMES[Y], idempotency_key="noon").step == 3, "the file remembers"


def test_learn_of_a_dataset_skips_its_test_part(path):
    is_test = np.asarray([False, False, True] * 2)
    data = Dataset("pets", "texts", WORDS, [0, 0, 0, 1, 1, 1], ("cat", "dog"), "p", is_test)
    seen = []
    with fecam.open(path, encoder=encoder()) as model:
        result = model.learn(data, report=lambda progress: seen.append(progress.done))
        assert result.n_learned == {"cat": 2, "dog": 2} and seen[-1] == 4
        features = model.features_of(data)
        assert features.kind == "features" and len(features) == 6
        assert model.unlearn(data).n_learned == {"cat": 2, "dog": 2}
        assert model.classes == []


def test_integer_labels(path):
    with fecam.open(path) as model:
        model.learn(X, Y)
        data = Dataset("more", "features", X + 1, Y, ("0", "1", "2"), "more")
        assert model.learn(data).n_learned == {0: 12, 1: 12, 2: 12}
        assert model.label_of("2") == 2
        named = Dataset("named", "features", X + 2, Y, ("0", "1", "two"), "named")
        with pytest.raises(InputError, match=r"integers.*'two'"):
            model.learn(named)


def test_wrong_encoder_is_rejected(path):
    with fecam.open(path, encoder=encoder()) as model:
        model.learn(WORDS, KINDS)
    with pytest.raises(EncoderError, match=r"learned with the encoder letters.*has another"):
        fecam.open(path, encoder=encoder(fingerprint="letters-2"))
    with fecam.open(path) as model, pytest.raises(EncoderError, match="no encoder 'letters'"):
        model.predict(["one cat"])
    with fecam.open(path.with_name("plain")) as model:
        model.learn(X, Y)
        with pytest.raises(InputError, match="no encoder"):
            model.predict(["one cat"])
        with pytest.raises(InputError, match="6 columns"):
            model.predict(np.ones((2, 5)))
    again = r"not contain.*no encoder 'letters'.*Pass encoder= again: fecam.open.*wrap\(function"
    with fecam.open(path) as model, pytest.raises(EncoderError, match=again):
        model.predict(["one cat"])
    with pytest.raises(EncoderError, match="without an encoder"):
        fecam.open(path.with_name("plain"), encoder=encoder())
    with pytest.raises(EncoderError, match="no fingerprint"):
        fecam.open(path.with_name("new"), encoder=encoder(fingerprint=None)).learn(WORDS, KINDS)
    assert not path.with_name("new").exists()


class Sentences:
    """Like a SentenceTransformer: a method encode, from texts to rows."""

    def encode(self, texts):
        return np.asarray([[text.count(letter) for letter in "acdgot"] for text in texts])


def test_an_object_with_encode_is_wrapped(path):
    for own in (Sentences(), Sentences().encode):
        with pytest.raises(EncoderError, match=r"wrap\(encoder, name='\w+', kind='texts', finger"):
            fecam.open(path, encoder=own)
        wrapped = wrap(own, name="s", kind="texts", fingerprint="s-1")
        with fecam.open(path, encoder=wrapped) as model:
            model.learn(WORDS, KINDS)
        with fecam.open(path, encoder=wrapped) as model:
            assert model.predict(WORDS) == list(KINDS)
    with pytest.raises(EncoderError, match="encoder=7 is no encoder"):
        fecam.open(path, encoder=7)


def test_merge_counts_nothing_twice(path):
    other = path.with_name("other.fecam")
    with fecam.open(path) as model, fecam.open(other) as second:
        model.learn(X, NAMES[Y])
        second.learn(np.concatenate([X[:3], X + 1]), ["cat"] * 3 + ["emu"] * len(X))
        with pytest.raises(InputError, match=r"3 samples.*'cat'.*twice"):
            model.merge(second)
        assert model.version == 1
        step = model.merge(other, allow_duplicates=True)
        assert step.counts == {"cat": 3, "emu": 36} and "other.fecam" in step.note
        model.undo()
        second.unlearn(X[:3], ["cat"] * 3)
        second.learn(X[:2] + 5, ["elk"] * 2)
        assert model.merge(second, min_count=3).counts == {"emu": 36}
        with pytest.raises(InputError, match="no class of at least 100 samples"):
            model.merge(second, min_count=100)
    with fecam.open(path.with_name("joint.fecam")) as joint:
        joint.merge(path)
        assert [one.label for one in joint.classes] == ["cat", "dog", "emu", "owl"]
        assert joint.steps[0].what == "merge"


def test_merge_equals_learning_everything(path):
    half = np.arange(len(X)) % 2 == 0
    with (
        fecam.open(path) as a,
        fecam.open(path.with_name("b")) as b,
        fecam.open(path.with_name("c")) as c,
    ):
        a.learn(X[half], NAMES[Y[half]])
        b.learn(X[~half], NAMES[Y[~half]])
        c.learn(X, NAMES[Y])
        a.merge(b)
        one, two = (m.classifier.refresh().decision_function(X) for m in (a, c))
        np.testing.assert_allclose(one, two, rtol=1e-3)
        assert [r.count for r in a.classes] == [r.count for r in c.classes]


@pytest.mark.parametrize(
    ("items", "labels", "message"),
    [
        ("a text", ["cat"], "must be a list"),
        (["one", "two"], ["cat"], "2 items but 1 label:"),
        ([], [], "no items"),
    ],
)
def test_invalid_items_and_labels(path, items, labels, message):
    with fecam.open(path, encoder=encoder()) as model, pytest.raises(InputError, match=message):
        model.learn(items, labels)
    assert not path.exists()


def test_missing_file_class_and_label(path):
    with pytest.raises(ModelFileError, match=r"no such file.*fecam learn"):
        fecam.open(path, readonly=True)
    with fecam.open(path) as model:
        with pytest.raises(ModelFileError, match="has no class yet"):
            model.predict([[1.0]])
        with pytest.raises(InputError, match="count=0"):
            model.undo(0)
        model.learn(X, NAMES[Y])
        with pytest.raises(UnknownLabelError, match=r"Did you mean 'dog'"):
            model.label_of("doge")
        with pytest.raises(InputError, match="k=0"):
            model.predict_detailed(X, k=0)
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_two_models_create_the_same_file(path):
    with fecam.open(path) as one, fecam.open(path) as two:
        one.learn(X, NAMES[Y])
        two.learn(X + 1, NAMES[Y])
        assert two.version == 2 and [r.count for r in two.classes] == [24] * 3
        assert one.reload() and one.version == 2


def test_images_of_all_types(path, tmp_path):
    image = pytest.importorskip("PIL.Image")
    colours = {"red": (220, 30, 30), "blue": (20, 40, 200)}
    red, blue = (np.full((20, 20, 3), colour, np.uint8) for colour in colours.values())
    image.fromarray(red).save(tmp_path / "red.png")
    looks = wrap(
        lambda images: [np.asarray(one, np.float32).mean(axis=(0, 1)) / 255 for one in images],
        name="mean colour",
        fingerprint="mean-colour-1",
    )
    with fecam.open(path, encoder=looks) as model:
        model.learn([red, blue], ["red", "blue"])
        assert model.learn([red], ["red"]).n_duplicates == {"red": 1}
        asked = [red, image.fromarray(blue)]
        assert model.predict([np.asarray(one) for one in asked]) == ["red", "blue"]
