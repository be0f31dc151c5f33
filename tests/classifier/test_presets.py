"""Each preset against a slow, literal version of the computation it is named after."""

from __future__ import annotations

import numpy as np
import pytest

from fecam import FeCAMClassifier
from fecam.errors import SettingsError
from fecam.presets import PRESETS
from helpers import literal
from helpers.features import relu_features, signed_features

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


def test_domains_of_a_class_are_averaged_as_in_the_vit_scripts():
    batches = [signed_features(5, 30 + 10 * seed, 16, seed) for seed in range(3)]
    Q, _ = signed_features(5, 20, 16, 9)
    clf = FeCAMClassifier.from_preset("official-vit")
    for X, y in batches:
        clf.partial_fit(X, y)
    expected = literal.official_vit_domains(batches, Q)
    np.testing.assert_allclose(-clf.decision_function(Q), expected, rtol=1e-3)
    pooled = FeCAMClassifier.from_preset("official-vit", domains="pool")
    for X, y in batches:
        pooled.partial_fit(X, y)
    assert not np.allclose(pooled.decision_function(Q), clf.decision_function(Q), rtol=1e-2)


@pytest.mark.parametrize("normalization", [None, "variance", "correlation"])
@pytest.mark.parametrize("per_class", [6, 40])
def test_every_normalization_against_the_literal_matrix(normalization, per_class):
    """Without normalization a wrong divisor changes the distances; otherwise it cancels."""
    X, y = signed_features(4, per_class, 12, 1)
    clf = FeCAMClassifier.from_preset("vit", l2=None, normalization=normalization).fit(X, y)
    columns = []
    for _, rows in literal.by_label(X, y):
        matrix = literal.shrink(np.cov(rows, rowvar=False), 1, 0, False)
        if normalization == "variance":
            matrix = matrix / np.linalg.norm(np.diag(matrix))
        elif normalization == "correlation":
            matrix = literal.correlation(matrix)
        columns.append(literal.mahalanobis(X.astype(float), rows.mean(axis=0), matrix))
    np.testing.assert_allclose(-clf.decision_function(X), np.stack(columns, axis=1), rtol=1e-3)


def test_the_diagonal_is_that_of_the_ablations():
    X, y = signed_features(4, 30, 12, 1)
    clf = FeCAMClassifier.from_preset("vit", l2=None, covariance="diagonal", shrinkage=(0.5, 0))
    columns = []
    for _, rows in literal.by_label(X, y):
        variances = np.var(rows, axis=0, ddof=1)
        variances = variances + 0.5 * variances.mean()
        variances = variances / np.linalg.norm(variances)
        columns.append(((X - rows.mean(axis=0)) ** 2 / variances).sum(axis=1))
    np.testing.assert_allclose(
        -clf.fit(X, y).decision_function(X), np.stack(columns, axis=1), rtol=1e-3
    )


def test_the_default_against_its_formula():
    X, y = signed_features(4, 9, 12, 1)
    clf = FeCAMClassifier(tukey=None, pooling=7.0, mean_uncertainty=0.5, shrinkage=(1, 0.2))
    clf.fit(X[:-4], y[:-4])
    groups = [(label, literal.to_unit(rows)) for label, rows in literal.by_label(X[:-4], y[:-4])]
    scatters = [np.cov(rows, rowvar=False) * (len(rows) - 1) for _, rows in groups]
    pooled = sum(scatters) / sum(len(rows) - 1 for _, rows in groups)
    columns = []
    for (_, rows), scatter in zip(groups, scatters, strict=True):
        matrix = (scatter + 7 * pooled) / (len(rows) - 1 + 7)
        matrix = literal.correlation(literal.shrink(matrix, 1, 0.2, False))
        distance = literal.mahalanobis(literal.to_unit(X.astype(float)), rows.mean(axis=0), matrix)
        columns.append(distance / (1 + 0.5 / len(rows)))
    np.testing.assert_allclose(-clf.decision_function(X), np.stack(columns, axis=1), rtol=1e-3)


def test_averaged_matrices_keep_their_scale_and_can_be_replaced_by_pooled_ones():
    batches = [signed_features(3, 30 + 10 * seed, 8, seed) for seed in range(2)]
    changes = {"normalization": None, "l2": None, "domains": "average"}
    clf = FeCAMClassifier.from_preset("vit", **changes)
    for batch in batches:
        clf.partial_fit(*batch)
    Q = batches[0][0].astype(float)
    columns = []
    for label in range(3):
        parts = [X[y == label].astype(float) for X, y in batches]
        matrix = sum(np.cov(part, rowvar=False) for part in parts) / 2
        mean = np.concatenate(parts).mean(axis=0)
        columns.append(literal.mahalanobis(Q, mean, literal.shrink(matrix, 1, 0, False)))
    np.testing.assert_allclose(-clf.decision_function(Q), np.stack(columns, axis=1), rtol=1e-3)
    all_samples = [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]
    pooled = FeCAMClassifier.from_preset("vit", **{**changes, "domains": "pool"}).fit(*all_samples)
    np.testing.assert_allclose(
        clf.set_params(domains="pool").decision_function(Q), pooled.decision_function(Q), rtol=1e-3
    )


def test_common_is_the_recursion_of_equation_6():
    X, y = signed_features(9, 20, 12, 5)
    tasks = [(X[np.isin(y, t)], y[np.isin(y, t)]) for t in ([0, 1, 2, 3], [4, 5], [6, 7, 8])]
    clf = FeCAMClassifier.from_preset("ncm", covariance="common", shrinkage=(0.5, 0.25))
    for part in tasks:
        clf.partial_fit(*part)
    matrix = literal.common(tasks, (0.5, 0.25))
    centers = [rows.mean(axis=0) for _, rows in literal.by_label(X, y)]
    expected = np.stack([literal.mahalanobis(X, c, matrix) for c in centers], axis=1)
    np.testing.assert_allclose(-clf.decision_function(X), expected, rtol=1e-3)


def test_presets_set_every_parameter():
    free = {"search", "dtype", "priors"}
    for name, settings in PRESETS.items():
        assert set(settings) | free == set(FeCAMClassifier().get_params()), name


def test_an_unknown_preset_suggests_the_right_one():
    with pytest.raises(SettingsError, match=r"'papr'.*'paper'"):
        FeCAMClassifier.from_preset("papr")


def test_a_preset_with_changes():
    clf = FeCAMClassifier.from_preset("paper", shrinkage=(3, 3))
    assert clf.shrinkage == (3, 3) and clf.tukey == 0.5
