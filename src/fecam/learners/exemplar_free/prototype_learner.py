"""What PASS, IL2A and SSRE share: their options, a sharpened cross-entropy, kept class means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.learner import Learner, OldRows, Outputs
from fecam.learners.mechanisms.feature_distillation import frobenius_norm, frobenius_weight
from fecam.learners.task import LearningTask
from fecam.training.hooks import Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice, check_number

PublishedOptimizer = Literal["adam", "recipe"]
PUBLISHED_RATE, PUBLISHED_EPOCHS = 1e-3, 101
"""Of PASS and IL2A, for each task."""


@dataclass(kw_only=True, eq=False)
class PrototypeLearner(Learner):
    """A learner that distills features and replays class means.

    Parameters
    ----------
    replay : float
        The weight of the replay.
    distillation : float
        The weight of the distillation of features.
    temperature : float
        Logits are divided by it.
    optimizer : {"adam", "recipe"}
        Adam as in the authors' code, with the rate and weight decay below; or that of the recipe.
        Steps of Adam do not depend on the size of the loss: SGD needs smaller weights.
    learning_rate : float, optional
        Of Adam; by default 0.001 for the authors' 101 epochs, and for fewer epochs larger by the
        square root of their ratio.
    weight_decay : float
        Of Adam.
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    replay: float = 10.0
    distillation: float = 10.0
    temperature: float = 0.1
    optimizer: PublishedOptimizer = "adam"
    learning_rate: float | None = None
    weight_decay: float = 2e-4

    needs_old_network: ClassVar[bool] = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("replay", self.replay, error=TrainingError)
        check_number("distillation", self.distillation, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)
        check_choice("optimizer", self.optimizer, get_args(PublishedOptimizer), error=TrainingError)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0, error=TrainingError)
        check_number("weight_decay", self.weight_decay, error=TrainingError)

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the recipe with the method's own optimizer."""
        plan = super().plan_for(index)
        if self.optimizer == "recipe":
            return plan
        rate, decay = self.learning_rate, self.weight_decay
        if rate is None:
            rate = PUBLISHED_RATE * math.sqrt(max(1, PUBLISHED_EPOCHS / plan.epochs))
        return replace(plan, optimizer="adam", learning_rate=rate, weight_decay=decay)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        own = {"optimizer": self.optimizer, "temperature": self.temperature}
        if self.optimizer == "recipe":
            return own
        return {**own, "learning_rate": self.learning_rate, "weight_decay": self.weight_decay}

    def cross_entropies(self, step: Step, task: LearningTask) -> Tensor:
        """Return the loss per image, over all outputs or those of the new classes."""
        start = self.n_outputs(task.n_old) if self.outputs == "new" else 0
        logits = step.logits[:, start:].float() / self.temperature
        return functional.cross_entropy(logits, step.labels - start, reduction="none")

    def frobenius_distillation(self, step: Step) -> Tensor:
        """Return the weighted distance of all features of a batch from the old ones."""
        assert self.old is not None
        weight = frobenius_weight(self.distillation, step.features)
        return weight * frobenius_norm(step.features, self.old.features(step))
