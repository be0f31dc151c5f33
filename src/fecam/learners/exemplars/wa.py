"""WA: distillation and weight alignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner
from fecam.learners.mechanisms.logit_distillation import weighted_distillation
from fecam.learners.mechanisms.weight_alignment import Norm, align_weights, norm_ratio
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_number


@dataclass(kw_only=True, eq=False)
class WA(ExemplarLearner):
    r"""Maintaining discrimination and fairness (Zhao et al. 2020).

    .. math:: L = (1 - \lambda)\, \mathrm{CE}(z, y) + \lambda\, \mathrm{KD}_2(z^{old}, z)

    with a linear classifier, where :math:`\lambda` is the share of old classes. Then the weights of
    new classes are scaled by :math:`\gamma`, the ratio of the mean norms of old and new ones. The
    record has it under ``fitted``, and the ratio before the limit. A ratio above 1 tells that new
    classes were trained too shortly for their weights to outgrow the old ones.

    Parameters
    ----------
    weight : float, optional
        :math:`\lambda`; by default the share of old classes.
    norm : {"l1", "l2"}
        Of a row of the classifier: the authors' code has l1, PyCIL l2.
    limit : float, optional
        The largest :math:`\gamma`, 1 in the authors' code; None for none, as in PyCIL.
    clamp : bool
        Whether negative weights are set to 0 after each update, as in the authors' code; in PyCIL
        they are not. Without it the norm of a row does not tell the size of its logits.
    """

    weight: float | None = None
    norm: Norm = "l1"
    limit: float | None = 1.0
    clamp: bool = True

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise for a share outside 0 to 1, or an unknown norm."""
        super().check_options()
        if self.weight is not None:
            check_number("weight", self.weight, maximum=1, error=TrainingError)
        if self.limit is not None:
            check_number("limit", self.limit, above=0, error=TrainingError)
        check_choice("norm", self.norm, get_args(Norm), error=TrainingError)

    def first_task_settings(self) -> dict[str, Any]:
        """Name the clamping, if there is any."""
        return {"clamp": True} if self.clamp else {}

    def hooks(self, task: LearningTask) -> Hooks:
        """Weight the cross-entropy, and add the distillation."""
        updated = [clamp_weights] if self.clamp else []
        if self.old is None:
            return Hooks(updated=updated)
        share = task.n_old / task.n_classes if self.weight is None else self.weight
        smoothing = task.plan.label_smoothing
        hooks = weighted_distillation(share, self.old.logits, label_smoothing=smoothing)
        return replace(hooks, updated=updated)

    def align(self, task: LearningTask) -> None:
        """Scale the weights of new classes."""
        ratio = norm_ratio(self.classifier, task.n_old, self.norm)
        gamma = align_weights(self.classifier, task.n_old, self.norm, self.limit)
        self.fitted = {"gamma": gamma, "norm ratio": ratio}


def clamp_weights(step: Step) -> None:
    """Set negative weights of the classifier to 0."""
    step.classifier.weight.data.clamp_(min=0)
