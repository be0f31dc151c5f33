"""DER: a network per task, whose features stand side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner, OldStatistics
from fecam.learners.mechanisms.balanced_fine_tuning import fine_tune_balanced
from fecam.learners.mechanisms.branches import Branches, auxiliary_loss, widen_classifier
from fecam.learners.mechanisms.weight_alignment import align_weights, norm_ratio
from fecam.learners.task import LearningTask
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_choice, check_int, check_number

Correction = Literal["balanced", "wa"]
EPOCH_SHARE = 30 / 170
"""Epochs of the second phase per epoch of the first, in the authors' settings for CIFAR-100."""
FEWEST_EPOCHS = 10
"""Of the second phase, which starts from new weights; so that short recipes train it, too."""


@dataclass(kw_only=True, eq=False)
class DER(ExemplarLearner):
    r"""Dynamically expandable representation (Yan et al. 2021), without pruning.

    .. math:: L = \mathrm{CE}(W u, y) + \lambda\, \mathrm{CE}(W_a \phi_t, y_a),
        \quad u = [\phi_1, \dots, \phi_t]

    In each later task a copy of the last network is added and trained; earlier ones are frozen,
    with their batch normalization. The auxiliary classifier :math:`W_a` tells new classes from each
    other and from all old ones, :math:`y_a = 0`. Then a new classifier W is trained on as many
    images of each class, with logits that are divided by a temperature. New columns of old classes
    start at zero, so that old outputs are the same at the start of a task.

    Parameters
    ----------
    auxiliary : float
        :math:`\lambda`.
    correction : {"balanced", "wa"}
        The second phase as published, or weight alignment instead, as in PyCIL.
    temperature : float
        Of the second phase: 5 for CIFAR-100 in the authors' settings, 1 for ImageNet.
    second_epochs : int, optional
        Of the second phase; by default 30 for 170 epochs, and at least 10.
    """

    old_statistics: OldStatistics = "exemplars"
    auxiliary: float = 1.0
    correction: Correction = "balanced"
    temperature: float = 5.0
    second_epochs: int | None = None

    classifier_name: ClassVar[ClassifierName | None] = "linear"

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_number("auxiliary", self.auxiliary, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)
        check_choice("correction", self.correction, get_args(Correction), error=TrainingError)
        if self.second_epochs is not None:
            check_int("second_epochs", self.second_epochs, error=TrainingError)
        if self.old_statistics == "carried":
            raise TrainingError(
                "old_statistics='carried': the features grow in each task, so that statistics of "
                'old classes do not fit. Set old_statistics="exemplars".'
            )

    def branches(self, network: nn.Module) -> Branches:
        """Return the network of the first task as a branch.

        Parameters
        ----------
        network : torch.nn.Module
            The network of the recipe.

        Returns
        -------
        Branches
            With the same features.
        """
        return Branches(nn.Identity(), [network])

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return a network with a branch per task; after one task it is that of the recipe."""
        network = super().make_network(n_tasks)
        if n_tasks < 2:
            return network
        grown = self.branches(network)
        for _ in range(n_tasks - 1):
            grown.add_branch()
        return grown

    def before_task(self, task: LearningTask) -> None:
        """Add a branch and its columns in the classifier."""
        if task.first:
            return
        if not isinstance(self.network, Branches):
            self.network = self.branches(self.network)
        self.network.add_branch()
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            self.classifier = widen_classifier(self.classifier, task.n_old, self.network.n_features)

    def freeze(self, network: Branches) -> Hooks:
        """Freeze all but the last branch."""
        return Hooks(epoch_start=[network.freeze()])

    def hooks(self, task: LearningTask) -> Hooks:
        """Freeze old branches and add the auxiliary loss."""
        if not isinstance(self.network, Branches):
            return Hooks()
        frozen, n_features = self.freeze(self.network), self.network.n_new_features
        if not self.auxiliary:
            return frozen
        loss = auxiliary_loss(n_features, task.n_old)
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            head = nn.Linear(n_features, len(task.new) + 1)
        return Hooks(
            losses={"auxiliary": lambda step: self.auxiliary * loss(step)},
            heads={"auxiliary": head},
            epoch_start=frozen.epoch_start,
        )

    def second_phase(self, task: LearningTask) -> None:
        """Train a new classifier on the same number of images per class."""
        if self.correction != "balanced":
            return
        epochs = self.second_epochs or max(FEWEST_EPOCHS, round(task.plan.epochs * EPOCH_SHARE))
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            self.classifier = nn.Linear(self.classifier.in_features, task.n_classes)

        def softened(step: Step) -> Tensor:
            return functional.cross_entropy(step.logits.float() / self.temperature, step.labels)

        fine_tune_balanced(self, task, epochs, task.plan.learning_rate, softened)

    def align(self, task: LearningTask) -> None:
        """Scale the weights of new classes, if that is the correction."""
        if self.correction == "wa":
            ratio = norm_ratio(self.classifier, task.n_old)
            self.fitted = {
                "gamma": align_weights(self.classifier, task.n_old),
                "norm ratio": ratio,
            }
