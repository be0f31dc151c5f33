"""The invariants of each method, on small networks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam.learners import make
from fecam.learners.mechanisms.exemplar_memory import concatenated
from fecam.learners.mechanisms.logit_distillation import sigmoid_distillation, softmax_distillation
from fecam.learners.mechanisms.parameter_penalty import (
    fisher_diagonal,
    merge_importance,
    pull_back,
    quadratic_penalty,
    stable_importance,
)
from fecam.training.base_training import new_network
from fecam.training.classifiers import make_classifier
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_learners import LATER, RECIPE, finish, learned, tasks, tensors
from helpers.small_networks import PLAIN, PLAN, same, signs

NO_DECAY = replace(RECIPE, later=replace(LATER, weight_decay=0.0))


def moved(learner, before, prefix="network."):
    now = tensors(learner)
    return max(
        float((now[name] - value).abs().max())
        for name, value in before.items()
        if name.startswith(prefix) and value.is_floating_point() and "running" not in name
    )


# -- the decisions of all learners -----------------------------------------------------------------


def test_growing_the_classifier_leaves_old_logits_and_excluded_rows_unchanged():
    train_data, _ = tasks()
    learner = learned("ft", 1)
    X = torch.from_numpy(learner.features(train_data[0]))
    before, rows = learner.scores(X), learner.classifier.weight.detach().clone()
    finish(learner, train_data[1])
    assert torch.equal(learner.classifier.weight[:2], rows), "also under weight decay"
    torch.testing.assert_close(learner.scores(X)[:, :2], before)
    included = learned("ft", 2, old_rows="included")
    shrunk = included.classifier.weight[:2].detach()
    assert float(shrunk.norm()) < float(rows.norm()), "by weight decay"
    free = learned("ft", 2, NO_DECAY, old_rows="included")
    assert torch.equal(free.classifier.weight[:2], rows), "no gradient from the loss of new ones"
    everything = learned("ft", 2, NO_DECAY, old_rows="included", outputs="all")
    assert not torch.equal(everything.classifier.weight[:2], rows)


def test_batch_normalization_can_be_frozen_after_the_first_task():
    first, frozen = learned("ft", 1), learned("ft", 3, batch_norm="frozen")
    before, after = tensors(first), tensors(frozen)
    norms = [name for name in before if ".bn" in name or "downsample.1" in name]
    assert len(norms) > 50 and same([before[n] for n in norms], [after[n] for n in norms])
    assert moved(frozen, before) > 0
    running = tensors(learned("ft", 2))
    assert not torch.equal(running["network.bn1.running_mean"], before["network.bn1.running_mean"])


def test_the_frozen_network_does_not_change():
    before, after = tensors(learned("ft-frozen", 1)), tensors(learned("ft-frozen", 3))
    names = [name for name in before if name.startswith("network")]
    assert same([before[n] for n in names], [after[n] for n in names])
    assert torch.equal(after["classifier.weight"][:2], before["classifier.weight"])


def test_fine_tuning_equals_a_plain_loop():
    train_data, _ = tasks()
    learner = make("ft", old_rows="included", outputs="all").start(RECIPE)
    network = classifier = None
    for index, data in enumerate(train_data[:2]):
        plan = RECIPE.plan(index)
        if index == 0:
            network, classifier = new_network(RECIPE.network, plan, 2)
        else:
            torch.manual_seed(plan.seed)
            larger = make_classifier("linear", 16, 4)
            with torch.no_grad():
                larger.weight[:2], larger.bias[:2] = classifier.weight, classifier.bias
            classifier = larger
        images = TrainingImages(data, PLAIN)
        list(train(network, classifier, images, plan, classes=[0, 1, 2, 4][: 2 * index + 2]))
        finish(learner, data)
    assert same(learner.network.state_dict().values(), network.state_dict().values())
    assert torch.equal(learner.classifier.weight, classifier.weight)


def test_a_cosine_classifier_keeps_its_rows_and_learns_its_scale():
    plan = replace(PLAN, classifier="cosine", scale=10.0)
    recipe = replace(RECIPE, first=plan, later=replace(plan, epochs=2))
    before, after = learned("ft", 1, recipe), learned("ft", 2, recipe)
    assert torch.equal(after.classifier.weight[:2], before.classifier.weight)
    assert after.classifier.scale != before.classifier.scale


# -- joint -----------------------------------------------------------------------------------------


def test_joint_training_from_scratch_is_training_on_the_whole_data_set():
    train_data, _ = tasks()
    joint = learned("joint", 2)
    both, plan = concatenated(train_data[:2]), RECIPE.plan(1, from_scratch=True)
    network, classifier = new_network(RECIPE.network, plan, 4)
    list(train(network, classifier, TrainingImages(both, PLAIN), plan, classes=[0, 1, 2, 4]))
    assert same(joint.network.state_dict().values(), network.state_dict().values())
    assert plan.epochs == PLAN.epochs
    assert joint.memory()["exemplars"] == len(both) * 3 * 8 * 8


def test_a_warm_start_goes_on_from_the_weights_by_the_plan_of_later_tasks():
    train_data, _ = tasks()
    learner = learned("joint", 1, weights="warm")
    before = tensors(learner)
    records = finish(learner, train_data[1])
    assert len(records) == LATER.epochs and records[0].images == len(concatenated(train_data[:2]))
    assert moved(learner, before) < moved(learned("joint", 2), before)


# -- EWC -------------------------------------------------------------------------------------------


def test_ewc_without_a_penalty_is_fine_tuning():
    assert same(tensors(learned("ewc", weight=0.0)).values(), tensors(learned("ft")).values())


def test_a_strong_penalty_holds_important_weights():
    before = tensors(learned("ft", 1))
    free, held = learned("ft", 2, NO_DECAY), learned("ewc", 1, NO_DECAY, weight=1e8)
    importance = {f"network.{n}": v.clone() for n, v in held.kept["importance"].items()}
    finish(held, tasks()[0][1])
    changes = {
        name: [(tensors(one)[name] - before[name])[values > 1e-4].abs() for one in (free, held)]
        for name, values in importance.items()
    }
    theirs, ours = (torch.cat([pair[i] for pair in changes.values()]) for i in (0, 1))
    assert len(ours) > 1000
    assert ours.max() < 1e-4 < theirs.mean()


@pytest.mark.parametrize("which", ["all", "sampled", "true", "predicted"])
def test_the_fisher_information_of_logistic_regression(which):
    """One image x, two outputs with logits (w x, 0): the information is p (1 - p) x^2."""
    torch.manual_seed(0)
    images = TrainingImages(signs(classes=2, per_class=40), PLAIN)
    network = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), Slope())
    classifier = torch.nn.Linear(1, 2)
    with torch.no_grad():
        classifier.weight[:], classifier.bias[:] = torch.tensor([[1.0], [0.0]]), 0
    x = torch.cat([batch.mean((2, 3))[:, 0] for _, batch in images.eval_batches(16)])
    p = (1.5 * x).sigmoid()
    y = images.labels
    gradients = {
        "all": p * (1 - p) * x**2,
        "true": torch.where(y == 0, 1 - p, p) ** 2 * x**2,
        "predicted": torch.minimum(p, 1 - p) ** 2 * x**2,
        "sampled": p * (1 - p) * x**2,
    }
    generator = torch.Generator().manual_seed(0)
    fisher = fisher_diagonal(
        network, classifier, images, images.labels, range(2), generator, which=which
    )
    assert list(fisher) == ["2.weight"]
    tolerance = 0.5 if which == "sampled" else 1e-4
    assert float(fisher["2.weight"]) == pytest.approx(float(gradients[which].mean()), rel=tolerance)


def test_squared_mean_gradients_are_the_fisher_information_divided_by_the_batch():
    """Why weights of public code, which squares the mean of a batch, do not fit F."""
    x, n = torch.tensor([0.3, -1.2, 0.8, 2.0]), 4
    p = (1.5 * x).sigmoid()
    squared_mean = 0.0
    for labels in product((0.0, 1.0), repeat=n):  # all draws, with their probabilities
        y = torch.tensor(labels)
        squared_mean += float(torch.where(y == 1, p, 1 - p).prod() * ((y - p) * x).mean() ** 2)
    assert squared_mean == pytest.approx(float((p * (1 - p) * x**2).mean()) / n)
    assert make("ewc").weight == 5000 / 64


class Slope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.weight * x[:, :1]


def test_the_fisher_information_is_of_single_images_and_changes_nothing():
    learner, data = learned("ewc", 1), tasks()[0][0]
    before = tensors(learner)
    images = TrainingImages(data, PLAIN)
    positions = torch.tensor([[0, 1].index(label) for label in data.labels.tolist()])
    fisher = fisher_diagonal(
        learner.network, learner.classifier, images, positions, range(2),
        torch.Generator(), which="true",
    )  # fmt: skip
    assert same(before.values(), tensors(learner).values()), "batch statistics included"
    expected = {name: torch.zeros_like(value) for name, value in fisher.items()}
    for rows, batch in images.eval_batches(1):
        logits = learner.classifier(learner.network(batch))
        learner.network.zero_grad()
        functional.cross_entropy(logits, positions[rows]).backward()
        for name, parameter in learner.network.named_parameters():
            expected[name] += parameter.grad**2 / len(images)
    for name, value in fisher.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-7)


def test_a_share_of_the_images_is_used_and_the_penalty_is_merged():
    old, new = {"w": torch.tensor([4.0])}, {"w": torch.tensor([1.0])}
    assert float(merge_importance(old, new, 0.25)["w"]) == 1.75
    assert float(quadratic_penalty({"w": torch.tensor([3.0])}, new, old)) == 0.5 * 4 * 2**2
    assert float(stable_importance(old, 10.0, 0.1)["w"]) == 1.0
    moved = SimpleNamespace(network=torch.nn.ParameterDict({"w": torch.tensor([3.0])}))
    pull_back({"w": torch.tensor([1.0])}, old, 10.0, 0.1)(moved)
    assert float(moved.network["w"].detach()) == 1.5, "1 + (3 - 1) / (1 + 0.1 * 10 * (4 - 1))"
    some, every = learned("ewc", 1, samples=5), learned("ewc", 1)
    assert not same(some.kept["importance"].values(), every.kept["importance"].values())
    summed, merged = learned("ewc", 2, merge="sum"), learned("ewc", 2)
    name = "conv1.weight"
    assert summed.kept["importance"][name].sum() > merged.kept["importance"][name].sum()


# -- LwF -------------------------------------------------------------------------------------------


def test_lwf_without_distillation_is_fine_tuning():
    ours = learned("lwf", weight=0.0, old_rows="excluded")
    assert same(tensors(ours).values(), tensors(learned("ft")).values())


def test_distillation_starts_at_the_entropy_of_the_teacher_without_a_gradient():
    torch.manual_seed(0)
    old = torch.randn(5, 4)
    z = torch.cat([old, torch.randn(5, 2)], 1).requires_grad_()
    loss = softmax_distillation(z, old, 2.0)
    p = (old / 2).softmax(1)
    assert float(loss.detach()) == pytest.approx(float(-(p * p.log()).sum(1).mean()), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.abs().max() < 1e-7
    other = softmax_distillation(z + torch.randn(5, 6), old, 2.0)
    assert other > loss


def test_distillation_of_sigmoids_is_literal():
    torch.manual_seed(1)
    z, old, labels = torch.randn(3, 4), torch.randn(3, 2), torch.tensor([2, 3, 3])
    total = 0.0
    for b in range(3):
        for c in range(4):
            target = float(torch.sigmoid(old[b, c])) if c < 2 else float(labels[b] == c)
            p = float(torch.sigmoid(z[b, c]))
            total -= target * np.log(p) + (1 - target) * np.log(1 - p)
    assert float(sigmoid_distillation(z, old, labels)) == pytest.approx(total / 3, rel=1e-5)
    plain = functional.binary_cross_entropy_with_logits(
        z, functional.one_hot(labels, 4).float(), reduction="sum"
    )
    assert float(sigmoid_distillation(z, None, labels)) == pytest.approx(float(plain) / 3, rel=1e-6)


def test_distillation_preserves_the_old_outputs():
    train_data, _ = tasks()
    first = learned("lwf", 1)
    # Else the network adapts to the batch statistics of new classes, which are no longer used.
    free, held = (learned("lwf", 2, weight=w, batch_norm="frozen") for w in (0.0, 5.0))

    def drift(learner):
        """The change of old probabilities on the images of the new task."""
        p = [
            one.scores(torch.from_numpy(one.features(train_data[1])))[:, :2].softmax(1)
            for one in (first, learner)
        ]
        return float((p[0] - p[1]).detach().abs().mean())

    assert drift(held) < 0.7 * drift(free)


def test_the_old_network_sees_the_same_images_once_per_step(monkeypatch):
    from fecam.learners.mechanisms import old_network

    calls = []
    outputs = old_network.OldNetwork.outputs

    def counted(self, step):
        before = self._images
        result = outputs(self, step)
        calls.append(self._images is not before)
        again = outputs(self, step)
        assert all(a is b for a, b in zip(result, again, strict=True))
        assert not result[1].requires_grad and not self.network.training
        return result

    monkeypatch.setattr(old_network.OldNetwork, "outputs", counted)
    learned("lwf", 2, replace(RECIPE))
    steps = LATER.epochs * int(np.ceil(len(tasks()[0][1]) / LATER.batch_size))
    assert calls == [True] * steps
