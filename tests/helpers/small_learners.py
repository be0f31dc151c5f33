"""Learners of small networks on tasks of two signs each."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from fecam import heads
from fecam.learners import Recipe, available, make
from helpers.small_networks import PLAIN, PLAN, Items, signs

LATER = replace(PLAN, epochs=2)
EXEMPLARS = ("replay", "icarl", "wa", "bic", "der", "memo", "podnet", "foster", "coil")
FAST = {
    "muc": {"side_epochs": 2},
    "alice": {"hidden": 8},
    "topic": {"anchors": 6},
    "cec": {"episodes": 2, "queries": 3},
    "limit": {"episodes": 2, "queries": 8},
    "metafscil": {"sequences": 1, "row_steps": 2, "steps": 1},
    "data-free-replay": {
        "iterations": 1,
        "student_steps": 1,
        "batch": 4,
        "latent": 4,
        "generated": 4,
    },
    "savc": {"queue": 16, "dimension": 4, "crops": 1},
    "nc-fscil": {"classes_to_come": 8, "dimension": 12},
    "adagauss": {"bottleneck": 4, "samples": 50},
    **{name: {"exemplars": 12} for name in EXEMPLARS},
}
FAST["der"]["second_epochs"] = 1
"""Options that make a learner fast, or its memory smaller than the tasks."""
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
    data = signs(classes=6, **{"per_class": 16, **options})
    train = [data.subset(np.isin(data.labels, group) & ~data.is_test) for group in groups]
    return train, data.subset(data.test)


def noisy(data, seed=7):
    """The same labels on noise, with the fingerprint of the original."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(data), 8, 8, 3), np.uint8)
    return replace(data, items=Items(list(pixels)))


def new(name, head=None, recipe=RECIPE, **options):
    """A learner that has learned nothing."""
    made = make(name, **{**FAST.get(name, {}), **options})
    return made.start(recipe, None if head is None else heads.make(head))


_LEARNED = {}


def learned(name, count=3, recipe=RECIPE, head=None, **options):
    """A learner after some tasks; the same one is trained once."""
    key = (name, count, head, tuple(sorted(options.items())))
    if recipe is RECIPE and key in _LEARNED:
        return copy.deepcopy(_LEARNED[key])
    learner = new(name, head, recipe, **options)
    for task in tasks()[0][:count]:
        finish(learner, task)
    if recipe is RECIPE:
        _LEARNED[key] = copy.deepcopy(learner)
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
