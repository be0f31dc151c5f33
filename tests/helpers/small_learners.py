"""Learners of small networks on tasks of two signs each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fecam.learners import Recipe, available, make
from helpers.small_networks import PLAIN, PLAN, Items, signs

LATER = replace(PLAN, epochs=2)
GROUPS = ((1, 0), (4, 2), (3, 5))
"""The classes of each task."""
NEED_MORE = {"l2p"}
"""Learners that need another network: they have tests of their own."""
NAMES = [entry.name for entry in available() if entry.name not in NEED_MORE]


def tiny(width=2):
    from fecam.encoders.resnet import ResNet18

    return ResNet18(width)


RECIPE = Recipe(tiny, PLAIN, PLAN, LATER, "cpu")


def tasks(groups=GROUPS, **options):
    """The training images per task, and all test images."""
    data = signs(classes=6, **options)
    train = [data.subset(np.isin(data.labels, group) & ~data.is_test) for group in groups]
    return train, data.subset(data.test)


def noisy(data, seed=7):
    """The same labels on noise, with the fingerprint of the original."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(data), 8, 8, 3), np.uint8)
    return replace(data, items=Items(list(pixels)))


def learned(name, count=3, recipe=RECIPE, head=None, data=None, **options):
    """A learner after some tasks."""
    learner = make(name, **options).start(recipe, head)
    for task in (data or tasks()[0])[:count]:
        finish(learner, task)
    return learner


def finish(learner, task, **options):
    return list(learner.learn(task, **options))


def tensors(learner):
    modules = {"network": learner.network, "classifier": learner.classifier}
    return {
        f"{prefix}.{name}": tensor.clone()
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
