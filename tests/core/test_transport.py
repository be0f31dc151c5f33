"""Maps between the features of two encoders, and statistics that follow them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier
from fecam.core.linear_map import fit_linear_map, fit_local_map, kernel_average
from fecam.core.scatter import to_dense
from fecam.core.statistics import summarize_class
from fecam.core.transport import corrected, moved_class, transport
from fecam.errors import InputError

seeds = st.integers(0, 10_000)


def samples(seed, n=40, d=5, e=5, noise=0.5):
    """Return features before and after a change that is linear but for noise."""
    rng = np.random.default_rng(seed)
    before = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)
    matrix, offset = rng.normal(size=(d, e)), rng.normal(size=e)
    after = before @ matrix + offset + noise * rng.normal(size=(n, e))
    return before, after, matrix, offset


def literal_fit(before, after, penalty, target, weights=None):
    """Return matrix and offset of a weighted ridge regression, from its normal equations."""
    weights = np.ones(len(before)) if weights is None else weights
    center = np.average(before, axis=0, weights=weights)
    after_center = np.average(after, axis=0, weights=weights)
    x, y = before - center, after - after_center
    gram = x.T @ np.diag(weights) @ x + penalty * np.eye(x.shape[1])
    matrix = target + np.linalg.inv(gram) @ x.T @ np.diag(weights) @ (y - x @ target)
    return matrix, after_center - center @ matrix


def penalty_of(before, ridge):
    centered = before - before.mean(0)
    return ridge * np.trace(centered.T @ centered) / before.shape[1]


@given(seed=seeds, ridge=st.sampled_from([1e-6, 0.01, 1.0, 30.0]), n=st.sampled_from([4, 12, 60]))
def test_the_map_is_that_of_the_normal_equations(seed, ridge, n):
    before, after, _, _ = samples(seed, n)
    matrix, offset = literal_fit(before, after, penalty_of(before, ridge), np.eye(5))
    fitted = fit_linear_map(before, after, ridge=ridge)
    np.testing.assert_allclose(fitted.matrix, matrix, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(fitted.offset, offset, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ridge", [1e-9, 0.1, 10.0])
def test_weights_count_samples_repeatedly(ridge):
    before, after, _, _ = samples(1, 30)
    times = np.random.default_rng(0).integers(1, 4, size=30)
    repeated = fit_linear_map(before.repeat(times, 0), after.repeat(times, 0), ridge=ridge)
    weighted = fit_linear_map(before, after, ridge=ridge, weights=times)
    np.testing.assert_allclose(weighted.matrix, repeated.matrix, rtol=1e-8)
    np.testing.assert_allclose(weighted.offset, repeated.offset, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ridge", [1e-6, 0.1, float("inf")])
@pytest.mark.parametrize("n", [5, 25])
def test_the_error_is_that_of_samples_left_out_one_by_one(ridge, n):
    """The literal version refits without each sample, with the same penalty."""
    before, after, _, _ = samples(3, n, d=8, e=6)
    errors = []
    for i in range(n):
        others = np.arange(n) != i
        if ridge == float("inf"):
            prediction = after[others].mean(0)
        else:
            penalty = penalty_of(before, ridge)
            matrix, offset = literal_fit(before[others], after[others], penalty, np.zeros((8, 6)))
            prediction = before[i] @ matrix + offset
        errors.append(((after[i] - prediction) ** 2).sum())
    fitted = fit_linear_map(before, after, ridge=ridge)
    assert fitted.error == pytest.approx(np.mean(errors), rel=1e-6)


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_the_error_of_groups_is_that_of_their_means_when_left_out(ridge):
    before, after, _, _ = samples(4, 30)
    groups = np.arange(30) % 4
    errors = []
    for group in range(4):
        others = groups != group
        penalty = penalty_of(before, ridge)
        matrix, offset = literal_fit(before[others], after[others], penalty, np.eye(5))
        error = after[~others].mean(0) - before[~others].mean(0) @ matrix - offset
        errors.append(error @ error)
    fitted = fit_linear_map(before, after, ridge=ridge, groups=groups)
    assert fitted.error == pytest.approx(np.mean(errors), rel=1e-6)
    alone = fit_linear_map(before, after, ridge=ridge, groups=np.arange(30))
    assert alone.error == pytest.approx(fit_linear_map(before, after, ridge=ridge).error)


def test_the_penalty_is_that_with_the_smallest_error():
    before, after, _, _ = samples(5, 12, d=8, e=8, noise=3.0)
    fitted = fit_linear_map(before, after)
    errors = [fit_linear_map(before, after, ridge=r).error for r in 10.0 ** np.arange(-6, 3)]
    assert fitted.error <= min(errors)
    assert fit_linear_map(before, after, ridge=fitted.ridge).error == fitted.error


@given(seed=seeds, e=st.sampled_from([3, 5, 9]))
def test_a_linear_change_is_found_exactly(seed, e):
    before, after, matrix, _ = samples(seed, e=e, noise=0.0)
    fitted = fit_linear_map(before, after)
    scale = np.abs(after).max()
    np.testing.assert_allclose(fitted(before), after, atol=1e-7 * scale)
    assert np.abs(fitted.residual_covariance).max() < 1e-12 * scale**2
    if np.linalg.cond(before - before.mean(0)) < 1e3:
        np.testing.assert_allclose(fitted.matrix, matrix, atol=1e-5)


@given(seed=seeds, n=st.integers(1, 30))
def test_nothing_moves_if_nothing_moved(seed, n):
    before = samples(seed, n)[0]
    fitted = fit_linear_map(before, before)
    assert np.array_equal(fitted.matrix, np.eye(5))
    np.testing.assert_allclose(fitted.offset, 0, atol=1e-12)
    assert not fitted.residual_covariance.any()


def test_a_map_without_samples_nearby_is_less_certain():
    """The variance is that of Bayesian linear regression, here from the full inverse."""
    before, after, _, _ = samples(6, 20)
    fitted = fit_linear_map(before, after, ridge=0.1)
    x = before - before.mean(0)
    inverse = np.linalg.inv(x.T @ x + penalty_of(before, 0.1) * np.eye(5))
    queries = np.vstack([before.mean(0), before, 10 * before])
    z = queries - before.mean(0)
    expected = 1 / 20 + np.einsum("ij,jk,ik->i", z, inverse, z)
    np.testing.assert_allclose(fitted.variance(queries), expected)
    few = fit_linear_map(before[:3], after[:3], ridge=0.1)  # directions that no sample covers
    x = before[:3] - before[:3].mean(0)
    inverse = np.linalg.inv(x.T @ x + penalty_of(before[:3], 0.1) * np.eye(5))
    z = queries - before[:3].mean(0)
    expected = 1 / 3 + np.einsum("ij,jk,ik->i", z, inverse, z)
    np.testing.assert_allclose(few.variance(queries), expected)


@pytest.mark.parametrize("ridge", [1e-3, 1.0, float("inf")])
def test_residuals_are_those_of_samples_left_out_one_by_one(ridge):
    before, after, _, _ = samples(14, 15)
    fitted = fit_linear_map(before, after, ridge=ridge, toward_identity=False)
    residuals = fitted.left_out_residuals(before, after)
    assert fitted.error == pytest.approx((residuals**2).sum(axis=1).mean())
    others = np.arange(15) != 3
    if ridge == float("inf"):
        prediction = after[others].mean(0)
    else:
        penalty = penalty_of(before, ridge)
        matrix, offset = literal_fit(before[others], after[others], penalty, np.zeros((5, 5)))
        prediction = before[3] @ matrix + offset
    np.testing.assert_allclose(residuals[3], after[3] - prediction, rtol=1e-6, atol=1e-9)


def test_a_rank_limits_the_correction():
    before, after, _, _ = samples(7)
    fitted = fit_linear_map(before, after, rank=2)
    assert np.linalg.matrix_rank(fitted.matrix - np.eye(5)) == 2
    full = fit_linear_map(before, after)
    assert np.trace(full.residual_covariance) < np.trace(fitted.residual_covariance)
    same = fit_linear_map(before, after, rank=5)
    np.testing.assert_allclose(same.matrix, full.matrix)


def test_local_drift_has_the_map_and_the_nearest_sample_as_ends():
    before, after, _, _ = samples(8)
    means = before[:3] + 0.01
    base = fit_linear_map(before, after, ridge=1.0)
    wide = fit_local_map(base, before, after, 1e6)
    np.testing.assert_allclose(wide(means), base(means), atol=1e-6)
    assert np.array_equal(fit_local_map(base, before, after, float("inf"))(means), base(means))
    narrow = fit_local_map(base, before, after, 1e-4)
    np.testing.assert_allclose(narrow(before), after, atol=1e-9)
    still = fit_linear_map(before, after, ridge=float("inf"))  # semantic drift compensation
    drift = kernel_average(means, before, after - before, fit_width(before, 0.3))
    np.testing.assert_allclose(fit_local_map(still, before, after, 0.3)(means), means + drift)


def fit_width(before, share):
    differences = before[:, None] - before
    squares = (differences**2).sum(2)[~np.eye(len(before), dtype=bool)]
    return share * squares.mean() ** 0.5


def test_local_drift_is_used_where_it_helps():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(300, 3))
    bent = before + 2 * np.sign(before[:, :1])
    base = fit_linear_map(before, bent)
    assert fit_local_map(base, before, bent).bandwidth < float("inf")
    noisy = before + rng.normal(size=(300, 3))
    base = fit_linear_map(before, noisy)
    assert fit_local_map(base, before, noisy).bandwidth == float("inf")


# -- statistics ------------------------------------------------------------------------------------


def taught(seed=0, **settings):
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1, 2], [4, 12, 40])
    X = rng.normal(size=(len(y), 6)) + 3 * rng.normal(size=(3, 6))[y]
    return FeCAMClassifier(tukey=None, l2=None, dtype="float64", **settings).fit(X, y), X, y


@pytest.mark.parametrize("width", [4, 6, 9])
@pytest.mark.parametrize("covariance", ["class", "identity"])
def test_statistics_follow_a_linear_change_exactly(width, covariance):
    clf, X, y = taught(covariance=covariance)
    rng = np.random.default_rng(1)
    matrix, offset = rng.normal(size=(6, width)), rng.normal(size=width)
    others = rng.normal(size=(50, 6))
    fitted = fit_linear_map(others, others @ matrix + offset)
    moved = transport(clf.state_, fitted)
    again = FeCAMClassifier(tukey=None, l2=None, dtype="float64", covariance=covariance)
    expected = again.fit(X @ matrix + offset, y).state_
    for label, stats in moved.classes.items():
        want = expected.classes[label]
        assert stats.count == want.count
        np.testing.assert_allclose(stats.mean, want.mean, rtol=1e-6)
        np.testing.assert_allclose(stats.raw_mean, want.raw_mean, rtol=1e-6)
        if want.scatter is not None:
            dense = to_dense(want.scatter)
            tolerance = 1e-7 * np.abs(dense).max()
            np.testing.assert_allclose(to_dense(stats.scatter), dense, atol=tolerance)
    assert moved.n_features == width


def test_two_changes_are_one():
    clf, _, _ = taught()
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(2, 6, 6))
    before = rng.normal(size=(30, 6))
    maps = [
        fit_linear_map(before, before @ first),
        fit_linear_map(before @ first, before @ first @ second),
        fit_linear_map(before, before @ first @ second),
    ]
    twice = transport(transport(clf.state_, maps[0]), maps[1])
    once = transport(clf.state_, maps[2])
    for label in once.classes:
        a, b = once.classes[label], twice.classes[label]
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-5)
        np.testing.assert_allclose(to_dense(a.scatter), to_dense(b.scatter), rtol=1e-4, atol=1e-4)


def test_the_covariance_grows_by_that_of_the_residuals():
    clf, _, _ = taught()
    before, after, _, _ = samples(9, 60, d=6, e=6)
    fitted = fit_linear_map(before, after)
    moved = transport(clf.state_, fitted, effective_counts=False)
    stats = clf.state_.classes[2]
    linear = fitted.matrix.T @ to_dense(stats.scatter) @ fitted.matrix
    expected = linear / (stats.count - 1) + fitted.residual_covariance
    np.testing.assert_allclose(to_dense(moved.classes[2].scatter) / (stats.count - 1), expected)
    widened = transport(clf.state_, fitted).classes[2]
    np.testing.assert_allclose(to_dense(widened.scatter) / (widened.count - 1), expected)


def test_moved_classes_are_worth_fewer_samples_and_less_each_time():
    clf, _, _ = taught()
    before, after, _, _ = samples(10, 60, d=6, e=6)
    fitted = fit_linear_map(before, after)
    once = transport(clf.state_, fitted)
    back = transport(once, fit_linear_map(after, before))
    counts = [
        [stats.count for stats in state.classes.values()] for state in (clf.state_, once, back)
    ]
    assert counts[0] == [4, 12, 40]
    assert all(a >= b >= c >= 2 for a, b, c in zip(*counts, strict=True))
    assert counts[0][2] > counts[1][2] > counts[2][2]
    stats = clf.state_.classes[2]
    far = replace(stats, mean=stats.mean + 100)
    classes = {**clf.state_.classes, 2: far}
    far_away = transport(replace(clf.state_, classes=classes), fitted)
    assert far_away.classes[2].count < once.classes[2].count


def test_means_follow_what_the_map_leaves_of_their_class():
    clf, _, _ = taught()
    rng = np.random.default_rng(5)
    residuals, shares = rng.normal(size=(20, 6)), rng.dirichlet(np.ones(3), size=20)
    moved = corrected(clf.state_, residuals, shares, 4.0)
    for i, (label, stats) in enumerate(clf.state_.classes.items()):
        step = sum(shares[j, i] * residuals[j] for j in range(20)) / (shares[:, i].sum() + 4)
        np.testing.assert_allclose(moved.classes[label].mean, stats.mean + step)
        assert moved.classes[label].scatter is stats.scatter
        np.testing.assert_allclose(moved.classes[label].raw_mean, stats.raw_mean + step, rtol=1e-5)
    still = corrected(clf.state_, residuals, 0 * shares, 4.0)
    assert np.array_equal(still.classes[1].mean, clf.state_.classes[1].mean)


def test_residuals_of_raw_features_move_raw_means_within_the_domain_of_the_power():
    rng = np.random.default_rng(12)
    X = rng.random((30, 4))
    state = FeCAMClassifier.from_preset("paper", dtype="float64").fit(X, np.arange(30) % 3).state_
    residuals, raw_residuals = rng.normal(size=(2, 20, 4))
    shares = np.eye(3)[np.arange(20) % 3]
    moved = corrected(state, residuals, shares, 1.0, raw_residuals)
    for i, (label, stats) in enumerate(state.classes.items()):
        step = raw_residuals[i::3].sum(axis=0) / (len(raw_residuals[i::3]) + 1)
        np.testing.assert_allclose(
            moved.classes[label].raw_mean, np.maximum(stats.raw_mean + step, 0)
        )


def test_only_some_classes_move():
    clf, _, _ = taught()
    before, after, _, _ = samples(11, 60, d=6, e=6)
    moved = transport(clf.state_, fit_linear_map(before, after), labels=[1])
    assert moved.classes[0] is clf.state_.classes[0]
    assert not np.allclose(moved.classes[1].mean, clf.state_.classes[1].mean)
    assert transport(clf.state_, fit_linear_map(before, after), labels=[]) is clf.state_


def test_diagonals_keep_the_diagonal():
    rng = np.random.default_rng(3)
    X, matrix = rng.normal(size=(20, 6)), rng.normal(size=(6, 4))
    stats = summarize_class(X, X, "diagonal", np.float64)
    moved = moved_class(stats, matrix, stats.mean @ matrix, stats.raw_mean @ matrix)
    expected = np.diag(matrix.T @ np.diag(stats.scatter.data) @ matrix)
    np.testing.assert_allclose(moved.scatter.data, expected)
    with_noise = moved_class(stats, matrix, moved.mean, moved.raw_mean, 2 * np.eye(4))
    np.testing.assert_allclose(with_noise.scatter.data, expected + 2 * 19)


def test_raw_means_move_by_their_own_map_and_stay_in_the_domain_of_the_power():
    rng = np.random.default_rng(4)
    X = rng.random((30, 6))
    clf = FeCAMClassifier().fit(X, np.repeat([0, 1], 15))
    others = rng.random((40, 6)).astype(np.float32)
    transform = clf.state_.transform
    fitted = fit_linear_map(transform(others), transform(others[:, ::-1] ** 2))
    raw_map = fit_linear_map(others, others[:, ::-1] ** 2 - 0.5)
    moved = transport(clf.state_, fitted, raw_map)
    for label, stats in moved.classes.items():
        raw_mean = np.maximum(raw_map(clf.state_.classes[label].raw_mean), 0)
        np.testing.assert_allclose(stats.raw_mean, raw_mean, rtol=1e-5)
        np.testing.assert_allclose(stats.mean, fitted(clf.state_.classes[label].mean))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_keep_their_library_and_dtype(dtype):
    clf, X, y = taught()
    before, after, _, _ = samples(12, 60, d=6, e=4)
    expected = transport(clf.state_, fit_linear_map(before, after))
    tensor = FeCAMClassifier(tukey=None, l2=None).fit(torch.as_tensor(X, dtype=dtype), y)
    pair = torch.as_tensor(before), torch.as_tensor(after)
    base = fit_linear_map(*pair)
    moved = transport(tensor.state_, base, move_means=fit_local_map(base, *pair, float("inf")))
    for label, stats in moved.classes.items():
        assert isinstance(stats.mean, torch.Tensor)
        assert stats.scatter.data.dtype == stats.raw_mean.dtype == tensor.state_.like.dtype
        assert stats.count == expected.classes[label].count
        np.testing.assert_allclose(stats.mean, expected.classes[label].mean, rtol=1e-4, atol=1e-4)
        dense = to_dense(expected.classes[label].scatter)
        np.testing.assert_allclose(
            to_dense(stats.scatter), dense, rtol=1e-3, atol=1e-5 * np.abs(dense).max()
        )
    local = fit_local_map(base, *pair, 0.3)(pair[0][:3])
    want = fit_local_map(fit_linear_map(before, after), before, after, 0.3)(before[:3])
    np.testing.assert_allclose(local, want, rtol=1e-6)


def test_arrays_that_do_not_belong_together_are_rejected():
    before, after, _, _ = samples(13)
    with pytest.raises(InputError, match="same samples"):
        fit_linear_map(before, after[:3])
    with pytest.raises(InputError, match="at least one"):
        fit_linear_map(before[:0], after[:0])
    with pytest.raises(InputError, match="no identity"):
        fit_linear_map(before, after[:, :3], toward_identity=True)
    with pytest.raises(InputError, match="groups has 3 entries"):
        fit_linear_map(before, after, groups=[1, 2, 3])


def test_a_single_sample_has_no_neighbors():
    before, after, _, _ = samples(3, n=1)
    base = fit_linear_map(before, after, ridge=1.0)
    assert np.isfinite(fit_local_map(base, before, after, 0.3)(before)).all()


@pytest.mark.parametrize("n", [1, 4])
def test_maps_of_samples_without_variance_move_by_the_mean(n):
    before, after = np.ones((n, 3)), np.full((n, 3), 2.0)
    fitted = fit_linear_map(before, after)
    for mapping in (fitted, fit_local_map(fitted, before, after)):
        np.testing.assert_allclose(
            mapping(np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 1.0]])),
            [[2.0, 2.0, 2.0], [1.0, 3.0, 2.0]],
        )
    assert np.all(np.isfinite(fitted.variance(before)))
