"""Each head against a slow version that is written down from its description."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.svm import LinearSVC

from fecam import FeCAMClassifier
from fecam.core.statistics import summarize_class
from fecam.errors import SingularMatrixError
from fecam.heads import make
from fecam.heads.fenec import cluster_points
from fecam.heads.fetril import translate_features
from fecam.heads.gaussian_linear import _cholesky, sample_gaussian
from fecam.heads.linear import fit_linear
from fecam.heads.moments import add_moments, gram, means_of, moments_of
from fecam.heads.rehearsal import subsample_rows
from fecam.heads.ridge import RIDGES, held_out_mask, random_projection
from helpers import literal
from helpers.features import relu_features, signed_features

X, y = signed_features(5, 20, 6, 0)
X = X.astype(np.float64)
QUERIES = signed_features(5, 8, 6, 1)[0].astype(np.float64)
TASKS = [y < 2, (y == 2) | (y == 3), y == 4]


def taught(head, tasks=TASKS):
    for task in tasks:
        head.partial_fit(X[task], y[task])
    return head


# ---------------------------------------------------------------------- sums


@given(st.permutations(range(40)), st.integers(1, 39))
def test_moments_of_any_split_are_those_of_the_whole(order, cut):
    rows, labels = X[np.array(order) * 2], y[np.array(order) * 2]
    parts = add_moments(moments_of(rows[:cut], labels[:cut]), moments_of(rows[cut:], labels[cut:]))
    scatter = np.zeros((6, 6))
    for label in np.unique(labels):
        for row in rows[labels == label]:
            step = row - rows[labels == label].mean(axis=0)
            scatter += np.outer(step, step)
    np.testing.assert_allclose(parts.scatter, scatter, atol=1e-10)
    np.testing.assert_allclose(gram(parts), rows.T @ rows, atol=1e-10)
    assert parts.classes.counts.sum() == 40


def test_moments_far_from_zero():
    whole = moments_of(X + 1e6, y)
    np.testing.assert_allclose(whole.scatter, moments_of(X, y).scatter, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------- NCM and SLDA


def test_nearest_mean():
    for name, metric in (("euclidean", 0), ("cosine", 1)):
        scores = taught(make("ncm", metric=name)).decision_function(QUERIES)
        for i, query in enumerate(QUERIES):
            for label in range(5):
                mean = X[y == label].mean(axis=0)
                cosine = query @ mean / np.sqrt((query @ query) * (mean @ mean))
                expected = cosine if metric else -np.sum((query - mean) ** 2)
                assert scores[i, label] == pytest.approx(expected, rel=1e-9)


def test_nearest_mean_is_the_preset():
    preset = FeCAMClassifier.from_preset("ncm", dtype="float64").fit(X, y)
    np.testing.assert_allclose(
        taught(make("ncm")).decision_function(QUERIES), preset.decision_function(QUERIES), rtol=1e-9
    )


def test_streaming_lda_sample_by_sample():
    means, counts, covariance = np.zeros((5, 6)), np.zeros(5), np.zeros((6, 6))
    for count, (x, c) in enumerate(zip(X, y, strict=True)):
        step = x - means[c]
        update = np.outer(step, step) * counts[c] / (counts[c] + 1)
        covariance = (count * covariance + update) / (count + 1)
        counts[c] += 1
        means[c] += step / counts[c]
    precision = np.linalg.inv((1 - 1e-4) * covariance + 1e-4 * np.eye(6))
    expected = QUERIES @ precision @ means.T - 0.5 * np.diag(means @ precision @ means.T)
    head = taught(make("slda"))
    np.testing.assert_allclose(head.decision_function(QUERIES), expected, rtol=1e-8, atol=1e-8)
    chances = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.predict_proba(QUERIES), chances, rtol=1e-7, atol=1e-12)


def test_streaming_lda_is_shrunk_lda():
    within = moments_of(X, y).scatter / len(X)
    scale = np.sqrt(np.trace(within) / 6)  # scikit-learn shrinks towards the mean variance: now 1
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=[0.2] * 5)
    reference.fit(X / scale, y)
    head = make("slda", shrinkage=0.3).fit(X / scale, y)
    np.testing.assert_allclose(
        head.predict_proba(QUERIES / scale), reference.predict_proba(QUERIES / scale), rtol=1e-8
    )


def test_singular_covariance_raises_with_a_remedy():
    head = make("slda", shrinkage=0).fit(X[:3], y[:3])
    with pytest.raises(SingularMatrixError, match=r"shrinkage=0.*Increase"):
        head.predict(X)


# ---------------------------------------------------------------------- linear classifiers


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_linear_classifiers_equal_scikit_learn():
    logistic = LogisticRegression(C=10.0, tol=1e-5, max_iter=100).fit(unit(X), y)
    ours = fit_linear(X, y, "linear")
    np.testing.assert_allclose(
        ours.scores(QUERIES), logistic.decision_function(unit(QUERIES)), atol=1e-5
    )
    svm = LinearSVC(C=1.0, tol=1e-6, max_iter=100_000).fit(unit(X), y)
    gap = fit_linear(X, y, "svm").scores(QUERIES) - svm.decision_function(unit(QUERIES))
    assert np.abs(gap).mean() < 0.05  # ours stops early


def test_two_classes_are_a_logistic_function():
    two = y < 2
    head = make("fetril").fit(X[two], y[two])
    reference = LogisticRegression(C=10.0, tol=1e-5, max_iter=100).fit(unit(X[two]), y[two])
    np.testing.assert_allclose(
        head.predict_proba(QUERIES), reference.predict_proba(unit(QUERIES)), atol=1e-5
    )


def test_deesil_uses_only_the_samples_of_the_task():
    head = taught(make("deesil"))
    for first in (0, 2):
        alone = (y == first) | (y == first + 1)
        svm = LinearSVC(C=1.0, tol=1e-6, max_iter=100_000).fit(unit(X[alone]), y[alone])
        margin = svm.decision_function(unit(QUERIES))
        scores = head.decision_function(QUERIES)[:, [first, first + 1]]
        assert np.abs(scores - np.stack([-margin, margin], axis=1)).mean() < 0.05
    three = make("deesil").fit(X[y < 3], y[y < 3]).decision_function(QUERIES)
    for label in range(3):
        svm = LinearSVC(C=1.0, tol=1e-6, max_iter=100_000).fit(unit(X[y < 3]), y[y < 3] == label)
        assert np.abs(three[:, label] - svm.decision_function(unit(QUERIES))).mean() < 0.05


def test_deesil_with_a_single_class():
    scores = make("deesil").fit(X[y == 4] + 3, y[y == 4]).decision_function(X[y == 4] + 3)
    assert scores.min() > 0.5
    mirrored = make("deesil").fit(X[y == 4] + 3, y[y == 4]).decision_function(-X[y == 4] - 3)
    assert mirrored.max() < -0.5


def test_deesil_averages_the_svms_of_a_repeated_class():
    first, second = (
        make("deesil").fit(X[some], y[some]) for some in (y < 3, (y < 3) & (X[:, 0] > 0))
    )
    both = make("deesil").fit(X[y < 3], y[y < 3])
    both.partial_fit(X[(y < 3) & (X[:, 0] > 0)], y[(y < 3) & (X[:, 0] > 0)])
    once, twice = first.decision_function(QUERIES), second.decision_function(QUERIES)
    n, m = 20, np.bincount(y[(y < 3) & (X[:, 0] > 0)])
    np.testing.assert_allclose(
        both.decision_function(QUERIES), (n * once + m * twice) / (n + m), atol=1e-6
    )


# ---------------------------------------------------------------------- FeTrIL


def test_pseudo_features():
    past, task = y < 2, y >= 2
    made_up, labels = translate_features(
        means_of(X[past], y[past]), X[task], y[task], 1000, np.random.default_rng(0)
    )
    expected, of = [], []
    for p in (0, 1):
        mu_p = X[y == p].mean(axis=0)
        likeness = []
        for n in (2, 3, 4):
            mu_n = X[y == n].mean(axis=0)
            likeness.append(mu_p @ mu_n / np.linalg.norm(mu_p) / np.linalg.norm(mu_n))
        n = [2, 3, 4][int(np.argmax(likeness))]
        for row in X[y == n]:
            expected.append(row + mu_p - X[y == n].mean(axis=0))
            of.append(p)
    np.testing.assert_allclose(made_up, expected, atol=1e-12)
    assert labels.tolist() == of


def test_pseudo_features_have_the_mean_of_the_past_class():
    made_up, labels = translate_features(
        means_of(X[y < 4], y[y < 4]), X[y == 4], y[y == 4], 1000, np.random.default_rng(0)
    )
    for p in range(4):
        np.testing.assert_allclose(
            made_up[labels == p].mean(axis=0), X[y == p].mean(axis=0), atol=1e-12
        )


def test_repeated_class_has_no_pseudo_features():
    past = means_of(X[y < 3], y[y < 3])
    _, labels = translate_features(past, X[y > 1], y[y > 1], 7, np.random.default_rng(0))
    assert np.bincount(labels).tolist() == [7, 7]


def test_fetril_is_a_classifier_on_pseudo_features():
    head = make("fetril", samples=1000)
    head.partial_fit(X[y < 3], y[y < 3]).partial_fit(X[y > 2], y[y > 2])
    made_up, labels = translate_features(
        means_of(X[y < 3], y[y < 3]), X[y > 2], y[y > 2], 1000, np.random.default_rng(0)
    )
    reference = LogisticRegression(C=10.0, tol=1e-5, max_iter=100).fit(
        unit(np.concatenate([made_up, X[y > 2]])), np.concatenate([labels, y[y > 2]])
    )
    np.testing.assert_allclose(
        head.predict_proba(QUERIES), reference.predict_proba(unit(QUERIES)), atol=1e-4
    )


def test_rows_are_drawn_without_repeating():
    rows = subsample_rows(y, 7, np.random.default_rng(0))
    assert np.bincount(y[rows]).tolist() == [7] * 5 and len(set(rows.tolist())) == 35
    assert subsample_rows(y, 20, np.random.default_rng(0)).tolist() == list(range(100))


# ---------------------------------------------------------------------- Gaussians


@pytest.mark.parametrize(
    ("count", "width"), [(40, 6), (4, 16), (1, 6)], ids=["matrix", "rows", "1"]
)
def test_gaussian_samples(count, width):
    rows = signed_features(1, count, width, 7)[0].astype(np.float64)
    one = summarize_class(rows, rows, "full", np.float64)
    samples = sample_gaussian(one, 40_000, np.random.default_rng(0))
    np.testing.assert_allclose(samples.mean(axis=0), rows.mean(axis=0), atol=0.02)
    covariance = np.cov(rows, rowvar=False) if count > 1 else np.zeros((width, width))
    np.testing.assert_allclose(np.cov(samples, rowvar=False), covariance, atol=0.02)


def test_gaussian_linear_stores_the_statistics_of_fecam():
    known = taught(make("gaussian-linear")).state_.memory
    for label, one in known.classes.items():
        np.testing.assert_allclose(one.mean, X[y == label].mean(axis=0), rtol=1e-6)
        assert one.count == 20
    labels = make("gaussian-linear", samples=9)._pseudo_samples(
        known, X[y > 2], y[y > 2], np.random.default_rng(0)
    )[1]
    assert np.bincount(labels).tolist() == [9, 9, 9]


# ---------------------------------------------------------------------- ridge and RanPAC


def one_hot(labels):
    return np.eye(5)[labels]


@pytest.mark.parametrize("ridge", [0.01, 10.0])
def test_ridge_equals_scikit_learn(ridge):
    head = taught(make("ridge", ridge=ridge))
    reference = SklearnRidge(alpha=ridge, fit_intercept=False).fit(X, one_hot(y))
    np.testing.assert_allclose(
        head.decision_function(QUERIES), reference.predict(QUERIES), rtol=1e-8, atol=1e-10
    )


def test_held_out_mask():
    labels = np.repeat([3, 1, 2, 0], [11, 5, 2, 1])
    shuffled = np.random.default_rng(0).permutation(19)
    held = held_out_mask(labels[shuffled])
    for label, count in ((3, 2), (1, 1), (2, 1), (0, 0)):
        mine = np.flatnonzero(labels[shuffled] == label)
        assert np.flatnonzero(held[mine]).tolist() == [1, 6][:count]


def literal_ranpac(tasks, expand):
    """Ridge by the errors on a held-out part of each task; weights of all samples."""
    total = np.zeros(len(RIDGES))
    for task in tasks:
        H, labels, held = expand(X[task]), y[task], np.zeros(task.sum(), bool)
        for label in np.unique(labels):
            held[np.flatnonzero(labels == label)[1::5]] = True
        for i, ridge in enumerate(10.0 ** np.arange(-8, 9)):
            A, B = H[~held], one_hot(labels[~held])
            weights = np.linalg.solve(A.T @ A + ridge * np.eye(H.shape[1]), A.T @ B)
            total[i] += np.sum((H[held] @ weights - one_hot(labels[held])) ** 2)
    ridge = 10.0 ** (np.argmin(total) - 8)
    H = expand(X)
    weights = np.linalg.solve(H.T @ H + ridge * np.eye(H.shape[1]), H.T @ one_hot(y))
    return ridge, expand(QUERIES) @ weights


@pytest.mark.parametrize("projections", [None, 12, 60], ids=["ridge", "narrow", "wide"])
def test_ranpac(projections):
    if projections is None:
        head, expand = make("ridge"), lambda x: x
    else:
        head = make("ranpac", projections=projections, seed=5)
        matrix = np.random.default_rng(5).normal(size=(6, projections))
        np.testing.assert_array_equal(matrix, random_projection(6, projections, 5))
        expand = lambda x: np.where(x @ matrix > 0, x @ matrix, 0)  # noqa: E731
    taught(head)
    ridge, expected = literal_ranpac(TASKS, expand)
    assert head.ridge_ == pytest.approx(ridge) and 1e-8 < ridge < 1e8
    np.testing.assert_allclose(head.decision_function(QUERIES), expected, rtol=1e-5, atol=1e-7)


def test_ridge_with_few_samples_in_single_precision():
    rows, labels = relu_features(4, 6, 200, 2)
    rows = np.concatenate([rows, rows])  # the smallest ridges are tried on a singular matrix
    head = make("ridge").fit(rows, np.concatenate([labels, labels]))
    fine = make("ridge").fit(rows.astype(np.float64), np.concatenate([labels, labels]))
    assert head.ridge_ == fine.ridge_ and head.score(rows[:24], labels) == 1
    np.testing.assert_allclose(
        head.decision_function(rows), fine.decision_function(rows), atol=1e-4
    )


def test_ridge_without_held_out_rows_follows_the_scale():
    first = np.unique(y, return_index=True)[1]
    for scale in (1.0, 1000.0):
        head = make("ridge").fit(scale * X[first], y[first])
        assert head.ridge_ == pytest.approx(scale**2 * np.sum(X[first] ** 2) / 6)


# ---------------------------------------------------------------------- FeNeC


def test_one_centroid_is_fecam():
    rows, labels = relu_features(4, 15, 8, 2)
    for preset in (None, "vit", "ncm"):
        fecam = make("fecam", preset=preset) if preset else make("fecam")
        head = make("fenec", n_centroids=1, preset=preset)
        np.testing.assert_allclose(
            head.fit(rows, labels).decision_function(rows),
            fecam.fit(rows, labels).refresh().decision_function(rows),
            rtol=2e-3,
            atol=1e-3,
        )


def literal_fenec(rows, labels, queries, points):
    """Minus the distance to the nearest centroid, by the `vit` preset's matrix of its class."""
    columns = []
    for label in np.unique(labels):
        features = literal.to_unit(rows[labels == label].astype(np.float64))
        matrix = literal.correlation(literal.shrink(np.cov(features, rowvar=False), 1, 0, False))
        distances = [
            literal.mahalanobis(literal.to_unit(queries), point, matrix) for point in points[label]
        ]
        columns.append(distances)
    return columns


