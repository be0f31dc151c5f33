"""Rows that are measured while learning: together as one by one, and few where they cost much."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fecam import FeCAMClassifier
from fecam.core import left_out_scores
from fecam.core.calibration_rows import SHARPNESS_GRID, columns_of
from fecam.core.expected import CalibratedPredictor
from fecam.core.leave_one_out import left_out_distances
from fecam.core.novelty import contrast_scores
from helpers.features import relu_features


@pytest.mark.parametrize("settings", [{}, {"pooling": 0.0}, {"covariance": "pooled"}])
def test_rows_of_several_classes_are_measured_as_those_of_one(settings):
    X, y = relu_features(6, 12, 16, 4)
    clf = FeCAMClassifier(dtype="float64", **settings).fit(X, y)
    predictor = CalibratedPredictor(clf.state_, clf.metric_)
    common = (
        list(clf.state_.classes.values()),
        predictor.precisions,
        clf.metric_,
        predictor.class_prior,
        predictor.dof,
    )
    rows = clf.state_.transform(X[::4].astype(np.float64))
    own = y[::4].astype(np.intp)
    compared = np.random.default_rng(0).random((len(rows), 6)) < 0.5
    together = left_out_distances(rows, own, *common, compared)
    assert np.isinf(together[~compared]).all()
    for label in range(6):
        alone = left_out_distances(rows[own == label], label, *common)
        chosen = compared[own == label]
        np.testing.assert_allclose(together[own == label][chosen], alone[chosen], rtol=1e-9)


def test_a_batch_measures_a_limited_number_of_rows(monkeypatch):
    X, y = relu_features(40, 20, 12, 5)
    clf = FeCAMClassifier().fit(X, y)
    rows = [stats.calibration for stats in clf.state_.classes.values()]
    measured = [len(columns_of(one).losses) for one in rows if one is not None]
    assert 0 < len(measured) <= left_out_scores.MEASURED_CLASSES
    assert len(set(measured)) == 1
    monkeypatch.setattr(left_out_scores, "CHEAP_FLOPS", 0)
    clf = FeCAMClassifier().fit(X, y)
    rows = [stats.calibration for stats in clf.state_.classes.values()]
    assert 0 < sum(len(one) for one in rows if one is not None) <= left_out_scores.MEASURED_ROWS


def test_rows_are_compared_with_the_classes_nearest_to_them(monkeypatch):
    """And not with those nearest to their class, among which errors of single rows are missed."""
    calls = []

    def recorded(rows, own, *others):
        calls.append((rows, own, others[-1]))
        return left_out_distances(rows, own, *others)

    monkeypatch.setattr(left_out_scores, "MAX_RIVALS", 3)
    monkeypatch.setattr(left_out_scores, "left_out_distances", recorded)
    X, y = relu_features(20, 12, 16, 9)
    clf = FeCAMClassifier(dtype="float64").fit(X, y)
    (rows, own, compared), predictor = calls[0], clf.predictor_
    distances = cdist(predictor.in_pooled_space(rows), predictor.pooled_space.means)
    distances[np.arange(len(rows)), own] = 0
    nearest = np.argsort(distances, axis=1)[:, :4]
    assert (compared.sum(axis=1) == 4).all() and np.take_along_axis(compared, nearest, 1).all()


def test_a_new_class_among_many_derives_few_precisions():
    X, y = relu_features(64, 30, 12, 6)
    clf = FeCAMClassifier(pooling=0.0).fit(X[y < 50], y[y < 50])
    clf.set_state(clf.state_)  # nothing is derived
    for label in range(50, 64):
        clf.partial_fit(X[y == label], y[y == label])
    measured = [clf.state_.classes[label].calibration is not None for label in range(50, 64)]
    assert 1 <= sum(measured) <= 3
    assert len(clf.predictor_._derived) <= 3 * (left_out_scores.FEW_RIVALS + 1)


@pytest.mark.parametrize("count", [3, 12])
def test_scores_in_the_pooled_metric_are_those_of_a_model_without_the_row(count):
    """For a row left out, the distance to its own mean is as large as with all samples."""
    X, y = relu_features(6, count, 16, 7)
    X = X.astype(np.float64) + 0.05
    clf = FeCAMClassifier(dtype="float64").fit(X, y)
    predictor = CalibratedPredictor(clf.state_, clf.metric_)
    formula, fitted = [], []
    for i in range(0, len(X), count):
        row, own = clf.state_.transform(X[i : i + 1]), int(y[i])
        formula.append(left_out_scores._left_out_contrasts(predictor, row, own)[0])
        others = np.arange(len(X)) != i
        without = FeCAMClassifier(dtype="float64").fit(X[others], y[others])
        left = CalibratedPredictor(without.state_, without.metric_)
        space, query = left.pooled_space, left.in_pooled_space(row)
        squares = space.squares(query) * predictor.pooled_space.scales
        squares[:, own] *= (1 + 1 / count) / (1 + 1 / (count - 1))
        fitted.append(contrast_scores(squares, space._background(query))[0])
    # The logarithms of ratios, whose logarithms the scores are.
    np.testing.assert_allclose(np.exp(np.negative(formula)), np.exp(np.negative(fitted)), atol=0.1)


def test_samples_that_were_not_learned_are_measured_by_their_distances():
    X, y = relu_features(4, 40, 12, 8)
    clf = FeCAMClassifier(dtype="float64").fit(X[::2], y[::2])
    new, owners = X[1::2][:70].astype(np.float64), y[1::2][:70]
    predictor = CalibratedPredictor(clf.state_, clf.metric_)
    queries = clf.state_.transform(new)
    measured = left_out_scores.measured_queries(predictor, queries, owners.tolist())
    assert set(measured) == set(owners.tolist())
    assert left_out_scores.measured_queries(predictor, queries[:0], []) == {}
    for label, rows in measured.items():
        columns = columns_of(rows)
        assert len(rows) == min((owners == label).sum(), left_out_scores.MAX_CALIBRATION_ROWS)
        distances = -clf.decision_function(new[owners == label])[: len(rows)]
        logits = -SHARPNESS_GRID[5] * np.sqrt(distances / predictor.mean_expected)
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[:, label]
        np.testing.assert_allclose(columns.losses[:, 5], loss, rtol=1e-4, atol=1e-5)
        assert set(columns.n_classes) == {4.0} and set(columns.dof) == {float(predictor.dof)}


@pytest.mark.parametrize("per_class", [8, 20, 150])
def test_the_share_of_rejected_samples_is_as_stated(per_class):
    """For precisions of low rank and in a shared basis."""
    X, y = relu_features(20, per_class + 50, 96, 1)
    is_new = np.arange(len(y)) % (per_class + 50) >= per_class
    clf = FeCAMClassifier().fit(X[~is_new], y[~is_new]).warm_up()
    novelty = clf.novelty(X[is_new])
    assert 0.01 < np.mean(novelty > 1.6449) < 0.12
    assert abs(np.median(novelty)) < 0.4
