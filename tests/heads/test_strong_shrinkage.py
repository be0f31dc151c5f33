"""FeCAM at the strong shrinkage of few-shot runs: what is left of each class's matrix."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.heads import make
from helpers import literal
from helpers.features import relu_features

X, y = relu_features(5, 12, 10, 0)
QUERIES = relu_features(5, 6, 10, 1)[0]


def fecam(**options):
    head = make("fecam", preset="few-shot", **options)
    return head.partial_fit(X, y)


def differences():
    """Sums of squared and plain differences of unit queries and prototypes, after Tukey."""
    queries = literal.to_unit(np.sqrt(QUERIES.astype(np.float64)))
    means = [literal.to_unit(np.sqrt(X[y == c].astype(np.float64).mean(0))) for c in range(5)]
    d = queries[:, None] - np.stack(means)
    return np.square(d).sum(2), d.sum(2)


def test_without_the_second_gamma_it_becomes_the_cosine_after_tukey():
    squares, _ = differences()
    head = fecam(shrinkage=(1e7, 0))
    np.testing.assert_allclose(-head.decision_function(QUERIES), squares, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(head.predict(QUERIES), squares.argmin(1))


def test_with_both_gammas_one_number_per_class_is_left():
    r"""With r = V2 / V1 the distance is (|d|^2 - r (1'd)^2 / (1 - r + n r)) / (1 - r)."""
    squares, sums = differences()
    expected = np.empty_like(squares)
    for c in range(5):
        matrix = np.cov(np.sqrt(X[y == c].astype(np.float64)), rowvar=False)
        n = len(matrix)
        r = (matrix.sum() - np.trace(matrix)) / (n * (n - 1)) / (np.trace(matrix) / n)
        expected[:, c] = (squares[:, c] - r * sums[:, c] ** 2 / (1 - r + n * r)) / (1 - r)
    for gamma, tolerance in ((1e6, 1e-3), (10200, 5e-3)):
        ours = -fecam(shrinkage=(gamma, gamma)).decision_function(QUERIES)
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_only_lending_distinguishes_teen_from_the_cosine(alpha):
    teen, cosine = make("teen", alpha=alpha), make("ncm", metric="cosine")
    for task in (y < 3, y > 2):
        teen.partial_fit(X[task], y[task])
        cosine.partial_fit(X[task], y[task])
    gap = np.abs(teen.decision_function(3 * QUERIES) - cosine.decision_function(QUERIES)).max(0)
    assert (gap[:3] < 1e-5).all() and (
        (gap[3:] < 1e-5).all() if not alpha else gap[3:].min() > 1e-3
    )