def test_several_centroids():
    rows, labels = signed_features(3, 30, 6, 9)
    queries = QUERIES[:, :6]
    head = make("fenec", n_centroids=3, preset="vit").fit(rows, labels)
    points = {label: some.points for label, some in head.state_.centroids.items()}
    assert {len(some) for some in points.values()} == {3}
    distances = literal_fenec(rows, labels, queries, points)
    expected = -np.min(distances, axis=1).T
    np.testing.assert_allclose(head.decision_function(queries), expected, rtol=1e-3)
    votes = head.set_params(n_neighbors=4).decision_function(queries)
    for i in range(len(queries)):
        every = sorted((d[j][i], c) for c, d in enumerate(distances) for j in range(3))[:4]
        counts = np.bincount([c for _, c in every], minlength=3)
        assert np.floor(votes[i]).tolist() == counts.tolist()
        tied = [c for c in range(3) if counts[c] == counts.max()]
        assert head.predict(queries)[i] == min(tied, key=lambda c: min(d[i] for d in distances[c]))


def test_clusters_are_means_and_count_their_samples():
    points = np.array([[0.0, 0], [0, 1], [9, 9], [9, 8], [9, 7]])
    found = cluster_points(points, np.ones(5), 2, 0)
    order = np.argsort(found.counts)
    np.testing.assert_allclose(found.points[order], [[0, 0.5], [9, 8]])
    assert found.counts[order].tolist() == [2, 3]
    weighted = cluster_points(np.array([[0.0], [1.0], [8.0]]), np.array([1.0, 3.0, 5.0]), 2, 0)
    np.testing.assert_allclose(np.sort(weighted.points[:, 0]), [0.75, 8])
    assert len(cluster_points(np.ones((4, 2)), np.ones(4), 3, 0).points) == 1


