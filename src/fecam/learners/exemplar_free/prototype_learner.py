"""What PASS, IL2A and SSRE share: their options, a sharpened cross-entropy, kept class means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.adam_learner import AdamLearner
from fecam.learners.decisions import OldRows, Outputs
from fecam.learners.mechanisms.feature_distillation import frobenius_norm, frobenius_weight
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_number

PUBLISHED_RATE, PUBLISHED_EPOCHS = 1e-3, 101
"""Of PASS and IL2A, for each task."""


@dataclass(kw_only=True, eq=False)
class PrototypeLearner(AdamLearner):
    """A learner that distills features and replays class means; its classifier is linear.

    Parameters
    ----------
    replay : float
        The weight of the replay.
    distillation : float
        The weight of the distillation of features.
    temperature : float
        Logits are divided by it.
    optimizer : {"adam", "recipe"}
        Adam as in the authors' code, or the optimizer of the recipe, for which the published
        weights are too large.
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

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_number("replay", self.replay, error=TrainingError)
        check_number("distillation", self.distillation, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)

    def published_rate(self, plan: TrainingPlan) -> float:
        """Return the published rate, larger for fewer epochs."""
        return PUBLISHED_RATE * math.sqrt(max(1, PUBLISHED_EPOCHS / plan.epochs))

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        return {"temperature": self.temperature, **self.optimizer_settings()}

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
