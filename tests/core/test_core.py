"""The maths, function by function, against slow literal versions and by its properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core import covariance, factors, panel, scatter, transforms
from fecam.core.calibration import (
    _trace,
    expected_distances,
    relative_variance,
    surprise,
    usual_distance,
)
from fecam.core.factors import Factor
from fecam.core.prior import make_prior
from fecam.core.scatter import to_dense
from fecam.core.statistics import ClassStatistics, combine, remove, summarize_class
from fecam.errors import SingularMatrixError
from helpers import literal


def random_matrix(seed, width=8, rank=None, zeros=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rank or 2 * width, width)) * rng.uniform(0.2, 2, width)
    rows[:, :zeros] = 0
    return rows.T @ rows / len(rows)


gammas = st.floats(0, 10)
seeds = st.integers(0, 1000)


@given(seed=seeds, g1=gammas, g2=gammas, zeros=st.integers(0, 3))
@pytest.mark.parametrize("nonzero", [False, True])
def test_shrinkage_is_equation_8(nonzero, seed, g1, g2, zeros):
    matrix = random_matrix(seed, zeros=zeros)
    got = covariance.shrink(matrix, (g1, g2), "nonzero" if nonzero else "all")
    np.testing.assert_allclose(got, literal.shrink(matrix, g1, g2, nonzero), atol=1e-12)


@given(seed=seeds, g=st.floats(0, 5))
def test_two_passes_are_one_with_gamma_times_two_plus_gamma(seed, g):
    matrix = random_matrix(seed)
    twice = covariance.shrink(covariance.shrink(matrix, (g, g)), (g, g))
    once = covariance.shrink(matrix, (g * (2 + g), g * (2 + g)))
    np.testing.assert_allclose(twice, once, rtol=1e-10, atol=1e-10)


@given(seed=seeds, zeros=st.integers(1, 4))
def test_where_zeros_are_left_out_two_passes_are_not_one(seed, zeros):
    matrix = random_matrix(seed, zeros=zeros)
    twice = literal.shrink(literal.shrink(matrix, 1, 1, True), 1, 1, True)
    got = covariance.shrink(matrix, (3, 3), "nonzero-twice")
    np.testing.assert_allclose(got, twice, rtol=1e-10, atol=1e-12)
    assert not np.allclose(got, covariance.shrink(matrix, (3, 3), "nonzero"))


@given(seed=seeds)
def test_correlation_is_equation_7_and_blind_to_scale(seed):
    matrix = random_matrix(seed)
    got = covariance.normalize(matrix, "correlation")
    np.testing.assert_allclose(got, literal.correlation(matrix), rtol=1e-10)
    units = np.random.default_rng(seed).uniform(0.1, 10, len(matrix))
    scaled = matrix * units[:, None] * units[None, :]
    np.testing.assert_allclose(covariance.normalize(scaled, "correlation"), got, atol=1e-9)


def test_a_silent_feature_becomes_one_of_variance_one():
    got = covariance.normalize(random_matrix(0, zeros=2), "correlation")
    np.testing.assert_array_equal(got[:2, :2], np.eye(2))
    np.testing.assert_array_equal(got[:2, 2:], 0)
    np.testing.assert_allclose(np.diag(got), 1)


def test_variance_normalisation_divides_by_the_norm_of_the_diagonal():
    matrix = random_matrix(1)
    expected = matrix / np.linalg.norm(np.diag(matrix))
    np.testing.assert_allclose(covariance.normalize(matrix, "variance"), expected)
    np.testing.assert_allclose(
        covariance.normalize(np.diag(matrix).copy(), "correlation"), np.diag(expected)
    )
    assert covariance.normalize(matrix, None) is matrix


@given(seed=seeds, strength=st.floats(0.1, 1000))
def test_the_prior_is_worth_its_strength_in_samples(seed, strength):
    scatter, shared = random_matrix(seed) * 9, random_matrix(seed + 1)
    got = covariance.with_prior(scatter, 10, shared, strength)
    np.testing.assert_allclose(got, (scatter + strength * shared) / (9 + strength))


def statistics_of(rows):
    return summarize_class(rows, rows, "full", rows.dtype)


@given(seed=seeds)
def test_pooled_is_the_covariance_around_each_classs_own_mean(seed):
    rng = np.random.default_rng(seed)
    groups = [rng.normal(size=(n, 4)) + n for n in (2, 5, 9, 1)]
    centred = np.concatenate([g - g.mean(axis=0) for g in groups])
    got, freedom = covariance.pooled([statistics_of(g) for g in groups])
    assert freedom == 13
    np.testing.assert_allclose(got, centred.T @ centred / 13, rtol=1e-9, atol=1e-12)


def test_pooling_leaves_the_statistics_alone():
    one = statistics_of(np.random.default_rng(0).normal(size=(5, 3)))
    before = to_dense(one.scatter).copy()
    covariance.pooled([one, one])
    np.testing.assert_array_equal(to_dense(one.scatter), before)


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


def test_nothing_can_be_left_of_a_removal():
    one = statistics_of(np.ones((2, 2)))
    with pytest.raises(ValueError, match="nothing is left"):
        remove(one, one)


@given(seed=seeds, rank=st.integers(1, 16))
def test_whitening_is_the_root_of_the_pseudo_inverse(seed, rank):
    matrix = random_matrix(seed, rank=rank)
    root = factors.whiten(matrix)
    np.testing.assert_allclose(
        root @ root.T, np.linalg.pinv(matrix, rcond=1e-12, hermitian=True), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("width", [40, 200])
def test_without_shrinkage_the_ablation_measures_with_the_pseudo_inverse(width):
    """Kept in single precision, the null space of few samples is noise and must be left out."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, width)).astype(np.float32)
    y = np.repeat([0, 1], 30)
    clf = FeCAMClassifier.from_preset("vit", l2=None, shrinkage=(0, 0)).fit(X, y)
    expected = np.stack(
        [
            literal.mahalanobis(
                X.astype(float),
                X[y == k].mean(axis=0, dtype=float),
                literal.correlation(np.cov(X[y == k].astype(float), rowvar=False)),
            )
            for k in (0, 1)
        ],
        axis=1,
    )
    np.testing.assert_allclose(-clf.decision_function(X), expected, rtol=2e-3, atol=1e-3)


