"""TEEN against its formula, and what must hold."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.heads import make
from helpers.features import relu_features

X, y = relu_features(6, 12, 8, 0)
QUERIES, _ = relu_features(6, 5, 8, 0)
TASKS = [y < 3, (y == 3) | (y == 4), y == 5]


def taught(tasks=TASKS, scale=1.0, **options):
    head = make("teen", **options)
    for task in tasks:
        head.partial_fit(scale * X[task], y[task])
    return head


def literal(query, label, alpha, scale):
    """The score of a class, vector by vector."""
    means = [X[y == c].mean(0) for c in range(6)]
    prototype = means[label] / np.sqrt(np.sum(means[label] ** 2))
    if label >= 3:
        base = [mean / np.sqrt(np.sum(mean**2)) for mean in means[:3]]
        weights = [np.exp(scale * prototype @ one) for one in base]
        lent = sum(w * one for w, one in zip(weights, base, strict=True)) / sum(weights)
        prototype = (1 - alpha) * prototype + alpha * lent / np.sqrt(np.sum(lent**2))
    return query @ prototype / np.sqrt(np.sum(query**2) * np.sum(prototype**2))


@pytest.mark.parametrize(("alpha", "scale"), [(0.5, 16.0), (0.1, 4.0)])
def test_scores_equal_the_formula(alpha, scale):
    scores = taught(alpha=alpha, softmax_scale=scale).decision_function(QUERIES)
    for i, query in enumerate(QUERIES):
        for label in range(6):
            expected = literal(query, label, alpha, scale)
            assert scores[i, label] == pytest.approx(expected, rel=1e-6)


def test_without_a_share_it_is_the_nearest_mean_by_cosine():
    nearest = make("ncm", metric="cosine").fit(X, y)
    np.testing.assert_allclose(
        taught(alpha=0.0).decision_function(QUERIES), nearest.decision_function(QUERIES), rtol=1e-6
    )


def test_with_all_of_it_new_prototypes_are_in_the_span_of_the_base():
    head = taught(alpha=1.0)
    prototypes = head._derive(head.state_)
    _, residual, *_ = np.linalg.lstsq(prototypes[:3].T, prototypes[3:].T, rcond=None)
    assert np.abs(residual).max() < 1e-12


def test_neither_the_scale_of_features_nor_the_order_of_new_classes_matters():
    scores = taught().decision_function(QUERIES)
    scaled = taught(scale=7.0).decision_function(7.0 * QUERIES)
    np.testing.assert_allclose(scaled, scores, rtol=1e-6)
    for tasks in ([TASKS[0], TASKS[2], TASKS[1]], [TASKS[0], y >= 3]):
        np.testing.assert_allclose(taught(tasks).decision_function(QUERIES), scores, rtol=1e-9)


def test_a_new_class_changes_no_other_score():
    before = taught(TASKS[:2]).decision_function(QUERIES)
    np.testing.assert_array_equal(taught().decision_function(QUERIES)[:, :5], before)
