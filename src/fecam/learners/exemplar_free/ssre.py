"""SSRE: adapters that are folded into the network, and prototypes that weight the losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional

from fecam.learners.exemplar_free.prototype_learner import PrototypeLearner
from fecam.learners.mechanisms.adapters import add_adapters, fold_adapters, fold_batchnorm
from fecam.learners.mechanisms.class_statistics import append_rows, class_means, labels_of
from fecam.learners.mechanisms.feature_distillation import PUBLISHED_SHAPE, sample_norms
from fecam.learners.mechanisms.prototype_replay import draw_classes
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.training.plan import TrainingPlan

PUBLISHED_BATCH = 128
"""Images over which the authors sum the distillation."""


@dataclass(kw_only=True, eq=False)
class SSRE(PrototypeLearner):
    r"""Self-sustaining representation expansion (Zhu et al., CVPR 2022).

    .. math:: L = \frac1B \sum_i (1 - s_i)\, \mathrm{CE}_i(z_i / T, y_i)
        + \beta \, 128 \sqrt{\frac{512}{d}} \, \frac1B \sum_i s_i \|f_i - f_i^{old}\|
        + \alpha\, \mathrm{CE}(W \mu_c / T, c), \quad s_i = \max_c \cos(f_i, \mu_c)

    over the means of old classes; c is a random one. After the first task, batch normalization is
    folded into the convolutions. In later tasks each 3 x 3 convolution is frozen and gets a 1 x 1
    adapter that starts at zero; adapters and classifier are trained, and the adapters are folded.
    So the network never grows. The authors sum the distillation over batches of 128 images with 512
    features; for others it is scaled to that.

    Parameters
    ----------
    replay : float
        :math:`\alpha`, 10 in the authors' code.
    distillation : float
        :math:`\beta`, 1 in the authors' code.
    temperature : float
        T, 0.1 in the authors' code.
    optimizer : {"adam", "recipe"}
        Adam as in the authors' code, or the optimizer of the recipe.
    learning_rate : float, optional
        Of Adam in the first task; in later tasks it is a fifth, which is the authors' 2e-4. By
        default 0.001 for 101 epochs, larger for fewer.
    weight_decay : float
        Of Adam, 5e-4 in the authors' code.
    similarity_gradient : bool
        Whether gradients flow through s. In the authors' code they do, so that the loss can be
        lowered by moving features away from prototypes; in PyCIL and here s is a weight.
    """

    distillation: float = 1.0
    weight_decay: float = 5e-4
    similarity_gradient: bool = False

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return a network, after the first task without batch normalization."""
        network = self.recipe.network()
        return fold_batchnorm(network) if n_tasks else network

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan with Adam; in later tasks with a fifth of the learning rate."""
        plan = super().plan_for(index)
        slower = index and self.optimizer == "adam"
        return replace(plan, learning_rate=plan.learning_rate / 5) if slower else plan

    def check_network(self, network: nn.Module) -> None:
        """Raise for networks without 3 x 3 convolutions."""
        add_adapters(fold_batchnorm(network))

    def before_task(self, task: LearningTask) -> None:
        """Freeze the network and add adapters."""
        if not task.first:
            add_adapters(self.network)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the three losses."""

        def classification(step: Step) -> Tensor:
            losses = self.cross_entropies(step, task)
            return (losses if task.first else (1 - self._similarity(step)) * losses).mean()

        losses = {} if task.first else {"distillation": self._distill, "replay": self._replay}
        return Hooks(loss=classification, losses=losses)

    def _similarity(self, step: Step) -> Tensor:
        """Return the largest cosine of each sample with the mean of an old class."""
        features = step.features if self.similarity_gradient else step.features.detach()
        means = self.kept["statistics"]["means"].to(features.device)
        cosines = functional.normalize(features) @ functional.normalize(means).T
        return cosines.max(1).values

    def _distill(self, step: Step) -> Tensor:
        assert self.old is not None
        norms = sample_norms(step.features, self.old.features(step))
        scale = PUBLISHED_BATCH * math.sqrt(PUBLISHED_SHAPE[1] / step.features.shape[1])
        return self.distillation * scale * (self._similarity(step) * norms).mean()

    def _replay(self, step: Step) -> Tensor:
        means = self.kept["statistics"]["means"]
        labels = draw_classes(len(step.labels), len(means), step.generator)
        logits = step.classifier(means[labels].to(step.features.device)).float()
        targets = labels.to(logits.device)
        return self.replay * functional.cross_entropy(logits / self.temperature, targets)

    def after_task(self, task: LearningTask) -> None:
        """Fold batch normalization or adapters; keep the mean of each new class."""
        fold = fold_batchnorm if task.first else fold_adapters
        self.network = fold(self.network).requires_grad_(True)
        statistics = self.kept.setdefault("statistics", {})
        means = class_means(self.features(task.images), labels_of(task), task.new)
        append_rows(statistics, "means", means)