# ---------------------------------------------------------------------- calibrated FeCAM


def literal_calibrated(rows, labels, queries, base, alpha=0.9, max_samples=10, gammas=(1, 1)):
    rows = literal.power(rows.astype(np.float64))
    queries = literal.to_unit(literal.power(queries.astype(np.float64)))
    means = {c: rows[labels == c].mean(axis=0) for c in np.unique(labels)}
    covariances = {c: np.cov(rows[labels == c], rowvar=False) for c in means}
    columns = []
    for c in means:
        mean, matrix = means[c], covariances[c]
        if c not in base and np.sum(labels == c) <= max_samples:
            cosines = [literal.to_unit(mean) @ literal.to_unit(means[b]) for b in base]
            weights = np.exp(16 * np.array(cosines)) / np.sum(np.exp(16 * np.array(cosines)))
            lent = sum(w * literal.to_unit(means[b]) for w, b in zip(weights, base, strict=True))
            mean = alpha * literal.to_unit(mean) + (1 - alpha) * literal.to_unit(lent)
            matrix = matrix + sum(w * covariances[b] for w, b in zip(weights, base, strict=True))
        matrix = literal.correlation(literal.shrink(matrix, *gammas, False))
        columns.append(-literal.mahalanobis(queries, literal.to_unit(mean), matrix))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("gammas", [(1, 1), (100, 100)])
