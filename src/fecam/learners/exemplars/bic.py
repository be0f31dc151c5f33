"""BiC: distillation, and a bias correction that is fitted to images left out of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fecam.encoders.torch_runtime import as_features
from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner, is_new
from fecam.learners.mechanisms.bias_correction import corrected, fit_bias
from fecam.learners.mechanisms.exemplar_memory import exemplars_per_class
from fecam.learners.mechanisms.logit_distillation import weighted_distillation
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks
from fecam.validation import check_choice, check_number

Groups = Literal["last", "chain"]


@dataclass(kw_only=True, eq=False)
class BiC(ExemplarLearner):
    r"""Large scale incremental learning (Wu et al. 2019).

    .. math:: L = (1 - \lambda)\, \mathrm{CE}(z, y) + \lambda\, \mathrm{KD}_2(\hat z^{old}, z)

    where :math:`\hat z^{old}` are the corrected logits of the old network and :math:`\lambda` is
    the share of old classes. Then :math:`\hat z_c = \alpha z_c + \beta` for new classes, fitted
    without augmentation to images that are not trained on: a tenth of the exemplars, and as many
    images of each new class. The record has both under ``fitted``.

    Parameters
    ----------
    weight : float, optional
        :math:`\lambda`; by default the share of old classes.
    validation : float
        The share of the exemplars of a class that is not trained on, at least one image.
    groups : {"last", "chain"}
        Whether only the classes of the last task are corrected, as in the authors' code, or those
        of each later task by its own factors, as in PyCIL.
    """

    weight: float | None = None
    validation: float = 0.1
    groups: Groups = "last"

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"
    least_exemplars: ClassVar[int] = 1
    _validation: Tensor = field(init=False, repr=False)

    def check_options(self) -> None:
        """Raise for shares outside 0 to 1, or unknown groups."""
        super().check_options()
        if self.weight is not None:
            check_number("weight", self.weight, maximum=1, error=TrainingError)
        check_number("validation", self.validation, above=0, below=1, error=TrainingError)
        check_choice("groups", self.groups, get_args(Groups), error=TrainingError)

    def check_classes(self, counts: Sequence[int]) -> None:
        """Raise if an old class would have no image to validate."""
        super().check_classes(counts)
        n_old = sum(counts[:-1])
        if n_old and exemplars_per_class(self.exemplars, self.budget, n_old) < 2:
            least = 2 if self.budget == "per_class" else 2 * n_old
            raise TrainingError(
                f"exemplars={self.exemplars} with budget={self.budget!r} is less than two for each "
                f"of {n_old} old classes: BiC needs one to train and one to correct the outputs. "
                f"Set exemplars to at least {least}, or choose wa, which needs no such images."
            )

    def hooks(self, task: LearningTask) -> Hooks:
        """Leave out the images for the correction; distill from corrected logits."""
        if self.old is None:
            return Hooks()
        self._validation = validation_rows(task, self.validation)
        left_out = torch.isin(task.images.rows, self._validation)
        task.images.rows = task.images.rows[~left_out]
        share = task.n_old / task.n_classes if self.weight is None else self.weight
        old, before = self.old, self._factors()
        return weighted_distillation(
            share,
            lambda step: corrected(old.logits(step), *before),
            label_smoothing=task.plan.label_smoothing,
            correct=self._correct_old,
        )

    def second_phase(self, task: LearningTask) -> None:
        """Fit the correction, and use the images that were left out from then on."""
        self.network.eval()
        batches = task.images.eval_batches(256, self.device, self._validation)
        with torch.inference_mode():
            features = np.concatenate([as_features(self.network(x)) for _, x in batches])
            logits = self.classifier.eval()(torch.from_numpy(features).to(self.device)).cpu()
        labels = task.positions[self._validation]
        alpha, beta = fit_bias(self._correct_old(logits).clone(), labels, task.n_old)
        self.fitted = {"alpha": alpha, "beta": beta, "validation images": len(labels)}
        old, n_new = self._factors(), len(task.new)
        if self.groups == "last" or not len(old[0]):
            old = torch.ones(task.n_old), torch.zeros(task.n_old)
        self.kept["bias"] = {
            "alpha": torch.cat([old[0], torch.full((n_new,), alpha)]),
            "beta": torch.cat([old[1], torch.full((n_new,), beta)]),
        }
        task.images.rows = torch.cat([task.images.rows, self._validation]).sort().values

    def scores(self, features: Tensor) -> Tensor:
        """Return the corrected logits."""
        return corrected(super().scores(features), *self._factors())

    def _factors(self) -> tuple[Tensor, Tensor]:
        kept = self.kept.get("bias", {"alpha": torch.empty(0), "beta": torch.empty(0)})
        return kept["alpha"], kept["beta"]

    def _correct_old(self, logits: Tensor) -> Tensor:
        """Correct the logits of classes before the last task by their own factors."""
        return corrected(logits, *self._factors()) if self.groups == "chain" else logits


def validation_rows(task: LearningTask, share: float) -> Tensor:
    """Return the same number of images of each class, not to train on.

    Of an old class they are the last exemplars in the order of herding, of a new one random.
    """
    rows = task.images.rows.numpy()
    labels, new = np.asarray(task.images.labels)[rows], is_new(task)
    old_counts = [int((labels[~new] == label).sum()) for label in task.old]
    counts = [*old_counts, *(int((labels == label).sum()) for label in task.new)]
    smallest = int(np.argmin(counts))
    if counts[smallest] < 2:
        label = (*task.old, *task.new)[smallest]
        raise TrainingError(
            f"{task.data.label_names[label]!r} has {counts[smallest]} image: BiC needs one to "
            "train and one to correct the outputs. Set exemplars to at least "
            f"{2 * task.n_classes} in total, or choose wa, which needs no such images."
        )
    count = min(max(1, int(share * max(old_counts))), counts[smallest] - 1)
    rng = np.random.default_rng(task.plan.seed)
    parts = [rows[~new & (labels == label)][-count:] for label in task.old]
    for label in task.new:
        parts.append(rng.choice(rows[new & (labels == label)], count, replace=False))
    return torch.from_numpy(np.sort(np.concatenate(parts)))
