"""Learning without forgetting, with a softmax or with sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fecam.errors import TrainingError
from fecam.learners.decisions import OldRows, Outputs
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.logit_distillation import sigmoid_distillation, softmax_distillation
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_number

TEMPERATURE = 2.0
"""Of the paper, FACIL and PyCIL."""
WEIGHT = 1.0
"""Of the paper and FACIL; PyCIL has 3, and the drift methods that build on LwF have 10."""


@dataclass(kw_only=True, eq=False)
class LwF(Learner):
    r"""Learning without forgetting (Li and Hoiem 2016).

    .. math:: L = \mathrm{CE}(z_{new}, y) - \lambda \frac1B \sum_b \sum_{c \le K}
        \mathrm{softmax}(z^{old}_b / T)_c \log \mathrm{softmax}(z_b / T)_c

    where :math:`z^{old}` are the logits of the network before the task, on the same augmented
    images. The rows of old classes are trained by the second term, as in the paper and PyCIL;
    FACIL excludes them.

    Parameters
    ----------
    weight : float
        :math:`\lambda`.
    temperature : float
        T.
    """

    old_rows: OldRows = "included"
    weight: float = WEIGHT
    temperature: float = TEMPERATURE

    needs_old_network: ClassVar[bool] = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("weight", self.weight, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)

    def training_settings(self) -> Mapping[str, Any]:
        """Return what the weights depend on: neither how statistics move, nor the head."""
        names = ("outputs", "old_rows", "batch_norm", "weight", "temperature")
        described = self.describe()
        shared = ("first_task", "later_tasks", "preprocessing")
        return {"method": "LwF", **{name: described[name] for name in (*names, *shared)}}

    def hooks(self, task: LearningTask) -> Hooks:
        """Add the distillation in later tasks."""
        old = self.old
        if old is None or not self.weight:
            return Hooks()

        def distillation(step: Step) -> Tensor:
            old_logits = old.logits(step)
            return self.weight * softmax_distillation(step.logits, old_logits, self.temperature)

        return Hooks(losses={"distillation": distillation})


@dataclass(kw_only=True, eq=False)
class LwFMC(Learner):
    r"""LwF with one binary cross-entropy over all classes: iCaRL without exemplars.

    .. math:: L = \frac1B \sum_b \sum_c \mathrm{BCE}(\sigma(z_{bc}), q_{bc})

    (Rebuffi et al. 2017, Algorithm 3) with a linear classifier, where q is
    :math:`\sigma(z^{old}_{bc})` for old classes and the one-hot label for new ones. The first task
    is trained with the same loss. Prediction is the largest logit, as no exemplars are there for
    means.
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise if the loss is to be of new outputs only."""
        if self.outputs != "all":
            raise TrainingError(
                f'outputs={self.outputs!r}: the loss of lwf-mc is of all outputs. Set "all".'
            )

    def first_task_settings(self) -> Mapping[str, Any]:
        """Name the loss of the first task."""
        return {"loss": "sigmoid"}

    def hooks(self, task: LearningTask) -> Hooks:
        """Replace the cross-entropy."""

        def loss(step: Step) -> Tensor:
            old_logits = None if self.old is None else self.old.logits(step)
            return sigmoid_distillation(step.logits, old_logits, step.labels)

        return Hooks(loss=loss)
