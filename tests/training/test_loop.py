"""The training loop: what it computes and what it rejects."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fecam.errors import TrainingError
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import evaluate, train
from helpers.small_networks import (
    AUGMENTED,
    PLAIN,
    PLAN,
    fresh,
    literal_rates,
    run,
    same,
    signs,
    weights,
)


def test_the_loop_equals_literal_sgd():
    """Two epochs against SGD written out: one batch per epoch."""
    plan = replace(
        PLAN, epochs=2, batch_size=96, weight_decay=0.01, label_smoothing=0.1, warmup_epochs=1
    )
    data = signs()
    network, classifier = fresh()
    slow, slow_classifier = copy.deepcopy(network), copy.deepcopy(classifier)
    images = TrainingImages(data, PLAIN)
    records = list(train(network, classifier, images, plan))
    batch = np.stack([data.items[i] for i in range(96)]).transpose(0, 3, 1, 2)
    batch = (torch.from_numpy(batch).float() / 255 - 0.5) / 0.25
    labels = torch.from_numpy(data.labels)
    parameters = [*slow.parameters(), *slow_classifier.parameters()]
    buffers = [torch.zeros_like(parameter) for parameter in parameters]
    for epoch, rate in enumerate(literal_rates(2, 1, 0.05, 1)):
        target = torch.full((96, 4), 0.1 / 4)
        target[torch.arange(96), labels] += 0.9
        loss = -(target * slow_classifier(slow(batch)).log_softmax(1)).sum(1).mean()
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, buffer, gradient in zip(parameters, buffers, gradients, strict=True):
            buffer.mul_(0.9).add_(gradient + 0.01 * parameter.detach())
            parameter.data.sub_(rate * buffer)
        assert records[epoch].learning_rate == pytest.approx(rate)
        assert records[epoch].loss == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(network.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_it_learns_easy_images(kind):
    data = signs(classes=6, per_class=32)
    train_images = TrainingImages(data.subset(data.train), PLAIN)
    test_images = TrainingImages(data.subset(data.test), PLAIN)
    network, classifier = fresh(6, width=4, kind=kind)
    plan = replace(PLAN, epochs=12, learning_rate=0.1, classifier=kind)
    ticks = []
    records = list(
        train(network, classifier, train_images, plan, test=test_images, progress=ticks.append)
    )
    assert records[-1].loss < records[0].loss and records[-1].accuracy > 0.95
    assert records[-1].test_accuracy > 0.95
    assert evaluate(network, classifier, test_images, range(6)) == records[-1].test_accuracy
    assert [record.epoch for record in records] == list(range(1, 13))
    assert records[0].remaining > 0 and records[-1].remaining == 0
    assert all(record.seconds > 0 and record.images == 144 for record in records)
    assert [tick.batch for tick in ticks[:9]] == list(range(1, 10)) and ticks[0].n_batches == 9
    assert ticks[8].loss == records[0].loss and ticks[8].accuracy == records[0].accuracy
    assert ticks[0].remaining > ticks[-1].remaining == 0


@pytest.mark.parametrize(("every", "tested"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_test_every_sets_the_tested_epochs(every, tested):
    images = TrainingImages(signs(), PLAIN)
    records = run(test=images, test_every=every)[2]
    assert [r.epoch for r in records if r.test_accuracy is not None] == tested


def test_labels_are_mapped_to_outputs_in_the_order_of_classes():
    data = signs().subset(np.isin(signs().labels, [1, 3]))
    seen = []

    def look(step):
        seen.append((step.rows, step.labels, step.logits.shape, step.features.shape))
        return step.logits.sum() * 0

    run(replace(PLAN, epochs=1), data, 2, Hooks(losses={"look": look}), classes=[3, 1])
    for rows, labels, logits, features in seen:
        assert labels.tolist() == [0 if data.labels[row] == 3 else 1 for row in rows]
        assert logits == (len(rows), 2) and features == (len(rows), 16)
    assert sorted(torch.cat([rows for rows, *_ in seen]).tolist()) == list(range(len(data)))


def test_classes_that_do_not_fit_the_data_are_rejected():
    with pytest.raises(TrainingError, match="sign 2"):
        _with_classes([0, 1])
    with pytest.raises(TrainingError, match="different labels"):
        _with_classes([0, 1, 2, 2, 3])
    with pytest.raises(TrainingError, match="from 0 to 3"):
        _with_classes([0, 1, 2, 3, 4])


def _with_classes(classes):
    images = TrainingImages(signs(), PLAIN)
    train(*fresh(), images, PLAN, classes=classes)


def test_batch_sizes_differ_by_at_most_one():
    sizes = []

    def look(step):
        sizes.append(len(step.labels))
        return step.logits.sum() * 0

    run(replace(PLAN, epochs=1, batch_size=19), hooks=Hooks(losses={"look": look}))
    assert sum(sizes) == 96 and max(sizes) <= 19 and max(sizes) - min(sizes) <= 1


def test_divergence_is_an_error_with_a_remedy():
    def broken(step):
        return step.logits.sum() * math.nan

    with pytest.raises(TrainingError, match="Lower the learning rate"):
        run(hooks=Hooks(losses={"broken": broken}))
    with pytest.raises(TrainingError, match="Lower the learning rate"):
        run(replace(PLAN, learning_rate=1e30, epochs=1))

    def burst(step):
        step.classifier.weight.grad.fill_(math.inf)

    with pytest.raises(TrainingError, match="Lower the learning rate"):  # no loss includes it yet
        run(replace(PLAN, epochs=1, batch_size=96), hooks=Hooks(backward=[burst]))


def test_arguments_that_do_not_fit_are_rejected(tmp_path):
    with pytest.raises(TrainingError, match="2 outputs for 4"):
        run(outputs=2)
    with pytest.raises(TrainingError, match="'total'"):
        run(hooks=Hooks(losses={"total": lambda step: step.logits.sum()}))
    with pytest.raises(TrainingError, match="settings"):
        run(hooks=Hooks(settings={"teacher": object()}))
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="was not written"):  # before anything is trained
        train(*fresh(), TrainingImages(signs(), PLAIN), PLAN, checkpoint=tmp_path / "file" / "x")


def test_the_seed_determines_the_result_and_global_generators_are_unchanged():
    torch.manual_seed(1)
    first = run(AUGMENTED)
    torch.manual_seed(2)
    images = TrainingImages(signs(), PLAIN)
    modules = fresh()
    state = torch.get_rng_state()
    list(train(*modules, images, AUGMENTED))
    assert torch.equal(torch.get_rng_state(), state)
    assert same(weights(*first[:2]), weights(*modules))
    other = run(replace(AUGMENTED, seed=1))
    assert not same(weights(*first[:2]), weights(*other[:2]))
