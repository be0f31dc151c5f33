"""Hooks, and a learner over several tasks that is built on them."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.training.classifiers import LinearClassifier, expand_classifier
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_networks import (
    PLAIN,
    PLAN,
    fresh,
    run,
    same,
    signs,
    weights,
)


def distance(old, network):
    return sum(
        float((old[name] - value.detach()).square().sum())
        for name, value in network.named_parameters()
    )


def test_hooks_are_called_in_order_once_each_epoch():
    calls = []
    hooks = Hooks(
        epoch_start=[lambda modules: calls.append(("start", modules.epoch))],
        epoch_end=[lambda modules: calls.append(("end", modules.epoch))],
        backward=[lambda step: calls.append(("backward", step.epoch))],
    )
    run(replace(PLAN, epochs=2, batch_size=96), hooks=hooks)
    assert calls == [(what, epoch) for epoch in (0, 1) for what in ("start", "backward", "end")]


def test_gradients_can_be_changed_before_the_update():
    def freeze(step):
        for parameter in step.network.parameters():
            parameter.grad.zero_()

    before, _ = fresh()
    network, classifier, _ = run(replace(PLAN, weight_decay=0.0), hooks=Hooks(backward=[freeze]))
    assert same(list(before.parameters()), list(network.parameters()))
    assert not torch.equal(classifier.weight, fresh()[1].weight)


def test_frozen_parameters_do_not_change():
    network, classifier = fresh()
    for parameter in network.layer1.parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(network.layer1)
    list(train(network, classifier, TrainingImages(signs(), PLAIN), PLAN))
    assert same(list(before.parameters()), list(network.layer1.parameters()))


def test_hooks_replace_the_loss_and_the_batch():
    seen = []

    def turned(images, labels, generator):
        quarter = int(torch.randint(4, (), generator=generator))
        return torch.cat([images, images.rot90(quarter, (2, 3))]), torch.cat([labels, labels])

    def binary(step):
        seen.append(len(step.images))
        target = functional.one_hot(step.labels, 4).float()
        return functional.binary_cross_entropy_with_logits(step.logits, target)

    _, _, records = run(hooks=Hooks(loss=binary, batch=turned))
    assert seen[0] == 32 and records[0].images == 192
    assert records[0].loss < 1 < run()[2][0].loss
    assert records[0].losses == {}


def test_outputs_outside_the_range_get_no_gradient():
    data = signs().subset(signs().labels >= 2)
    plan = replace(PLAN, weight_decay=0.0)
    untouched = fresh()[1].weight[:2]
    _, ranged, _ = run(plan, data, 4, Hooks(outputs=range(2, 4)), classes=range(4))
    assert torch.equal(ranged.weight[:2], untouched)
    _, plain, _ = run(plan, data, 4, classes=range(4))
    assert not torch.equal(plain.weight[:2], untouched)


def learn_tasks(tasks, penalty=0.0, distillation=0.0, folder=None):
    """A learner over many tasks: its losses preserve old weights and old outputs."""
    data, network, classifier, seen = signs(), fresh()[0], None, []
    measured = {}
    for number, task in enumerate(tasks):
        torch.manual_seed(number)
        seen = [*seen, *task]
        size = network.n_features
        classifier = (
            expand_classifier(classifier, len(seen))
            if classifier
            else LinearClassifier(size, len(seen))
        )
        losses, start = {}, []
        if number:
            start = [lambda modules: modules.network.eval()]  # keeps batch statistics
            old = {name: value.detach().clone() for name, value in network.named_parameters()}
            teacher = copy.deepcopy(torch.nn.Sequential(network, classifier)).eval()
            n_old = len(seen) - len(task)

            def stay(step, old=old):
                return penalty * sum(
                    (value - old[name]).square().sum()
                    for name, value in step.network.named_parameters()
                )

            def recall(step, teacher=teacher, n_old=n_old):
                with torch.no_grad():
                    wanted = teacher(step.images)[:, :n_old].softmax(1)
                return distillation * functional.cross_entropy(step.logits[:, :n_old], wanted)

            losses = {"stay": stay, "recall": recall}
        settings = {"task": number, "penalty": penalty, "distillation": distillation}
        hooks = Hooks(losses=losses, epoch_start=start, settings=settings)
        images = TrainingImages(data.subset(np.isin(data.labels, task)), PLAIN)
        checkpoint = folder and folder / f"task-{number}.safetensors"
        records = list(
            train(
                network, classifier, images, PLAN, classes=seen, hooks=hooks, checkpoint=checkpoint
            )
        )
        if number:
            measured["moved"] = distance(old, network)
            measured["records"] = records
            with torch.no_grad():
                _, batch = next(images.eval_batches(64))
                now, then = classifier(network.eval()(batch)), teacher(batch)
                change = now[:, :n_old].softmax(1) - then[:, :n_old].softmax(1)
                measured["drift"] = change.abs().mean().item()
    return network, classifier, measured


def test_a_penalty_preserves_weights_and_distillation_preserves_outputs():
    tasks = [[0, 1], [2, 3]]
    *_, free = learn_tasks(tasks)
    *_, held = learn_tasks(tasks, penalty=3.0)
    *_, distilled = learn_tasks(tasks, distillation=5.0)
    assert held["moved"] < 0.5 * free["moved"]
    assert distilled["drift"] < 0.7 * free["drift"]
    assert free["records"][-1].losses["stay"] == 0 < held["records"][-1].losses["stay"]


def test_a_learner_over_tasks_resumes_when_run_again(tmp_path):
    tasks = [[0, 1], [2], [3]]
    first = learn_tasks(tasks, penalty=0.5, folder=tmp_path)
    again = learn_tasks(tasks, penalty=0.5, folder=tmp_path)
    assert same(weights(*first[:2]), weights(*again[:2]))
    assert all(record.restored for record in again[2]["records"])
    with pytest.raises(TrainingError, match=r"settings\.penalty"):
        learn_tasks(tasks, penalty=0.6, folder=tmp_path)
