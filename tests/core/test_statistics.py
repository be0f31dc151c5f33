"""Statistics of a class: sums are exact, and removal undoes combination."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam.core import scatter
from fecam.core.scatter import to_dense
from fecam.core.statistics import combine, remove, summarize_class

seeds = st.integers(0, 1000)


def statistics_of(rows):
    return summarize_class(rows, rows, "full", rows.dtype)


@given(seed=seeds, n=st.integers(2, 30), cut=st.integers(1, 29))
def test_remove_undoes_combine(seed, n, cut):
    cut = min(cut, n - 1)
    rows = np.random.default_rng(seed).normal(size=(n, 5)) + 3
    a, b, both = statistics_of(rows[:cut]), statistics_of(rows[cut:]), statistics_of(rows)
    for got, want in ((combine(a, b), both), (combine(b, a), both), (remove(both, b), a)):
        assert got.count == want.count
        np.testing.assert_allclose(got.mean, want.mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(got.raw_mean, want.raw_mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(
            to_dense(got.scatter), to_dense(want.scatter), rtol=1e-8, atol=1e-9
        )


def test_removing_all_samples_is_an_error():
    stats = statistics_of(np.ones((2, 2)))
    with pytest.raises(ValueError, match="nothing is left"):
        remove(stats, stats)


def test_blocks_are_summed_in_double_precision(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(20_000, 2)).astype(np.float32)
    monkeypatch.setattr(scatter, "BLOCK_ROWS", 1)
    got = to_dense(summarize_class(rows, rows, "full", np.float32).scatter)
    exact = np.cov(rows.astype(np.float64), rowvar=False) * 19_999
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 3e-7


def test_features_are_centered_before_they_are_rounded():
    rows = 1e6 + np.random.default_rng(0).normal(size=(500, 3))
    got = to_dense(summarize_class(rows, rows, "full", np.float32).scatter)
    exact = np.cov(rows, rowvar=False) * 499
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 1e-5
    fine = to_dense(
        summarize_class(
            rows.astype(np.float32), rows.astype(np.float32), "full", np.float64
        ).scatter
    )
    exact = np.cov(rows.astype(np.float32).astype(np.float64), rowvar=False) * 499
    assert np.linalg.norm(fine - exact) / np.linalg.norm(exact) < 1e-12


def test_distance_moments_are_summed_and_removed_in_proportion():
    rows = np.random.default_rng(0).normal(size=(8, 2))
    a = replace(statistics_of(rows[:4]), distance_moments=(4, 8.0, 20.0))
    b = replace(statistics_of(rows[4:]), distance_moments=(2, 3.0, 5.0))
    both = combine(a, b)
    assert both.distance_moments == (6, 11.0, 25.0)
    assert remove(both, b).distance_moments == pytest.approx((3, 5.5, 12.5))
