"""Fine-tuning: the lower bound, and the same with a frozen network."""

from __future__ import annotations

from dataclasses import dataclass

from fecam.learners.learner import Learner
from fecam.learners.mechanisms.freezing import freeze_network
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks


@dataclass(kw_only=True, eq=False)
class FineTuning(Learner):
    r"""Train on each task with cross-entropy, against forgetting nothing.

    .. math:: L = \mathrm{CE}(z_{new}, y)

    over the outputs of the new classes, as in FACIL and PyCIL. With ``outputs="all"`` the network
    forgets the old classes within some steps.
    """


@dataclass(kw_only=True, eq=False)
class FrozenFineTuning(Learner):
    r"""Freeze the network after the first task; train the outputs of the new classes only.

    .. math:: L = \mathrm{CE}(W_{new} f + b_{new}, y)

    Batch normalization uses its running statistics, as ``--freeze-after 0`` of FACIL.
    """

    def hooks(self, task: LearningTask) -> Hooks:
        """Freeze the network in later tasks."""
        if task.first:
            return Hooks()
        return Hooks(epoch_start=[freeze_network(self.network)])