def test_calibration(gammas):
    rows, labels = relu_features(6, 30, 16, 3)
    keep = (labels < 3) | (np.arange(len(labels)) % 30 < 5) | (labels == 5)
    rows, labels = rows[keep] + 0.01, labels[keep]  # 5 of classes 3 and 4, all of the others
    head = make("calibrated-fecam", tukey=0.5, max_samples=10, shrinkage=gammas)
    for task in (labels < 3, labels == 3, labels > 3):
        head.partial_fit(rows[task], labels[task])
    expected = literal_calibrated(rows, labels, rows, [0, 1, 2], gammas=gammas)
    np.testing.assert_allclose(head.decision_function(rows), expected, rtol=2e-3, atol=1e-4)
    plain = make("fecam", preset="paper", prototype="mean-of-transforms", shrinkage=gammas)
    for task in (labels < 3, labels == 3, labels > 3):
        plain.partial_fit(rows[task], labels[task])
    gap = np.abs(head.decision_function(rows) - plain.decision_function(rows)).max(axis=0)
    assert (gap[[0, 1, 2, 5]] < 1e-4).all() and (gap[[3, 4]] > 1e-2).all()


def test_calibrated_statistics_are_not_stored():
    rows, labels = relu_features(4, 5, 8, 3)
    head, plain = make("calibrated-fecam"), make("fecam", l2="compare", pooling=0.0)
    for task in (labels < 2, labels > 1):
        head.partial_fit(rows[task], labels[task])
        plain.partial_fit(rows[task], labels[task])
    head.predict(rows)
    for label, one in head.state_.classes.items():
        np.testing.assert_allclose(one.mean, plain.state_.classes[label].mean)


