"""PASS, IL2A, SSRE: their losses against literal ones, and what they keep."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners import make
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.adapters import AdaptedConv
from fecam.training.hooks import Step
from helpers.small_learners import RECIPE, finish, learned, tasks, tensors
from helpers.small_networks import PLAN, same

PROTOTYPE = ("pass", "il2a", "ssre")
QUICK = replace(RECIPE, first=replace(PLAN, epochs=1), later=replace(PLAN, epochs=1))


def during_a_task(name, task=1, **options):
    """A learner in a later task, its hooks and a batch after the forward pass."""
    train_data, _ = tasks()
    learner = learned(name, task, QUICK, **options)
    now = learner._task(train_data[task])
    learner._grow(now)
    for module in (learner.network, learner.classifier):
        module.requires_grad_(True).zero_grad()
    learner.before_task(now)
    hooks = learner.hooks(now)
    _, images = next(iter(now.images.eval_batches(8)))
    labels = now.positions[now.images.rows[:8]]
    generator = torch.Generator().manual_seed(0)
    if hooks.batch is not None:
        images, labels = hooks.batch(images, labels, generator)
    features = learner.network.eval()(images)
    features.retain_grad()
    step = Step(
        learner.network, learner.classifier, {}, 0, images, labels, torch.arange(8), features,
        learner.classifier(features), generator,
    )  # fmt: skip
    return learner, hooks, step


def means_of(learner):
    """The mean feature per class of the classes seen so far, from the images of their tasks."""
    train_data, _ = tasks()
    return {
        label: learner.features(data.subset(data.labels == label)).mean(0)
        for data in train_data
        for label in set(data.labels.tolist())
        if label in learner.classes
    }


# -- what all three share --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOTYPE)
def test_replay_reaches_the_classifier_only(name):
    learner, hooks, step = during_a_task(name)
    hooks.losses["replay"](step).backward()
    assert all(value.grad is None for value in learner.network.parameters())
    assert learner.classifier.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", PROTOTYPE)
def test_distillation_starts_at_zero(name):
    """The network has not changed yet, so old and new features are equal."""
    _, hooks, step = during_a_task(name)
    assert hooks.losses["distillation"](step).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", PROTOTYPE)
def test_means_are_in_the_order_of_the_outputs_over_three_tasks(name):
    train_data, _ = tasks()
    learner = make(name).start(QUICK)
    expected = []
    for data in train_data:
        finish(learner, data)
        means = means_of(learner)
        expected += [means[label] for label in sorted(set(data.labels.tolist()))]
        kept = learner.kept["statistics"]["means"].numpy()
        np.testing.assert_allclose(kept, np.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROTOTYPE)
def test_the_optimizer_is_the_published_one_unless_the_recipe_is_asked_for(name):
    learner = make(name).start(RECIPE)
    plans = [learner.plan_for(index) for index in (0, 1)]
    assert {plan.optimizer for plan in plans} == {"adam"}
    rates = [1e-3 * math.sqrt(101 / plan.epochs) for plan in plans]
    rates[1] /= 5 if name == "ssre" else 1
    assert [plan.learning_rate for plan in plans] == pytest.approx(rates)
    long = replace(RECIPE, first=replace(PLAN, epochs=101))
    assert make(name).start(long).plan_for(0).learning_rate == 1e-3
    same_plan = make(name, optimizer="recipe").start(RECIPE)
    assert same_plan.plan_for(1) == Learner.plan_for(same_plan, 1)
    fixed = make(name, learning_rate=0.5).start(RECIPE)
    assert fixed.plan_for(0).learning_rate == 0.5


@pytest.mark.parametrize("name", PROTOTYPE)
def test_without_extra_losses_a_task_is_sharpened_cross_entropy(name):
    learner, hooks, step = during_a_task(name, replay=0.0, distillation=0.0)
    total = hooks.loss(step) + sum(loss(step) for loss in hooks.losses.values())
    losses = functional.cross_entropy(step.logits / 0.1, step.labels, reduction="none")
    if name == "ssre":
        cosines = functional.cosine_similarity(
            step.features[:, None], learner.kept["statistics"]["means"], dim=2
        )
        losses = (1 - cosines.max(1).values) * losses
    assert total.item() == pytest.approx(losses.mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", PROTOTYPE)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature=0"),
        ({"replay": -1.0}, "replay=-1"),
        ({"distillation": math.nan}, "distillation=nan"),
        ({"optimizer": "adm"}, "Did you mean 'adam'"),
        ({"learning_rate": 0}, "learning_rate=0"),
    ],
)
def test_options_out_of_range_are_rejected(name, options, message):
    with pytest.raises(TrainingError, match=message):
        make(name, **options)


# -- PASS ------------------------------------------------------------------------------------------


def test_pass_trains_four_rotations_and_predicts_with_every_fourth_output():
    learner, _, step = during_a_task("pass")
    assert len(step.images) == 32 and learner.classifier.weight.shape[0] == 16
    assert step.labels[::4].tolist() == [4 * c for c in (step.labels[::4] // 4).tolist()]
    assert torch.equal(step.images[1::4], step.images[::4].rot90(1, (2, 3)))
    features = torch.randn(5, learner.network.n_features)
    assert torch.equal(learner.scores(features), learner.classifier(features)[:, ::4])


def test_the_losses_of_pass_equal_their_formulas():
    learner, hooks, step = during_a_task("pass")
    means = learner.kept["statistics"]["means"]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (8,), generator=generator)
    noise = torch.randn(8, means.shape[1], generator=generator)
    train_data, _ = tasks()
    variances = [
        learner.features(train_data[0].subset(train_data[0].labels == c)).var(0, ddof=1).mean()
        for c in (0, 1)
    ]
    radius = math.sqrt(sum(variances) / 2)
    samples = means[labels] + radius * noise
    expected = 10 * functional.cross_entropy(learner.classifier(samples) / 0.1, 4 * labels)
    again = replace(step, generator=torch.Generator().manual_seed(0))
    assert hooks.losses["replay"](again).item() == pytest.approx(expected.item(), rel=1e-4)
    with torch.no_grad():
        for value in learner.network.parameters():
            value.mul_(1.1)
        moved = learner.network(step.images)
        old = learner.old.network(step.images)
    moved_step = replace(step, features=moved)
    weight = 10 * math.sqrt(256 * 512 / moved.numel())
    expected = weight * torch.dist(moved, old)
    assert hooks.losses["distillation"](moved_step).item() == pytest.approx(expected.item())


def test_pass_without_a_radius_replays_means_as_ssre_does():
    learner, hooks, step = during_a_task("pass", rotations=False)
    learner.kept["statistics"]["variances"].zero_()
    means = learner.kept["statistics"]["means"]
    labels = torch.randint(2, (8,), generator=torch.Generator().manual_seed(0))
    expected = 10 * functional.cross_entropy(learner.classifier(means[labels]) / 0.1, labels)
    again = replace(step, generator=torch.Generator().manual_seed(0))
    assert hooks.losses["replay"](again).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_radius_of_pass_stays_that_of_the_first_task():
    first, every = learned("pass", 2, QUICK), learned("pass", 2, QUICK, radius="all")
    variances = first.kept["statistics"]["variances"]
    assert first._radius() == variances[:2].mean().sqrt()
    assert every._radius() == every.kept["statistics"]["variances"].mean().sqrt()


def test_pass_needs_variances_and_something_to_distinguish():
    train_data, _ = tasks()
    one_each = train_data[0].subset([0, 1])
    with pytest.raises(TrainingError, match=r"has 1 readable image.*Add images"):
        finish(make("pass").start(QUICK), one_each)
    alone = train_data[0].subset(train_data[0].labels == 1)
    with pytest.raises(TrainingError, match="nothing to distinguish"):
        finish(make("pass", rotations=False).start(QUICK), alone)
    finish(make("pass").start(QUICK), alone)


# -- IL2A ------------------------------------------------------------------------------------------


def test_each_class_keeps_its_own_covariance_over_three_tasks():
    """In the authors' code old classes get the covariances of others from the third task on."""
    train_data, _ = tasks()
    learner = make("il2a").start(QUICK)
    expected = []
    for data in train_data:
        finish(learner, data)
        for label in sorted(set(data.labels.tolist())):
            expected.append(np.cov(learner.features(data.subset(data.labels == label)).T))
        kept = learner.kept["statistics"]["covariances"].numpy()
        np.testing.assert_allclose(kept, np.stack(expected), rtol=1e-3, atol=1e-5)
    learner, _, _ = during_a_task("il2a", 2)
    shown = []

    def literal(c):
        statistics = learner.kept["statistics"]
        weight, bias = learner.classifier.weight[:6], learner.classifier.bias[:6]
        row = []
        for j in range(6):
            d = weight[j] - weight[c]
            spread = d @ statistics["covariances"][c] @ d
            row.append(weight[j] @ statistics["means"][c] + bias[j] + 2.5 / 2 * spread)
        return torch.stack(row)

    for c in range(4):
        loss = learner._replay(learner.classifier, torch.tensor([c]), 6)
        expected = functional.cross_entropy(literal(c)[None] / 0.1, torch.tensor([c]))
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
        shown.append(loss.item())
    assert len(set(shown)) == 4


