"""Exhaustive distances, and the k smallest of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fecam.core.covariance import whiten
from fecam.core.distances import ExhaustiveDistances, coordinate_median, group_runs, k_smallest
from fecam.core.precision import DensePrecision
from fecam.core.tuning import SearchTuning
from helpers import literal
from helpers.matrices import random_matrix


def test_distances_do_not_depend_on_the_size_of_blocks():
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(50, 6))
    roots = [whiten(random_matrix(seed, 6)) for seed in range(3)]
    separate = [DensePrecision(rng.normal(size=6), root, 0.5) for root in roots]
    shared = [DensePrecision(rng.normal(size=6), roots[0], 1.0 + i) for i in range(4)]
    for precisions in (separate, shared):
        distances = ExhaustiveDistances(precisions, np.float64)(queries)
        columns = []
        for precision in precisions:
            covariance = np.linalg.inv(precision.whitening @ precision.whitening.T)
            square = literal.mahalanobis(queries, precision.center, covariance)
            columns.append(precision.scale * square)
        np.testing.assert_allclose(distances, np.stack(columns, axis=1), rtol=1e-8)
        tuning = SearchTuning(block_bytes=7 * 6 * 8)
        small = ExhaustiveDistances(precisions, np.float64, tuning)
        assert [len(block) for block in small.blocks(queries)] == [7] * 7 + [1]
        np.testing.assert_allclose(small(queries), distances, rtol=1e-9)


def test_ties_go_to_the_first_class():
    distances = np.array([[2.0, 1.0, 1.0, 3.0]])
    assert k_smallest(distances, 1).tolist() == [[1]]
    assert k_smallest(distances, 3).tolist() == [[1, 2, 0]]


def test_distances_that_differ_by_rounding_are_ties():
    eps = np.finfo(np.float64).eps
    distances = np.array([[2.0, 1 + eps, 1.0, 3.0]])
    assert k_smallest(distances, 1).tolist() == [[1]]
    assert k_smallest(distances, 2).tolist() == [[1, 2]]


@given(st.integers(0, 1000))
def test_the_order_of_ties_does_not_depend_on_k(seed):
    steps = np.random.default_rng(seed).integers(0, 5, size=(4, 7))
    distances = 1 + 16 * steps * np.finfo(np.float64).eps  # each third step is beyond rounding
    order = k_smallest(distances, 7)
    for k in range(1, 7):
        np.testing.assert_array_equal(k_smallest(distances, k), order[:, :k])


@given(st.integers(0, 1000), st.integers(1, 9))
def test_k_smallest_sorts_distances(seed, k):
    distances = np.random.default_rng(seed).uniform(size=(5, 9))
    np.testing.assert_array_equal(k_smallest(distances, k), np.argsort(distances, axis=1)[:, :k])


def test_an_outlier_does_not_move_the_origin():
    centers = np.random.default_rng(0).normal(size=(20, 4))
    centers[3] = 1e9
    assert np.abs(coordinate_median(centers)).max() < 1


def test_runs_of_no_values():
    assert list(group_runs(np.array([], int))) == []