def test_singular_float32_covariance_can_be_sampled():
    """Fewer samples than features, kept as a triangle: rounding makes some eigenvalues negative."""
    rng = np.random.default_rng(0)
    loud = rng.random((42, 128)).astype(np.float32) * np.geomspace(1, 1e-3, 128, dtype=np.float32)
    head = make("gaussian-linear", samples=50)
    X = np.concatenate([loud, loud[:, ::-1]])
    y = np.repeat([0, 1], 42)
    head.partial_fit(X, y).partial_fit(loud + 1, np.full(42, 2))
    assert (head.predict(X) == y).mean() > 0.9
    rotten = np.diag(np.array([1.0, 1.0, 1.0, -1e-6 * 3]))  # as rounding leaves it
    assert np.isfinite(_cholesky(rotten)).all()
    with pytest.raises(SingularMatrixError, match="Learn a new model"):
        _cholesky(np.diag([1.0, -1.0]))


@pytest.mark.parametrize("kind", ["linear", "svm"])
def test_linear_classifiers_with_many_classes_and_few_samples(kind):
    """Gradients are small then, and must not pass for a solution that has been found."""
    rng = np.random.default_rng(0)
    means = rng.random((150, 64)) * (rng.random((150, 64)) < 0.3)
    X = np.repeat(means, 4, axis=0) + 0.02 * rng.random((600, 64))
    y = np.repeat(np.arange(150), 4)
    found = fit_linear(X, y, kind)
    assert (found.labels[found.scores(X).argmax(1)] == y).mean() > 0.95
