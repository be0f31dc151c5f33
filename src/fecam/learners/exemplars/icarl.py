"""iCaRL: distillation, herding, and the nearest mean of exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner
from fecam.learners.mechanisms.exemplar_means import nearest_mean_scores, unit_means
from fecam.learners.mechanisms.logit_distillation import sigmoid_distillation, softmax_distillation
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_number

LossName = Literal["bce", "ce_kd"]
TEMPERATURE = 2.0
"""Of PyCIL's softmax form."""


@dataclass(kw_only=True, eq=False)
class ICaRL(ExemplarLearner):
    r"""Incremental classifier and representation learning (Rebuffi et al. 2017).

    .. math:: L = \frac1B \sum_b \sum_c \mathrm{BCE}(\sigma(z_{bc}), q_{bc})

    where q is :math:`\sigma(z^{old}_{bc})` for old classes, also of exemplars, and the one-hot
    label for new ones. Prediction is the class whose exemplars have the nearest mean, at unit
    length; the means of all classes are computed again after each task.

    Parameters
    ----------
    loss : {"bce", "ce_kd"}
        As published; or cross-entropy and distillation with a softmax, as in PyCIL.
    weight : float
        Of the distillation in ``"ce_kd"``.
    """

    loss: LossName = "bce"
    weight: float = 1.0

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"
    least_exemplars: ClassVar[int] = 1

    def check_options(self) -> None:
        """Raise for an unknown loss or a negative weight."""
        super().check_options()
        check_choice("loss", self.loss, get_args(LossName), error=TrainingError)
        check_number("weight", self.weight, error=TrainingError)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Name the loss of the first task, which is that of lwf-mc."""
        return {"loss": "sigmoid"} if self.loss == "bce" else {}

    def hooks(self, task: LearningTask) -> Hooks:
        """Replace the cross-entropy, or add the distillation."""
        old = self.old
        if self.loss == "bce":

            def sigmoids(step: Step) -> Tensor:
                old_logits = None if old is None else old.logits(step)
                return sigmoid_distillation(step.logits, old_logits, step.labels)

            return Hooks(loss=sigmoids)
        if old is None or not self.weight:
            return Hooks()

        def distillation(step: Step) -> Tensor:
            return self.weight * softmax_distillation(step.logits, old.logits(step), TEMPERATURE)

        return Hooks(losses={"distillation": distillation})

    def after_task(self, task: LearningTask) -> None:
        """Compute the means of the exemplars of all classes."""
        super().after_task(task)
        data = self.exemplar_data()
        if data is not None:
            labels = np.asarray(data.labels)
            means = unit_means(self.features(data), labels, self.classes)
            self.kept["means"] = {"exemplars": means}

    def other_predictions(
        self, features: NDArray[np.float32], images: Dataset
    ) -> dict[str, NDArray[np.int64]]:
        """Return the labels of the largest outputs."""
        return {"outputs": self.largest(self.classifier.eval(), features)}

    def scores(self, features: Tensor) -> Tensor:
        """Return the cosine to the means of exemplars."""
        return nearest_mean_scores(features, self.kept["means"]["exemplars"])
