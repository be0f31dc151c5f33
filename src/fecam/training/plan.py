"""How a network is trained: the plan, its rules, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, get_args

from fecam.errors import TrainingError
from fecam.training.augmentation import Augmentation
from fecam.training.classifiers import ClassifierName
from fecam.validation import check_choice, check_int, check_keys, check_number, is_int


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
        integer = partial(check_int, error=TrainingError)
        number = partial(check_number, error=TrainingError)
        integer("epochs", self.epochs)
        integer("batch_size", self.batch_size, 2, note=": batch normalization needs a variance")
        number("learning_rate", self.learning_rate, above=0)
        number("momentum", self.momentum, below=1)
        number("weight_decay", self.weight_decay)
        integer("warmup_epochs", self.warmup_epochs, 0, self.epochs - 1, note=", below epochs")
        number("decay", self.decay, above=0, maximum=1)
        number("label_smoothing", self.label_smoothing, below=1)
        number("scale", self.scale, above=0)
        integer("seed", self.seed, 0)
        check_choice("classifier", self.classifier, get_args(ClassifierName), error=TrainingError)
        if not (
            isinstance(self.milestones, tuple)
            and all(map(is_int, self.milestones))
            and all(a < b for a, b in pairwise((0, *self.milestones, self.epochs)))
        ):
            raise TrainingError(
                f"milestones={self.milestones!r} must be increasing integers from 1 to "
                f"{self.epochs - 1}, below epochs."
            )
        if not isinstance(self.augmentation, Augmentation):
            raise TrainingError(f"augmentation={self.augmentation!r} must be an Augmentation.")
        if not isinstance(self.mixed_precision, bool):
            raise TrainingError(f"mixed_precision={self.mixed_precision!r} must be a bool.")

    def changed(self, changes: Mapping[str, Any]) -> TrainingPlan:
        """The same with other settings, by their names.

        >>> TrainingPlan().changed({"weight_decay": 1e-4}).weight_decay
        0.0001
        """
        names = [name for name in self.__dataclass_fields__ if name != "augmentation"]
        check_keys("a training plan", changes, names, kind="setting", error=TrainingError)
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "milestones": list(self.milestones),
            "augmentation": self.augmentation.as_dict(),
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
