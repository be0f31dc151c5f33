"""Learners whose class statistics follow the network: LDC, ADC, DPCR, EFC, AdaGauss, FeCAM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from fecam.errors import TrainingError
from fecam.learners import make
from fecam.learners.mechanisms.adversarial_images import moved_towards, taken_for
from fecam.learners.mechanisms.category_maps import ridge_classifier, row_space
from fecam.learners.mechanisms.class_statistics import remembered_features
from fecam.learners.mechanisms.drift import linear_map, map_covariances
from fecam.learners.mechanisms.feature_adapter import anti_collapse, sampled_statistics
from fecam.learners.mechanisms.feature_metric import (
    feature_metric,
    metric_distance,
    metric_weights,
)
from fecam.learners.mechanisms.moving_state import MapOptions, move_state
from fecam.learners.oracle_ladder import OracleLadder
from helpers.small_learners import RECIPE, finish, learned, new, tasks

RNG = np.random.default_rng(0)
STILL = replace(RECIPE, later=replace(RECIPE.later, learning_rate=1e-30))
"""Later tasks leave the network as it is, except for its batch statistics."""
SAME_TRAINING = ("lwf-sdc", "ldc", "adc", "dpcr", "fecam-moving")


@pytest.mark.parametrize("name", ["lwf-sdc", "ldc", "adc", "efc"])
def test_means_stay_if_the_network_does(name):
    learner = new(name, recipe=STILL, batch_norm="frozen")
    if name == "efc":
        learner.optimizer = "recipe"
    train_data, _ = tasks()
    finish(learner, train_data[0])
    before = learner.kept["statistics"]["means"].clone()
    for data in train_data[1:]:
        finish(learner, data)
    torch.testing.assert_close(
        learner.kept["statistics"]["means"][:2], before, rtol=1e-4, atol=1e-5
    )


def test_statistics_of_fecam_stay_if_the_network_does():
    learner = new("fecam-moving", recipe=STILL, batch_norm="frozen")
    train_data, _ = tasks()
    finish(learner, train_data[0])
    before = learner.head.state_.classes
    for data in train_data[1:]:
        finish(learner, data)
    for label, stats in before.items():
        now = learner.head.state_.classes[label]
        np.testing.assert_allclose(now.mean, stats.mean, atol=1e-5)
        np.testing.assert_allclose(now.scatter.data, stats.scatter.data, atol=1e-4)
        assert now.count == stats.count


def test_methods_that_train_alike_have_the_same_weights_and_share_checkpoints(tmp_path):
    train_data, _ = tasks()
    learners = [new(name) for name in SAME_TRAINING]
    for index, data in enumerate(train_data[:2]):
        path = tmp_path / f"{index}.safetensors"
        records = [finish(learner, data, checkpoint=path) for learner in learners]
        assert not any(record.restored for record in records[0])
        assert all(record.restored for others in records[1:] for record in others)
    for learner in learners[1:]:
        for a, b in zip(
            learners[0].network.parameters(), learner.network.parameters(), strict=True
        ):
            assert torch.equal(a, b)
    other = learned("ldc", 1, weight=3.0)
    with pytest.raises(TrainingError, match="the checkpoint of another run"):
        finish(other, train_data[1], checkpoint=tmp_path / "1.safetensors")


@pytest.mark.parametrize("name", ["ldc", "adc", "efc", "fecam-moving"])
def test_a_nearest_mean_head_has_the_means_of_the_method(name):
    learner = learned(name, head="ncm")
    if name == "fecam-moving":
        assert "statistics" not in learner.kept
        return
    order = np.argsort(learner.classes)
    kept = learner.kept["statistics"]["means"].numpy()[order]
    np.testing.assert_allclose(learner.head.state_.means, kept, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------ LDC and DPCR


def test_a_linear_drift_moves_means_and_covariances_exactly():
    old, linear = RNG.normal(size=(60, 5)), RNG.normal(size=(5, 5))
    mapped = linear_map(old, old @ linear, ridge=0)
    np.testing.assert_allclose(mapped, linear, atol=1e-9)
    rows = RNG.normal(size=(30, 5))
    moved = map_covariances(np.cov(rows.T), mapped)
    np.testing.assert_allclose(moved, np.cov((rows @ linear).T), atol=1e-9)


def test_the_ridge_classifier_is_that_of_all_samples_in_any_order_of_classes():
    rows, labels = RNG.normal(size=(40, 4)), np.arange(40) % 3
    one_hot = np.eye(3)[labels]
    joint = np.linalg.solve(rows.T @ rows + 0.7 * np.eye(4), rows.T @ one_hot).T
    joint /= np.linalg.norm(joint, axis=1, keepdims=True)
    for order in ([0, 1, 2], [2, 0, 1]):
        groups = [rows[labels == c] for c in order]
        grams, sums = np.stack([x.T @ x for x in groups]), np.stack([x.sum(0) for x in groups])
        np.testing.assert_allclose(ridge_classifier(grams, sums, 0.7), joint[order], atol=1e-9)


def test_directions_that_are_noise_are_not_directions_of_a_class():
    rows = np.zeros((20, 6), np.float32)
    rows[:, :2] = RNG.normal(size=(20, 2))
    rows += 1e-6 * RNG.normal(size=rows.shape)
    assert round(np.trace(row_space(rows.T @ rows, 1e-6))) == 2


def test_dpcr_predicts_as_a_ridge_regression_if_the_network_stays():
    learner = new("dpcr", recipe=STILL, batch_norm="frozen", ridge=1.0)
    train_data, test = tasks()
    finish(learner, train_data[0])
    features = learner.features(train_data[0]).astype(np.float64)
    labels = np.asarray(train_data[0].labels)
    one_hot = (labels[:, None] == np.array(learner.classes)).astype(float)
    ridge = np.bincount(labels)[list(learner.classes)].mean() / 500
    weights = np.linalg.solve(
        features.T @ features + ridge * np.eye(features.shape[1]), features.T @ one_hot
    )
    weights /= np.linalg.norm(weights, axis=0)
    expected = (learner.features(test).astype(np.float64) @ weights).argmax(1)
    got = learner.predict(test)
    assert (got == np.array(learner.classes)[expected]).mean() > 0.95


# --------------------------------------------------------------------------------------------- ADC


def test_images_move_along_the_gradient():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images, target = torch.rand(5, 3, 2, 2), torch.tensor([3.0, -1.0, 0.5])
    moved = moved_towards(network, images, target, step=2.0, steps=1, bounds=(-9.0, 9.0))
    weight = network[1].weight.detach()
    difference = network(images).detach() - target
    gradient = (difference @ weight).reshape(images.shape)
    expected = images - 2.0 * (5 / 100) ** 0.5 * gradient / gradient.norm()
    torch.testing.assert_close(moved, expected)
    assert (network(moved) - target).norm() < difference.norm()
    assert torch.equal(
        moved_towards(network, images, target, step=2, steps=0, bounds=(0, 1)), images
    )


def test_more_images_are_taken_for_the_class_after_more_steps():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    images, means = torch.rand(50, 3, 2, 2), torch.eye(4) * 3

    def scores(features):
        return -torch.cdist(features, means)

    shares = []
    for steps in (0, 2, 8):
        moved = moved_towards(network, images, means[2], step=3.0, steps=steps, bounds=(-9, 9))
        shares.append(float((scores(network(moved)).argmax(1) == 2).float().mean()))
    assert shares[0] < shares[1] <= shares[2]
    none = torch.zeros(3, 4)
    none[:, 0] = 1
    assert taken_for(2, none, lambda x: x).all()


def test_without_steps_means_follow_their_nearest_images():
    train_data, _ = tasks()
    learner = learned("adc", 1)
    learner.steps, learner.images = 0, 1000
    means = learner.kept["statistics"]["means"].clone()
    before = learner.features(train_data[1])
    network = {k: v.clone() for k, v in learner.network.state_dict().items()}
    finish(learner, train_data[1])
    after = learner.features(train_data[1])
    assert any(not torch.equal(v, network[k]) for k, v in learner.network.state_dict().items())
    units, centers = (torch.nn.functional.normalize(torch.as_tensor(x)) for x in (before, means))
    nearest = (units @ centers.T).argmax(1).numpy()
    for index in range(2):
        rows = nearest == index
        rows = rows if rows.any() else ~rows
        expected = means[index].numpy() + (after - before)[rows].mean(0)
        got = learner.kept["statistics"]["means"][index].numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


# --------------------------------------------------------------------------------------------- EFC


def test_the_metric_is_the_information_of_the_outputs():
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    features = torch.randn(30, 6).double()
    metric = feature_metric(layer(features), layer.weight).detach()
    total = torch.zeros(6, 6).double()
    for x in features:
        p = layer(x).softmax(0)
        jacobian = torch.autograd.functional.jacobian(lambda v: layer(v).log_softmax(0), x)
        total += sum(p[c].detach() * torch.outer(jacobian[c], jacobian[c]) for c in range(4))
    torch.testing.assert_close(metric, total / 30)
    values = torch.linalg.eigvalsh(metric)
    assert values.min() > -1e-12 and int((values > 1e-9).sum()) <= 3
    x, d = features[:1], 1e-3 * torch.randn(1, 6).double()
    one = feature_metric(layer(x), layer.weight)
    p, q = layer(x).log_softmax(1), layer(x + d).log_softmax(1)
    divergence = (p.exp() * (p - q)).sum()
    torch.testing.assert_close(divergence, 0.5 * (d @ one @ d.T).sum(), rtol=1e-2, atol=0)


def test_in_the_identity_the_metric_distance_is_the_squared_distance():
    a, b = torch.randn(7, 5), torch.randn(7, 5)
    expected = (a - b).square().sum(1).mean()
    torch.testing.assert_close(metric_distance(a, b, torch.eye(5), 1.0, damping=0), expected)
    torch.testing.assert_close(metric_distance(a, b, torch.zeros(5, 5), 1.0, damping=1), expected)


def test_weights_ignore_directions_that_the_metric_does_not_see():
    old, means = RNG.normal(size=(20, 3)), RNG.normal(size=(2, 3))
    metric = np.diag([1.0, 2.0, 0.0])
    moved = old + np.array([0.0, 0.0, 50.0]) * RNG.normal(size=(20, 1))
    expected = metric_weights(means, old, metric, 0.2)
    np.testing.assert_allclose(metric_weights(means, moved, metric, 0.2), expected)
    np.testing.assert_allclose(expected.sum(1), 1)


def test_efc_plus_plus_replays_afterwards():
    learner = learned("efc", 2, variant="efc++", rotations=False)
    train_data, _ = tasks()
    records = finish(learner, train_data[2])
    assert set(records[-1].losses) == {"metric"}
    assert set(finish(learned("efc", 1), train_data[1])[-1].losses) == {"metric", "replay"}


# ---------------------------------------------------------------------------------------- AdaGauss


def test_statistics_through_the_identity_are_those_of_the_samples():
    means = torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 5.0]])
    factors = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    covariances = factors @ factors.mT
    moved, spread = sampled_statistics(nn.Identity(), means, covariances, 10_000, seed=0)
    errors = (moved - means).norm(dim=1)
    sampling = (covariances.diagonal(dim1=1, dim2=2).sum(1) / 10_000).sqrt()
    assert (errors < 3 * sampling).all()
    torch.testing.assert_close(spread, covariances, rtol=0.1, atol=0.1)


def test_the_loss_against_collapse_is_lowest_at_a_covariance_of_one_or_more():
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    wide, flat = anti_collapse(20 * rows), anti_collapse(rows * torch.tensor([20, 20, 20, 20, 0.0]))
    assert wide.item() == pytest.approx(-1) and flat.item() == pytest.approx(-0.8, abs=0.01)
    small = (0.1 * rows).requires_grad_(True)
    anti_collapse(small).backward()
    assert anti_collapse(small.detach() - small.grad) < anti_collapse(small.detach())


def test_a_batch_must_have_more_images_than_features():
    train_data, _ = tasks()
    with pytest.raises(TrainingError, match="too few for the covariance of 64 features"):
        finish(make("adagauss").start(RECIPE), train_data[0])


# -------------------------------------------------------------------------------------- FeCAM, ours


def test_features_of_the_first_network_stay_beside_those_of_the_current_one(tmp_path):
    train_data, test = tasks()
    learner = learned("fecam-moving", 1)
    first = learner.features(test)
    half = first.shape[1] // 2
    means = {k: v.raw_mean[:half] for k, v in learner.head.state_.classes.items()}
    for data in train_data[1:]:
        finish(learner, data)
    now = learner.features(test)
    np.testing.assert_allclose(now[:, :half], first[:, :half], rtol=1e-5, atol=1e-6)
    assert not np.allclose(now[:, half:], first[:, half:], rtol=1e-2)
    for label, mean in means.items():
        moved = learner.head.state_.classes[label].raw_mean[:half]
        np.testing.assert_allclose(moved, mean, rtol=1e-3, atol=1e-4)
    alone = learned("fecam-moving", 3, first_network=False)
    np.testing.assert_array_equal(alone.features(test), now[:, half:])
    assert learner.memory()["first network"] == learner.memory()["network"]
    assert learner.n_parameters() > 1.9 * alone.n_parameters()
    learner.save(tmp_path / "state")
    again = new("fecam-moving")
    again.load(tmp_path / "state")
    np.testing.assert_array_equal(again.predict(test), learner.predict(test))


def test_a_linear_drift_moves_the_statistics_of_fecam_exactly():
    from fecam import FeCAMClassifier

    rows, linear = RNG.normal(size=(60, 6)), np.eye(6) + 0.3 * RNG.normal(size=(6, 6))
    labels, shift = np.arange(60) % 3, RNG.normal(size=6)
    other = RNG.normal(size=(80, 6))
    plain = {"tukey": None, "l2": None, "dtype": "float64"}
    head = FeCAMClassifier(**plain).fit(rows, labels)
    state = move_state(head.state_, other, other @ linear + shift, np.arange(80) % 4, MapOptions())
    expected = FeCAMClassifier(**plain).fit(rows @ linear + shift, labels).state_
    for label, stats in expected.classes.items():
        now = state.classes[label]
        assert now.count == stats.count
        np.testing.assert_allclose(now.mean, stats.mean, atol=1e-6)
        np.testing.assert_allclose(now.scatter.data, stats.scatter.data, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------ ladder


def test_all_rungs_of_the_ladder_are_equal_if_the_network_stays():
    learner = new("fecam-moving", recipe=STILL, batch_norm="frozen")
    train_data, test = tasks()
    ladder = OracleLadder(test)
    for data in train_data:
        finish(learner, data)
        ladder.follow(learner, data)
    rungs, drifts = ladder.climb(learner)
    assert rungs.fixed == rungs.moved == rungs.true_means == rungs.true
    assert [drift.since for drift in sorted(drifts, key=lambda d: d.label)] == [2, 2, 1, 1]
    assert all(max(d.true, d.predicted, d.error) < 1e-4 for d in drifts)


def test_the_ladder_tells_moved_statistics_from_those_of_old_images():
    learner, ladder = new("fecam-moving"), OracleLadder(tasks()[1])
    for data in tasks()[0]:
        finish(learner, data)
        ladder.follow(learner, data)
    rungs, drifts = ladder.climb(learner)
    X = np.concatenate([learner.features(data) for data in tasks()[0]])
    y = np.concatenate([data.labels for data in tasks()[0]])
    true = clone(learner.head).fit(X, y)
    test = tasks()[1]
    assert rungs.true == true.score(learner.features(test), test.labels)
    assert rungs.moved == learner.head.score(learner.features(test), test.labels)
    for drift in drifts:
        mean = learner.head.state_.stats_of(drift.label).mean
        gap = np.linalg.norm(true.state_.stats_of(drift.label).mean - mean)
        assert drift.error == pytest.approx(gap) and drift.true > 0
        assert abs(drift.true - drift.predicted) <= drift.error + 1e-9


def test_remembered_features_are_those_of_equal_weights_and_the_same_images():
    train_data, _ = tasks()
    one, same, other = learned("ldc", 2), learned("adc", 2), learned("ldc", 1)
    plain = [x.features(train_data[0]) for x in (one, same, other)]
    with remembered_features():
        again = [x.features(train_data[0]) for x in (one, same, other)]
        assert one.features(train_data[0]) is again[0] and again[1] is again[0]
        assert len(one.features(train_data[1])) == len(train_data[1])
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.features(train_data[0]) is not again[0]


def test_the_ladder_needs_statistics_of_fecam():
    with pytest.raises(TrainingError, match="the head is NearestMean"):
        OracleLadder(tasks()[1]).follow(learned("ldc", 1, head="ncm"), tasks()[0][0])
    with pytest.raises(TrainingError, match="no task was followed"):
        OracleLadder(tasks()[1]).climb(learned("fecam-moving", 1))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ldc", {"fit": "svd"}, "fit='svd'"),
        ("ldc", {"ridge": -1.0}, "ridge=-1.0"),
        ("adc", {"images": 0}, "images=0"),
        ("adc", {"steps": -1}, "steps=-1"),
        ("dpcr", {"tolerance": 1.0}, "tolerance=1.0"),
        ("efc", {"variant": "efc+"}, "variant='efc\\+'"),
        ("adagauss", {"bottleneck": 1}, "bottleneck=1"),
        ("fecam-moving", {"ridge": -1.0}, "ridge=-1.0"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(TrainingError, match=message):
        make(name, **options)