def test_without_covariances_il2a_replays_means_and_with_them_the_loss_is_larger():
    learner, _, _ = during_a_task("il2a")
    labels = torch.tensor([0, 1, 1])
    larger = {}
    for bound in ("published", "exact"):
        learner.bound = bound
        larger[bound] = learner._replay(learner.classifier, labels, 4)
    statistics = learner.kept["statistics"]
    logits = learner.classifier(statistics["means"][labels])[:, :4]
    plain = functional.cross_entropy(logits / 0.1, labels)
    statistics["covariances"].zero_()
    assert learner._replay(learner.classifier, labels, 4).item() == pytest.approx(plain.item())
    assert plain <= larger["published"] <= larger["exact"]


def test_outputs_of_pairs_exist_only_during_a_task():
    learner, _, step = during_a_task("il2a", 1)
    assert learner.classifier.weight.shape[0] == 4 + 1
    assert len(step.images) > 8 and set(step.labels[8:].tolist()) == {4}
    done = learned("il2a", 2, QUICK)
    assert done.classifier.weight.shape[0] == 4
    first, _, _ = during_a_task("il2a", 1, mixtures=0)
    assert first.classifier.weight.shape[0] == 4


def test_il2a_needs_pairs():
    train_data, _ = tasks()
    alone = train_data[0].subset(train_data[0].labels == 1)
    with pytest.raises(TrainingError, match=r"no pairs of classes to mix.*mixtures=0"):
        finish(make("il2a").start(QUICK), alone)
    finish(make("il2a", mixtures=0).start(QUICK), alone)
    with pytest.raises(TrainingError, match="limits="):
        make("il2a", limits=(0.7, 0.3))


