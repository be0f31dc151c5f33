"""The training plan: its rules and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fecam.errors import TrainingError
from fecam.training.augmentation import Augmentation
from fecam.training.plan import TrainingPlan, learning_rate
from helpers.small_networks import (
    literal_rates,
)


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("milestones", [(), (4,), (4, 6)])
def test_learning_rate_equals_the_literal_schedule(warmup, milestones):
    plan = TrainingPlan(
        epochs=8, learning_rate=0.3, warmup_epochs=warmup, milestones=milestones, decay=0.2
    )
    ours = [learning_rate(plan, step, 5) for step in range(40)]
    assert ours == pytest.approx(literal_rates(8, 5, 0.3, warmup, milestones, 0.2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"epochs": 5, "warmup_epochs": 5},
        {"milestones": (5, 3)},
        {"milestones": (300,)},
        {"label_smoothing": 1.0},
        {"scale": 0.0},
        {"classifier": "nearest"},
        {"seed": -1},
        {"seed": 1.5},
        {"epochs": "ten"},
        {"learning_rate": "fast"},
        {"milestones": 3},
        {"milestones": "35"},
        {"augmentation": "flip"},
        {"mixed_precision": "yes"},
    ],
)
def test_invalid_plans_name_the_setting(wrong):
    name = list(wrong)[-1]
    with pytest.raises(TrainingError, match=f"{name}=.* must be"):
        TrainingPlan(**wrong)


def test_fields_of_the_augmentation_can_be_changed():
    plan = replace(TrainingPlan(), augmentation=Augmentation(padding=4, flip=True))
    changed = plan.changed({"augmentation": {"flip": False, "autoaugment": "cifar10"}})
    assert changed.augmentation == Augmentation(padding=4, autoaugment="cifar10")
    with pytest.raises(TrainingError, match="Did you mean 'cutout'"):
        plan.changed({"augmentation": {"cutouts": 8}})


def test_settings_of_later_versions_are_left_out_at_their_defaults():
    assert "optimizer" not in TrainingPlan().as_dict() and "clip" not in TrainingPlan().as_dict()
    written = TrainingPlan(optimizer="adam", clip=1.0).as_dict()
    assert (written["optimizer"], written["clip"]) == ("adam", 1.0)
