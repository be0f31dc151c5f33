"""Each preset against a slow, literal version of the computation it is named after."""

from __future__ import annotations

import numpy as np
import pytest

import literal
from conftest import relu_features, signed_features
from fecam import FeCAMClassifier
from fecam.errors import SettingsError
from fecam.presets import PRESETS

CASES = [
    # classes, samples a class, width, dead features: more and fewer samples than features
    (10, 60, 32, 0),
    (10, 60, 32, 3),
    (8, 12, 48, 0),
    (6, 5, 40, 2),
    (5, 150, 64, 0),
]


def features_for(preset, case, seed):
    n_classes, per_class, width, dead = case
    if "vit" in preset or preset == "ncm":
        return signed_features(n_classes, per_class, width, seed)
    return relu_features(n_classes, per_class, width, seed, dead=dead)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("preset", literal.PRESETS)
def test_distances_equal_the_literal_ones(preset, case):
    X, y = features_for(preset, case, seed=3)
    Q, _ = features_for(preset, (case[0], 30, *case[2:]), seed=3)
    expected = literal.PRESETS[preset](X, y, Q)
    clf = FeCAMClassifier.from_preset(preset).fit(X, y)
    np.testing.assert_allclose(-clf.decision_function(Q), expected, rtol=1e-3)


@pytest.mark.parametrize("preset", literal.PRESETS)
def test_predictions_are_the_literal_ones(preset):
    agree = total = 0
    for seed in range(6):
        for case in CASES:
            X, y = features_for(preset, case, seed)
            # Queries between the classes, where a wrong formula would show.
            rng = np.random.default_rng(seed)
            Q = np.abs(X[rng.permutation(len(X))] * 0.5 + X * 0.5)[:200]
            expected = literal.PRESETS[preset](X, y, Q).argmin(axis=1)
            got = FeCAMClassifier.from_preset(preset).fit(X, y).predict(Q)
            agree += int((got == expected).sum())
            total += len(Q)
    assert agree >= 0.999 * total, f"{agree} of {total} predictions agree"


def test_a_class_that_comes_back_is_averaged_as_the_vit_scripts_do():
    visits = [signed_features(5, 30 + 10 * seed, 16, seed) for seed in range(3)]
    Q, _ = signed_features(5, 20, 16, 9)
    clf = FeCAMClassifier.from_preset("official-vit")
    for X, y in visits:
        clf.partial_fit(X, y)
    expected = literal.official_vit_domains(visits, Q)
    np.testing.assert_allclose(-clf.decision_function(Q), expected, rtol=1e-3)
    pooled = FeCAMClassifier.from_preset("official-vit", domains="pool")
    for X, y in visits:
        pooled.partial_fit(X, y)
    assert not np.allclose(pooled.decision_function(Q), clf.decision_function(Q), rtol=1e-2)


def test_common_is_the_recursion_of_equation_6():
    X, y = signed_features(9, 20, 12, 5)
    tasks = [(X[np.isin(y, t)], y[np.isin(y, t)]) for t in ([0, 1, 2, 3], [4, 5], [6, 7, 8])]
    clf = FeCAMClassifier.from_preset("ncm", covariance="common", shrinkage=(0.5, 0.25))
    for part in tasks:
        clf.partial_fit(*part)
    matrix = literal.common(tasks, (0.5, 0.25))
    centres = [rows.mean(axis=0) for _, rows in literal.by_label(X, y)]
    expected = np.stack([literal.mahalanobis(X, c, matrix) for c in centres], axis=1)
    np.testing.assert_allclose(-clf.decision_function(X), expected, rtol=1e-3)


def test_presets_pin_every_setting_that_the_default_might_change():
    free = {"search", "dtype"}
    for name, settings in PRESETS.items():
        assert set(settings) | free == set(FeCAMClassifier().get_params()), name


def test_an_unknown_preset_suggests_the_right_one():
    with pytest.raises(SettingsError, match=r"'papr'.*'paper'"):
        FeCAMClassifier.from_preset("papr")


def test_a_preset_can_be_changed_in_one_go():
    clf = FeCAMClassifier.from_preset("paper", shrinkage=(3, 3))
    assert clf.shrinkage == (3, 3) and clf.tukey == 0.5