def test_an_indefinite_matrix_is_refused():
    with pytest.raises(SingularMatrixError, match="eigenvalue is -1"):
        factors.whiten(np.diag([1.0, 2.0, -1.0]) + 0.0)
    with pytest.raises(SingularMatrixError, match="variance is -1"):
        factors.whiten(np.array([1.0, -1.0]))


def test_distances_are_the_same_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(50, 6))
    roots = [factors.whiten(random_matrix(seed, 6)) for seed in range(3)]
    each = [Factor(rng.normal(size=6), root, 0.5) for root in roots]
    shared = [Factor(rng.normal(size=6), roots[0], 1.0 + i) for i in range(4)]
    for some in (each, shared):
        whole = panel.Panel(some, np.float64).distances(queries)
        literal_ones = np.stack(
            [
                f.scale
                * literal.mahalanobis(queries, f.centre, np.linalg.inv(f.whitening @ f.whitening.T))
                for f in some
            ],
            axis=1,
        )
        np.testing.assert_allclose(whole, literal_ones, rtol=1e-8)
        monkeypatch.setattr(panel, "BLOCK_BYTES", 7 * 6 * 8)
        small = panel.Panel(some, np.float64)
        assert [len(block) for block in small.blocks(queries)] == [7] * 7 + [1]
        np.testing.assert_allclose(small.distances(queries), whole, rtol=1e-9)
        monkeypatch.undo()


def test_ties_go_to_the_first_class():
    distances = np.array([[2.0, 1.0, 1.0, 3.0]])
    assert panel.nearest(distances, 1).tolist() == [[1]]
    assert panel.nearest(distances, 3).tolist() == [[1, 2, 0]]


@given(seed=seeds, power=st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0]))
def test_tukey_is_equation_9(seed, power):
    x = np.random.default_rng(seed).uniform(0.01, 5, size=(4, 3))
    np.testing.assert_allclose(transforms.tukey(x, power), literal.power(x, power))
    assert not transforms.outside_domain(x, power).any()
    assert transforms.outside_domain(np.array(-1.0), power)
    assert bool(transforms.outside_domain(np.array(0.0), power)) == (power <= 0)


def test_a_row_of_zeros_has_no_direction():
    np.testing.assert_array_equal(transforms.unit_length(np.zeros((1, 3))), np.zeros((1, 3)))


@given(seed=seeds)
def test_a_trace_through_random_signs_is_close_to_the_trace(seed):
    matrix, root = random_matrix(seed, 64), factors.whiten(random_matrix(seed + 1, 64))
    exact = np.trace(root.T @ matrix @ root)
    whole = scatter.Scatter(matrix[np.triu_indices(64)], "packed", 64)
    assert _trace(Factor(np.zeros(64), root), whole) == pytest.approx(exact, rel=0.25)
    rows = scatter.Scatter(scatter.sqrt_rows(whole), "low_rank", 64)
    assert _trace(Factor(np.zeros(64), root), rows) == pytest.approx(exact)
    diagonal = np.diag(matrix).copy()
    varied = scatter.Scatter(diagonal, "diagonal", 64)
    assert _trace(Factor(np.zeros(64), np.sqrt(diagonal)), varied) == pytest.approx(
        (diagonal**2).sum()
    )


