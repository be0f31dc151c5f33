"""FOSTER: a second network corrects the first one, and both are compressed into one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner
from fecam.learners.mechanisms.branches import Branches, widen_classifier
from fecam.learners.mechanisms.class_balance import balanced_distillation, class_weights
from fecam.learners.mechanisms.class_statistics import features_of
from fecam.learners.mechanisms.logit_distillation import softmax_distillation
from fecam.learners.mechanisms.old_network import OldNetwork
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName, expand_classifier
from fecam.training.hooks import Hooks, Step
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from fecam.validation import check_int, check_number

EPOCH_SHARE = 130 / 170
"""Epochs of the compression per epoch of the boosting, in the authors' settings."""


@dataclass(kw_only=True, eq=False)
class FOSTER(ExemplarLearner):
    r"""Feature boosting and compression (Wang et al. 2022).

    .. math:: L = \mathrm{CE}(z / w, y) + \mathrm{CE}(z_\phi, y) + \mathrm{KD}_2(z^{old}, z)

    In each later task a second network is trained beside the frozen first one; z are the logits of
    both, :math:`z_\phi` those of a classifier on the second alone, and w are weights of classes by
    their numbers of images. Then a single network, which starts as the old one, is trained towards
    the probabilities of both, weighted by class. It is what remains, and what predicts; records
    have the accuracy of both networks as another one, ``teacher``.

    Parameters
    ----------
    beta : float
        Of the class weights in the loss: 0.96 as in PyCIL; 0 for none.
    compression_beta : float
        Of the class weights in the compression.
    compression_epochs : int, optional
        By default 130 for 170 epochs of the boosting.
    """

    beta: float = 0.96
    compression_beta: float = 0.97
    compression_epochs: int | None = None

    needs_old_network: ClassVar[bool] = True
    classifier_name: ClassVar[ClassifierName | None] = "linear"
    _teacher: OldNetwork | None = field(init=False, repr=False, default=None)
    """Both networks, from the compression until the next task starts."""

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        for name in ("beta", "compression_beta"):
            check_number(name, getattr(self, name), below=1, error=TrainingError)
        if self.compression_epochs is not None:
            check_int("compression_epochs", self.compression_epochs, error=TrainingError)

    def before_task(self, task: LearningTask) -> None:
        """Add a second network and its columns in the classifier."""
        self._teacher = None
        if task.first:
            return
        network = Branches(nn.Identity(), [self.network])
        network.add_branch()
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            n_features = network.n_features
            self.classifier = widen_classifier(self.classifier, task.n_old, n_features)
        self.network = network

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the losses of the boosting."""
        if self.old is None:
            return Hooks()
        assert isinstance(self.network, Branches)
        old, n_features = self.old, self.network.n_new_features
        weights = class_weights(image_counts(task), self.beta)
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            head = nn.Linear(n_features, task.n_classes)

        def balanced(step: Step) -> Tensor:
            logits = step.logits.float() / weights.to(step.logits.device)
            return functional.cross_entropy(logits, step.labels)

        def second(step: Step) -> Tensor:
            logits = step.heads["second"](step.features[:, -n_features:])
            return functional.cross_entropy(logits.float(), step.labels)

        def distillation(step: Step) -> Tensor:
            return softmax_distillation(step.logits, old.logits(step))

        return Hooks(
            loss=balanced,
            losses={"second": second, "distillation": distillation},
            heads={"second": head},
            epoch_start=[self.network.freeze()],
        )

    def second_phase(self, task: LearningTask) -> None:
        """Compress both networks into one."""
        assert self.old is not None
        teacher = self._teacher = OldNetwork(self.network, self.classifier)
        network = copy.deepcopy(self.old.network).requires_grad_(True)
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            classifier = expand_classifier(self.old.classifier, task.n_classes)
        weights = class_weights(image_counts(task), self.compression_beta)
        epochs = self.compression_epochs or max(1, round(task.plan.epochs * EPOCH_SHARE))
        plan = replace(task.plan, epochs=epochs, weight_decay=0.0, warmup_epochs=0, milestones=())

        def compression(step: Step) -> Tensor:
            return balanced_distillation(step.logits, teacher.logits(step), weights)

        for _ in train(
            network, classifier, task.images, plan, classes=self.classes,
            hooks=Hooks(loss=compression), device=self.device,
        ):  # fmt: skip
            pass
        self.network, self.classifier = network, classifier

    def other_predictions(
        self, features: NDArray[np.float32], images: Dataset
    ) -> dict[str, NDArray[np.int64]]:
        """Return the labels of both networks, after a later task."""
        if (teacher := self._teacher) is None:
            return {}
        prepared = TrainingImages(images, self.recipe.preprocessing)
        theirs = features_of(teacher.network, prepared, self.device)
        return {"teacher": self.largest(teacher.classifier, theirs)}


def image_counts(task: LearningTask) -> Tensor:
    """Return the number of images of each class, exemplars included."""
    return torch.bincount(task.positions[task.images.rows], minlength=task.n_classes).clamp(min=1)
