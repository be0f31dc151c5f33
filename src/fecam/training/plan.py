"""The training plan: its settings, their rules, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

from fecam.errors import TrainingError
from fecam.training.augmentation import Augmentation
from fecam.training.classifiers import ClassifierName
from fecam.validation import check_choice, check_int, check_keys, check_number, is_int

OptimizerName = Literal["sgd", "adam"]
ADDED_LATER = ("optimizer", "clip")
"""Settings that older checkpoints do not name: they continue to fit where these are the default."""


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of training; the defaults are the paper's for CIFAR-100.

    Parameters
    ----------
    epochs : int, default=200
        Passes over the images.
    batch_size : int, default=128
        The maximum; images are split evenly, so that the last batch is not smaller.
    learning_rate : float, default=0.1
        The maximum.
    momentum : float, default=0.9
        Of SGD.
    weight_decay : float, default=5e-4
        As in the authors' settings; the text of the paper has 1e-4.
    warmup_epochs : int, default=0
        Epochs in which the learning rate increases linearly from 0.
    milestones : tuple of int, default=()
        Epochs from which the learning rate is multiplied by ``decay``; without milestones it
        follows a cosine.
    decay : float, default=0.1
        The factor per milestone.
    label_smoothing : float, default=0.0
        Of the cross-entropy.
    classifier : {"cosine", "linear", "proxies"}, default="cosine"
        The classifier layer; with ten proxies per class as in PODNet.
    scale : float, default=1.0
        The initial scale of a cosine classifier, which is learned over several epochs.
    augmentation : Augmentation, optional
        Random changes of the images; by default none.
    optimizer : {"sgd", "adam"}, default="sgd"
        Adam ignores ``momentum``; its weight decay is added to the gradient.
    clip : float, optional
        The largest norm of the gradient of all weights; a longer one is scaled down to it.
    mixed_precision : bool or "everywhere", default=True
        Compute in bfloat16 on GPUs that support it, or "everywhere": also on the CPU, which is
        faster if the CPU has instructions for it (avx512_bf16 or amx_bf16).
    seed : int, default=0
        Determines the initial weights, the order of the images and the augmentation.

    Raises
    ------
    TrainingError
        If a setting is out of range.

    Examples
    --------
    >>> TrainingPlan(epochs=10, learning_rate=0.05).momentum
    0.9
    """

    epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 0
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    label_smoothing: float = 0.0
    classifier: ClassifierName = "cosine"
    scale: float = 1.0
    augmentation: Augmentation = field(default_factory=Augmentation)
    optimizer: OptimizerName = "sgd"
    clip: float | None = None
    mixed_precision: bool | Literal["everywhere"] = True
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.milestones, list):  # from JSON
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
        check_choice("optimizer", self.optimizer, get_args(OptimizerName), error=TrainingError)
        if self.clip is not None:
            number("clip", self.clip, above=0)
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
        if not isinstance(self.mixed_precision, bool) and self.mixed_precision != "everywhere":
            raise TrainingError(
                f"mixed_precision={self.mixed_precision!r} must be true, false or 'everywhere'."
            )

    def changed(self, changes: Mapping[str, Any]) -> TrainingPlan:
        """Return the plan with other settings.

        Parameters
        ----------
        changes : mapping of str to object
            Values by the names of settings; those of ``augmentation`` are a mapping of the fields
            to change.

        Returns
        -------
        TrainingPlan
            A new plan.

        Raises
        ------
        TrainingError
            If a name is unknown or a value out of range.

        Examples
        --------
        >>> TrainingPlan().changed({"weight_decay": 1e-4}).weight_decay
        0.0001
        >>> TrainingPlan().changed({"augmentation": {"cutout": 8}}).augmentation.cutout
        8
        """
        names = self.__dataclass_fields__
        check_keys("a training plan", changes, names, kind="setting", error=TrainingError)
        values = dict(changes)
        if isinstance(fields := values.get("augmentation"), Mapping):
            merged = {**self.augmentation.as_dict(), **fields}
            values["augmentation"] = Augmentation.from_dict(merged)
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values.

        Returns
        -------
        dict
            Values by the names of the settings; those of `ADDED_LATER` only if they are not the
            default.
        """
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ADDED_LATER:
            if values[name] == self.__dataclass_fields__[name].default:
                del values[name]
        return {
            **values,
            "milestones": list(self.milestones),
            "augmentation": self.augmentation.as_dict(),
        }


def learning_rate(plan: TrainingPlan, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run.

    During ``w`` warm-up steps it is ``r (step + 1) / w``; then ``r (1 + cos(pi t)) / 2``, where
    ``t`` is the completed share of the remaining steps, or ``r decay^m`` after ``m`` milestones.

    >>> plan = TrainingPlan(epochs=4, learning_rate=1.0, warmup_epochs=2)
    >>> [round(learning_rate(plan, step, 2), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    warmup = plan.warmup_epochs * steps_per_epoch
    if step < warmup:
        return plan.learning_rate * (step + 1) / warmup
    if plan.milestones:
        passed = sum(step >= milestone * steps_per_epoch for milestone in plan.milestones)
        return plan.learning_rate * plan.decay**passed
    share = (step - warmup) / (plan.epochs * steps_per_epoch - warmup)
    return plan.learning_rate * (1 + math.cos(math.pi * share)) / 2
