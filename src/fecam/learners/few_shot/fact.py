"""FACT: virtual prototypes in the first task reserve room for later classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.few_shot.frozen_learner import FrozenLearner
from fecam.learners.mechanisms.cosine_prototypes import fix_scale
from fecam.learners.mechanisms.pair_mixup import draw_beta
from fecam.learners.mechanisms.virtual_prototypes import (
    allowed_virtual,
    mixed_loss,
    virtual_loss,
    virtual_scores,
)
from fecam.learners.task import LearningTask
from fecam.training.classifiers import CosineClassifier
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class FACT(FrozenLearner):
    r"""Forward compatible training (Zhou et al., CVPR 2022).

    .. math:: L = \mathrm{CE}(z, y) + \gamma \bigl(\mathrm{CE}([z_{-y}, z_D], \hat v)
        + \mathrm{CE}([z', z'_V], \hat v') + \mathrm{CE}([z', z'_{V - \hat v'}], \hat y')\bigr)

    with logits z of the classes, :math:`z_D` of virtual prototypes as initialized and :math:`z_V`
    as trained. :math:`\hat v` is the virtual prototype with the largest logit among those allowed
    for the class; primes are mixtures of the maps of two images of different classes after the
    second stage, and their labels are the largest logits. After later tasks the prediction is

    .. math:: \eta\, \mathrm{softmax}(a) + (1 - \eta)\, \mathrm{softmax}(s \cos(f, W)), \quad
        a_c = \sum_{v \in top_k} \cos(f, v) \cos(v, w_c)

    with the class means W and the trained virtual prototypes v.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    virtual : int
        The number of virtual prototypes: 40 in the authors' code, and 100 for CUB-200, as many as
        there are classes to come.
    balance : float
        :math:`\gamma`, 0.01 in the authors' code, and 0.001 for CIFAR-100.
    alpha : float
        Of the beta distribution of the mixtures, 0.5 in the authors' code, and 2 for CUB-200.
    eta : float
        :math:`\eta`, 0.1 in the authors' code.
    top : int
        k, 40 in the authors' code.
    classes_per_virtual : int
        The classes for which a virtual prototype is allowed, 3 in the authors' code.
    """

    virtual: int = 40
    balance: float = 0.01
    alpha: float = 0.5
    eta: float = 0.1
    top: int = 40
    classes_per_virtual: int = 3

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        for name in ("virtual", "top", "classes_per_virtual"):
            check_int(name, getattr(self, name), error=TrainingError)
        check_number("balance", self.balance, error=TrainingError)
        check_number("alpha", self.alpha, above=0, error=TrainingError)
        check_number("eta", self.eta, maximum=1, error=TrainingError)

    def check_network(self, network: nn.Module) -> None:
        """Raise for a network without maps in the middle."""
        if not hasattr(network, "early") or not hasattr(network, "late"):
            raise TrainingError(
                f"{type(network).__name__} has no methods early and late, between which FACT mixes "
                "maps. Train a ResNet, or choose another learner."
            )

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        names = ("virtual", "balance", "alpha", "classes_per_virtual")
        own = {name: getattr(self, name) for name in names}
        return {**super().first_task_settings(), **own}

    def before_task(self, task: LearningTask) -> None:
        """Add a row per virtual prototype; initial rows are orthogonal as far as they can be."""
        if task.first:
            outputs = task.n_classes + self.virtual
            self.classifier = CosineClassifier(self.network.n_features, outputs)
            with torch.random.fork_rng([]):
                torch.manual_seed(task.plan.seed)
                nn.init.orthogonal_(self.classifier.weight)
        super().before_task(task)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the losses of images and of mixtures; a balance of 0 has none."""
        n = task.n_classes
        frozen = self.classifier.weight[n:].detach().clone()
        generator = torch.Generator().manual_seed(task.plan.seed)
        allowed = allowed_virtual(n, self.virtual, self.classes_per_virtual, generator)

        def images(step: Step) -> Tensor:
            unit = functional.normalize(step.features, dim=1)
            rows = functional.normalize(frozen.to(unit.device), dim=1)
            virtual = self.scale * unit @ rows.T
            mask = allowed.to(unit.device)
            return self.balance * virtual_loss(step.logits[:, :n], virtual, step.labels, mask)

        def mixtures(step: Step) -> Tensor:
            maps = mixed_maps(step, self.alpha)
            if len(maps) < 2:  # batch normalization needs two images
                return step.features.new_zeros(())
            logits = step.classifier(step.network.late(maps))
            return self.balance * mixed_loss(logits[:, :n], logits[:, n:])

        losses = {"virtual": images, "mixtures": mixtures} if self.balance else {}
        return Hooks(outputs=range(n), losses=losses)

    def after_task(self, task: LearningTask) -> None:
        """Keep the trained virtual prototypes; set the rows of the new classes."""
        if task.first:
            trained = self.classifier.weight.detach()
            self.kept["virtual"] = {"prototypes": trained[task.n_classes :].cpu().clone()}
            self.classifier = CosineClassifier(self.network.n_features, task.n_classes)
            fix_scale(self.classifier, self.scale)
        super().after_task(task)

    def scores(self, features: Tensor) -> Tensor:
        """Return probabilities, which virtual prototypes change after later tasks."""
        logits = super().scores(features)
        if self.n_tasks < 2:
            return logits
        virtual = self.kept["virtual"]["prototypes"].to(features.device)
        via = virtual_scores(features, self.classifier.weight, virtual, self.top)
        return self.eta * via.softmax(1) + (1 - self.eta) * logits.softmax(1)


def mixed_maps(step: Step, alpha: float) -> Tensor:
    """Return mixtures of the maps of images of different classes, with one share per batch."""
    order = torch.randperm(len(step.labels), generator=step.generator).to(step.labels.device)
    share = float(draw_beta(alpha, 1, step.generator))
    rows = (step.labels != step.labels[order]).nonzero()[:, 0]
    maps = step.network.early(step.images)
    return share * maps[rows] + (1 - share) * maps[order[rows]]
