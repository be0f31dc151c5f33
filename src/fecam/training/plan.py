"""How a network is trained: the plan, its rules, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from fecam.errors import TrainingError
from fecam.suggestions import suggestion
from fecam.training.augmentation import Augmentation
from fecam.training.classifiers import ClassifierName


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is trained; by default as the paper does with CIFAR-100.

    >>> TrainingPlan(epochs=10, learning_rate=0.05).momentum
    0.9
    """

    epochs: int = 200
    batch_size: int = 128
    """At most: images are dealt out evenly, so that no last batch is left with one of them."""
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    """The paper says 1e-4, its authors' settings 5e-4."""
    warmup_epochs: int = 0
    """The rate climbs from nothing in so many epochs."""
    milestones: tuple[int, ...] = ()
    """Epochs from which on the rate is ``decay`` times lower; without any, it falls as a cosine."""
    decay: float = 0.1
    label_smoothing: float = 0.0
    classifier: ClassifierName = "cosine"
    scale: float = 1.0
    """What the cosine classifier multiplies by at first; it is learnt, which takes epochs."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixed_precision: bool = True
    """Multiply in bfloat16 where there is a GPU that can; elsewhere this changes nothing."""
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.milestones, list):  # as JSON has it
            object.__setattr__(self, "milestones", tuple(self.milestones))
        for name, (fits, wanted) in _PLAN_RULES.items():
            try:
                fit = fits(self)
            except TypeError:  # not even a number
                fit = False
            if not fit:
                raise TrainingError(
                    f"a training plan cannot have {name} = {getattr(self, name)!r}: "
                    f"it must be {wanted}."
                )

    def changed(self, changes: Mapping[str, Any]) -> TrainingPlan:
        """The same with other settings, by their names.

        >>> TrainingPlan().changed({"weight_decay": 1e-4}).weight_decay
        0.0001
        """
        known = [name for name in self.__dataclass_fields__ if name != "augmentation"]
        for name in changes:
            if name not in known:
                raise TrainingError(
                    f"a training plan has no {name!r}.{suggestion(name, known)} "
                    f"It has: {', '.join(known)}."
                )
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "milestones": list(self.milestones),
            "augmentation": self.augmentation.as_dict(),
        }


def _is_whole(value: object) -> bool:
    return type(value) is int


_PLAN_RULES: dict[str, tuple[Callable[[TrainingPlan], bool], str]] = {
    "epochs": (lambda p: _is_whole(p.epochs) and p.epochs >= 1, "a whole number, 1 or more"),
    "batch_size": (
        lambda p: _is_whole(p.batch_size) and p.batch_size >= 2,
        "a whole number, 2 or more: a batch is normalised by its spread",
    ),
    "learning_rate": (lambda p: 0 < p.learning_rate < math.inf, "above 0"),
    "momentum": (lambda p: 0 <= p.momentum < 1, "0 or more, and below 1"),
    "weight_decay": (lambda p: 0 <= p.weight_decay < math.inf, "0 or more"),
    "warmup_epochs": (
        lambda p: _is_whole(p.warmup_epochs) and 0 <= p.warmup_epochs < p.epochs,
        "a whole number, 0 or more and below epochs",
    ),
    "milestones": (
        lambda p: (
            all(map(_is_whole, p.milestones))
            and all(a < b for a, b in pairwise((0, *p.milestones, p.epochs)))
        ),
        "whole numbers, rising, above 0 and below epochs",
    ),
    "decay": (lambda p: 0 < p.decay <= 1, "above 0, and 1 at most"),
    "label_smoothing": (lambda p: 0 <= p.label_smoothing < 1, "0 or more, and below 1"),
    "classifier": (lambda p: p.classifier in ("cosine", "linear"), "'cosine' or 'linear'"),
    "scale": (lambda p: 0 < p.scale < math.inf, "above 0"),
    "augmentation": (lambda p: isinstance(p.augmentation, Augmentation), "an Augmentation"),
    "mixed_precision": (lambda p: isinstance(p.mixed_precision, bool), "True or False"),
    "seed": (lambda p: _is_whole(p.seed) and p.seed >= 0, "a whole number, 0 or more"),
}


def learning_rate(plan: TrainingPlan, step: int, steps_an_epoch: int) -> float:
    """The rate of one step, counted from 0 over the whole run.

    In the warm-up of ``w`` steps ``r (step + 1) / w``; then ``r (1 + cos(pi t)) / 2`` where ``t``
    is the share of the other steps that is done, or ``r decay^m`` after ``m`` milestones.

    >>> plan = TrainingPlan(epochs=4, learning_rate=1.0, warmup_epochs=2)
    >>> [round(learning_rate(plan, step, 2), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    warmup = plan.warmup_epochs * steps_an_epoch
    if step < warmup:
        return plan.learning_rate * (step + 1) / warmup
    if plan.milestones:
        passed = sum(step >= milestone * steps_an_epoch for milestone in plan.milestones)
        return plan.learning_rate * plan.decay**passed
    share = (step - warmup) / (plan.epochs * steps_an_epoch - warmup)
    return plan.learning_rate * (1 + math.cos(math.pi * share)) / 2