def with_distance_moments(sampled, count=10):
    return ClassStatistics(count, np.zeros(2), np.zeros(2), None, distance_moments=sampled)


def test_the_spread_is_the_relative_variance_within_classes():
    rng = np.random.default_rng(0)
    groups = [rng.gamma(4.0, scale, size=500) for scale in (0.1, 5.0, 60.0)]
    classes = [with_distance_moments((len(g), g.sum(), (g**2).sum())) for g in groups]
    assert relative_variance(classes) == pytest.approx(0.25, rel=0.1)
    assert relative_variance([with_distance_moments((0, 0.0, 0.0))]) == 0.1
    assert relative_variance([with_distance_moments((5, 0.0, 0.0))]) == 0.1


def test_a_class_of_few_samples_borrows_its_expected_distance():
    classes = [with_distance_moments((0, 0.0, 0.0), count=n) for n in (1000, 1000, 3, 1)]
    own = [2.0, 4.0, 9.0, None]
    expected = expected_distances(classes, own, usual_distance(classes, own))
    usual = (2000 + 4000 + 27) / 2003
    assert expected[0] == pytest.approx(2.0, rel=0.01)
    assert expected[2] == pytest.approx((1 + 1 / 3) * (27 + 5 * usual) / 8)
    assert expected[3] == pytest.approx(2 * usual)


def test_surprise_is_a_normal_score_of_a_log_normal_distance():
    rng = np.random.default_rng(1)
    sigma = np.sqrt(np.log1p(0.3))
    distances = 7.0 * np.exp(rng.normal(-(sigma**2) / 2, sigma, size=100_000))
    scores = surprise(distances, np.full(100_000, 7.0), 0.3)
    assert scores.mean() == pytest.approx(0, abs=0.02)
    assert np.mean(scores > 1.6449) == pytest.approx(0.05, abs=0.004)
    assert np.isfinite(surprise(np.zeros(1), np.ones(1), 0.3)).all()


@given(seed=seeds)
def test_classes_that_differ_only_by_chance_get_a_strong_prior(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(16, 16))
    alike = [statistics_of(rng.normal(size=(40, 16)) @ root) for _ in range(30)]
    apart = [statistics_of(rng.normal(size=(40, 16)) * rng.uniform(0.05, 3, 16)) for _ in range(30)]
    assert make_prior(alike, "auto").pseudo_count > 10 * make_prior(apart, "auto").pseudo_count
    assert make_prior(apart, "auto").pseudo_count >= 8


@pytest.mark.parametrize("kind", ["all", "nonzero", "nonzero-twice"])
def test_a_matrix_without_other_entries_shrinks_all_the_same(kind):
    np.testing.assert_allclose(covariance.shrink(np.array([[2.0]]), (1, 1), kind), [[4.0]])
    alone = np.diag([1.0, 3.0])
    expected = alone + 2 * np.eye(2)
    np.testing.assert_allclose(covariance.shrink(alone, (1, 1), kind), expected)


@given(seed=seeds, g1=gammas)
def test_a_diagonal_shrinks_as_the_diagonal_of_a_matrix_does(seed, g1):
    matrix = random_matrix(seed)
    got = covariance.shrink(np.diag(matrix).copy(), (g1, 5.0))
    np.testing.assert_allclose(got, np.diag(covariance.shrink(matrix, (g1, 5.0))))


def test_blocks_are_added_up_in_double_precision(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(20_000, 2)).astype(np.float32)
    monkeypatch.setattr(scatter, "BLOCK_ROWS", 1)
    got = to_dense(summarize_class(rows, rows, "full", np.float32).scatter)
    exact = np.cov(rows.astype(np.float64), rowvar=False) * 19_999
    assert np.linalg.norm(got - exact) / np.linalg.norm(exact) < 3e-7


def test_features_are_centred_before_they_lose_precision():
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


def test_sampled_distances_add_up_and_are_thinned_evenly():
    rows = np.random.default_rng(0).normal(size=(8, 2))
    a = replace(statistics_of(rows[:4]), distance_moments=(4, 8.0, 20.0))
    b = replace(statistics_of(rows[4:]), distance_moments=(2, 3.0, 5.0))
    both = combine(a, b)
    assert both.distance_moments == (6, 11.0, 25.0)
    assert remove(both, b).distance_moments == pytest.approx((3, 5.5, 12.5))
