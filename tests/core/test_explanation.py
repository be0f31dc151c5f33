"""Explanations: their sums are the squared distance, and they equal a slow literal version."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.core.tuning import SearchTuning
from fecam.errors import InputError, UnknownLabelError
from helpers.features import relu_features, signed_features

SETTINGS = [
    {},
    {"covariance": "pooled"},
    {"covariance": "common"},
    {"covariance": "identity"},
    {"covariance": "diagonal"},
    {"covariance": "diagonal", "pooling": 0.0, "normalization": None},
    {"normalization": None, "pooling": 12.0},
    {"normalization": "variance"},
    {"pooling": 0.0, "shrinkage": (1.0, 0.5)},
    {"domains": "average"},
    {"shrinkage": (0.0, 0.0), "pooling": 0.0, "normalization": None},
]
PRESETS = ["paper", "few-shot", "vit", "official-resnet", "official-vit", "avalanche", "ncm"]


def fitted(clf, per_class=30, width=12):
    X, y = relu_features(5, per_class, width, 3)
    for rows in (slice(None, None, 2), slice(1, None, 2)):
        clf.partial_fit(X[rows], y[rows])
    return clf, X


def literal(clf, x, label):
    """Return the contributions along eigenvectors and of features, from the public attributes."""
    difference = clf.state_.transform(x[None])[0]
    if clf.metric_.unit_compare:
        difference = difference / np.linalg.norm(difference)
    difference = difference - clf.means_[clf.classes_.tolist().index(label)]
    matrix = clf.covariance_(label)
    values, vectors = np.linalg.eigh(matrix)
    along = np.array([(vectors[:, k] @ difference) ** 2 / values[k] for k in range(len(values))])
    return along[::-1], difference * np.linalg.solve(matrix, difference)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_all_parts_sum_to_the_squared_distance(settings):
    clf, X = fitted(FeCAMClassifier(dtype="float64", **settings))
    for x in X[::17].astype(np.float64):
        why = clf.explain(x, k=5, n_parts=12)
        distances = -clf.decision_function(x[None])[0]
        for near in why.nearest:
            parts = near.from_samples + near.from_prior + near.from_shrinkage
            expected = distances[clf.classes_.tolist().index(near.label)]
            assert near.distance == pytest.approx(expected, rel=1e-6)
            assert parts == pytest.approx(near.distance, rel=1e-9)
            assert min(near.from_samples, near.from_prior) >= 0
            assert near.from_shrinkage >= -1e-9 * near.distance
        own = why.nearest[0].distance
        assert sum(part.contribution for part in why.directions) == pytest.approx(own, rel=1e-6)
        assert sum(part.contribution for part in why.features) == pytest.approx(own, rel=1e-9)
        assert why.other_directions == pytest.approx(0, abs=1e-6 * own)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_explained_too(preset):
    clf, X = fitted(FeCAMClassifier.from_preset(preset), per_class=40)
    x = X[7]
    why = clf.explain(x, n_parts=2)
    assert why.label == clf.predict(x[None])[0]
    assert why.nearest[0].distance == pytest.approx(-clf.decision_function(x[None]).max(), rel=1e-3)
    total = sum(part.contribution for part in why.directions) + why.other_directions
    assert total == pytest.approx(why.nearest[0].distance, rel=1e-3)
    total = sum(part.contribution for part in why.features) + why.other_features
    assert total == pytest.approx(why.nearest[0].distance, rel=1e-6)


@pytest.mark.parametrize("label", [0, 3])
def test_directions_and_features_equal_the_literal_version(label):
    clf, X = fitted(FeCAMClassifier(dtype="float64"))
    why = clf.explain(X[40].astype(np.float64), label=label, n_parts=12)
    along, features = literal(clf, X[40].astype(np.float64), label)
    assert why.explained == label and label in {near.label for near in why.nearest}
    for part in why.directions:
        assert part.contribution == pytest.approx(along[part.number - 1], rel=1e-6, abs=1e-9)
        assert part.deviation**2 == pytest.approx(part.contribution, rel=1e-9)
        assert 0 <= part.from_samples <= 1
    for part in why.features:
        assert part.contribution == pytest.approx(features[part.feature], rel=1e-6, abs=1e-9)
    order = [part.contribution for part in why.directions]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("priors", [None, "empirical", {3: 20.0}])
@pytest.mark.parametrize("preset", ["default", "paper", "ncm"])
def test_a_far_class_has_the_probability_of_predict_proba(preset, priors):
    clf = FeCAMClassifier() if preset == "default" else FeCAMClassifier.from_preset(preset)
    clf, X = fitted(clf.set_params(priors=priors))
    for x in X[::29]:
        probabilities = clf.predict_proba(x[None])[0]
        for label in range(5):
            near = clf.explain(x, k=2, label=label).nearest
            assert label in {each.label for each in near}
            if len(near) > 2:
                expected = pytest.approx(probabilities[label], rel=0.03, abs=1e-6)
                assert near[2].label == label and near[2].probability == expected


def test_the_explanation_of_a_far_class_derives_few_precisions(monkeypatch):
    X, y = relu_features(40, 70, 64, 0)
    learned = FeCAMClassifier.from_preset("paper").partial_fit(X, y)
    monkeypatch.setattr(FeCAMClassifier, "_tuning", SearchTuning(cg_min_flops=0, cg_cost=1.0))
    clf = FeCAMClassifier.from_preset("paper").set_state(learned.state_)
    assert clf.explain(X[0], k=2, label=39).explained == 39
    assert "precisions" not in vars(clf.predictor_)


def test_the_prior_explains_a_class_of_one_sample_and_the_samples_one_of_many():
    X, y = signed_features(3, 400, 6, 0)
    few = np.flatnonzero((y != 2) | (np.arange(len(y)) % 400 == 0))
    clf = FeCAMClassifier(shrinkage=(0.0, 0.0)).fit(X[few], y[few])
    why = clf.explain(X[0], k=3)
    by_label = {near.label: near for near in why.nearest}
    assert by_label[2].count == 1 and by_label[2].from_samples == 0
    assert by_label[2].from_prior == pytest.approx(by_label[2].distance)
    assert by_label[0].from_samples > 0.5 * by_label[0].distance


def test_it_agrees_with_the_predictions():
    clf, X = fitted(FeCAMClassifier())
    for x in X[::31]:
        why, detailed = clf.explain(x, k=3), clf.predict_detailed(x[None], 3)
        assert [near.label for near in why.nearest] == detailed.labels[0].tolist()
        assert why.novelty == pytest.approx(float(detailed.novelty[0]), rel=1e-4, abs=1e-4)
        found = [near.probability for near in why.nearest]
        np.testing.assert_allclose(found, detailed.probabilities[0], rtol=1e-4, atol=1e-6)
        assert why.margin == pytest.approx(why.nearest[1].distance - why.nearest[0].distance)


def test_names_of_columns_and_compressed_models():
    pandas = pytest.importorskip("pandas")
    X, y = relu_features(4, 30, 16, 1)
    frame = pandas.DataFrame(X, columns=[f"column {i}" for i in range(16)])
    clf = FeCAMClassifier().fit(frame, y)
    why = clf.explain(frame.iloc[[3]])
    assert all(part.name == f"column {part.feature}" for part in why.features)
    small = clf.copy().compress(6)
    why = small.explain(frame.iloc[[3]], n_parts=9)
    assert len(why.features) == 6 and why.features[0].name == str(why.features[0].feature)


def test_one_class_has_no_margin_and_tensors_are_explained():
    torch = pytest.importorskip("torch")
    X, y = relu_features(1, 9, 6, 1)
    clf = FeCAMClassifier().fit(torch.from_numpy(X), y)
    why = clf.explain(torch.from_numpy(X[0]))
    assert why.margin is None and len(why.nearest) == 1
    reference = FeCAMClassifier().fit(X, y).explain(X[0])
    assert why.nearest[0].distance == pytest.approx(reference.nearest[0].distance, rel=1e-4)


def test_bad_arguments_are_explained():
    clf, X = fitted(FeCAMClassifier())
    with pytest.raises(InputError, match=r"x has 2 rows\. Give one sample"):
        clf.explain(X[:2])
    with pytest.raises(InputError, match="k=0 must be an integer"):
        clf.explain(X[0], k=0)
    with pytest.raises(UnknownLabelError, match="9 was never learned"):
        clf.explain(X[0], label=9)
    with pytest.raises(ValueError, match="12"):
        clf.explain(X[0, :5])
