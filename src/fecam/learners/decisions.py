"""The options of all learners: decisions on which public code differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from fecam.errors import TrainingError
from fecam.learners.mechanisms.freezing import freeze_batch_norm, freeze_rows
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks
from fecam.validation import check_choice

if TYPE_CHECKING:
    from fecam.learners.learner import Learner

Outputs = Literal["new", "all"]
"""The outputs in the cross-entropy of a later task."""
OldRows = Literal["excluded", "included"]
"""Whether the optimizer changes the classifier's rows of old classes."""
BatchNorm = Literal["running", "frozen"]
"""Whether batch normalization goes on adapting after the first task."""


def check_decisions(learner: Learner) -> None:
    """Raise `TrainingError` for an unknown value."""
    kinds = {"outputs": Outputs, "old_rows": OldRows, "batch_norm": BatchNorm}
    for name, kind in kinds.items():
        check_choice(name, getattr(learner, name), get_args(kind), error=TrainingError)


def with_decisions(learner: Learner, task: LearningTask, hooks: Hooks) -> Hooks:
    """Return the hooks of a method with the decisions, and with the settings of a checkpoint."""
    if task.first:
        return replace(hooks, settings={**hooks.settings, **learner.first_task_settings()})
    settings = {"learner": dict(learner.training_settings()), "task": task.index}
    changes: dict[str, Any] = {"settings": {**hooks.settings, **settings}}
    n_old = learner.n_outputs(task.n_old)
    if learner.outputs == "new" and hooks.loss is None and hooks.outputs is None:
        changes["outputs"] = range(n_old, learner.n_outputs(task.n_classes))
    if learner.batch_norm == "frozen":
        changes["epoch_start"] = [freeze_batch_norm(learner.network), *hooks.epoch_start]
    if learner.old_rows == "excluded":
        changes["updated"] = [*hooks.updated, freeze_rows(learner.classifier, n_old)]
    return replace(hooks, **changes)