@pytest.mark.parametrize("name", ["lwf-mc", "pass", "il2a", "ssre"])
def test_the_classifier_is_linear_whatever_the_recipe_says(name):
    cosine = replace(QUICK, first=replace(PLAN, epochs=1, classifier="cosine"))
    learner = make(name).start(cosine)
    finish(learner, tasks()[0][0])
    assert isinstance(learner.classifier, torch.nn.Linear)
    assert make("lwf").start(cosine).plan_for(0).classifier == "cosine"


# -- SSRE ------------------------------------------------------------------------------------------


def test_ssre_trains_adapters_and_folds_them():
    train_data, _ = tasks()
    learner = learned("ssre", 1, QUICK)
    before = tensors(learner)
    count = learner.n_parameters()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in learner.network.modules())
    now, hooks, step = during_a_task("ssre")
    trained = {name for name, p in now.network.named_parameters() if p.requires_grad}
    assert trained and all(name.endswith(".adapter") for name in trained)
    sum([hooks.loss(step), *(loss(step) for loss in hooks.losses.values())]).backward()
    frozen = [p for name, p in now.network.named_parameters() if name not in trained]
    assert all(p.grad is None for p in frozen)
    finish(learner, train_data[1])
    assert not any(isinstance(module, AdaptedConv) for module in learner.network.modules())
    after = tensors(learner)
    assert list(after) == list(before)
    # The classifier has 2 more rows; the network is as large as before.
    assert learner.n_parameters() == count + 2 * (learner.network.n_features + 1)
    change = after["network.layer1.0.conv1.weight"] - before["network.layer1.0.conv1.weight"]
    assert change[:, :, 1, 1].abs().sum() > 0
    change[:, :, 1, 1] = 0
    assert not change.any()
    assert same(after["network.layer1.0.conv1.bias"], before["network.layer1.0.conv1.bias"])


def test_the_losses_of_ssre_weight_samples_by_their_similarity():
    learner, hooks, step = during_a_task("ssre")
    old = step.features.detach() + 0.1
    learner.old.features = lambda step: old
    means = learner.kept["statistics"]["means"]
    similarity = functional.cosine_similarity(step.features[:, None], means, dim=2).max(1).values
    norms = (step.features - old).norm(dim=1)
    scale = 128 * math.sqrt(512 / step.features.shape[1])
    expected = scale * (similarity * norms).mean()
    loss = hooks.losses["distillation"](step)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("flows", [False, True])
def test_gradients_flow_through_the_similarity_only_if_asked_for(flows):
    learner, _, step = during_a_task("ssre", similarity_gradient=flows)
    assert learner._similarity(step).requires_grad is flows


def test_ssre_rejects_other_networks_before_it_trains():
    class Flat(nn.Module):
        n_features = 4

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(192, 4)

        def forward(self, images):
            return self.layer(images.flatten(1))

    with pytest.raises(TrainingError, match="no 3 x 3 convolutions"):
        finish(make("ssre").start(replace(QUICK, network=Flat)), tasks()[0][0])
