"""TOPIC, an approximation: anchors that must not move, while sessions train the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.decisions import BatchNorm, OldRows
from fecam.learners.few_shot.finetune import FewShotFineTuning
from fecam.learners.mechanisms.anchors import (
    central_rows,
    choose_anchors,
    drift_loss,
    pixels_of,
    pull_loss,
    push_loss,
)
from fecam.learners.mechanisms.class_statistics import features_of, labels_of
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_int, check_number

BATCH = 256
"""Anchors per pass at the start of a session."""


@dataclass(kw_only=True, eq=False)
class TOPIC(FewShotFineTuning):
    r"""Topology-preserving sessions (Tao et al., CVPR 2020), an approximation.

    .. math:: L = \mathrm{CE}(W f + b, y)
        + \alpha \operatorname{mean}_{jk} (u(f(a_j)) - u(f_0(a_j)))_k^2
        + \beta \operatorname{mean}_i \lVert u(f_i) - \bar u_{y_i} \rVert^2
        + \gamma \operatorname{mean}_{ij} \max(0, m - \lVert u(f_i) - u(f_0(a_j)) \rVert)^2

    in later tasks, over their images i, the anchors :math:`a_j` of old classes and the features k;
    :math:`f_0` is the network before the task, :math:`\bar u` the mean of a class in the batch and
    :math:`u(x) = x / \lVert x \rVert`.

    In the paper the anchors are the nodes of a neural gas; its public code lacks these files. Here
    they are the images nearest to the centroids of k-means, and one image per class of a later
    task. The paper's weight per feature by the variance of a node is 1 for features of unit length.

    Parameters
    ----------
    anchors : int
        Anchors of the first task, 400 in the authors' code.
    drift : float
        :math:`\alpha`, 350 in the authors' code.
    pull : float
        :math:`\beta`, 0.3 in the authors' code, and 5e-5 for CUB-200.
    push : float
        :math:`\gamma`, 1e-4 in the authors' code, and 1e-6 for CUB-200.
    margin : float
        m, 0.5 in the authors' code.
    """

    approximation: ClassVar[str | None] = "anchors by k-means instead of a neural gas"

    old_rows: OldRows = "excluded"
    batch_norm: BatchNorm = "frozen"
    anchors: int = 400
    drift: float = 350.0
    pull: float = 0.3
    push: float = 1e-4
    margin: float = 0.5

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("anchors", self.anchors, error=TrainingError)
        for name in ("drift", "pull", "push", "margin"):
            check_number(name, getattr(self, name), error=TrainingError)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the losses that hold anchors and group the new classes."""
        if task.first:
            return Hooks()
        network = self.network.to(self.device).eval()
        pixels = self.kept["anchors"]["pixels"].to(self.device)
        images = task.images.normalize(pixels / 255)
        with torch.no_grad():
            before = functional.normalize(torch.cat([network(x) for x in images.split(BATCH)]))

        def drift(step: Step) -> Tensor:
            return self.drift * drift_loss(step.network(images), before)

        return Hooks(
            losses={
                "drift": drift,
                "pull": lambda step: self.pull * pull_loss(step.features, step.labels),
                "push": lambda step: self.push * push_loss(step.features, before, self.margin),
            }
        )

    def after_task(self, task: LearningTask) -> None:
        """Choose anchors among the images of the task."""
        features = features_of(self.network, task.images, self.device)
        if task.first:
            rows = choose_anchors(features, self.anchors, task.plan.seed)
        else:
            rows = central_rows(features, labels_of(task))
        pixels = pixels_of(task.images, task.images.rows[torch.from_numpy(rows)])
        old = self.kept.get("anchors", {}).get("pixels", pixels[:0])
        self.kept["anchors"] = {"pixels": torch.cat([old, pixels])}
