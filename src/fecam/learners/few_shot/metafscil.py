"""MetaFSCIL, an approximation: the network learns to be adapted to sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from fecam.errors import TrainingError
from fecam.learners.decisions import BatchNorm
from fecam.learners.few_shot.finetune import FewShotFineTuning
from fecam.learners.mechanisms.episodes import EpisodeSampler
from fecam.learners.mechanisms.fast_weights import FastWeights, descend
from fecam.learners.task import LearningTask
from fecam.training.augmentation import Augmentation
from fecam.training.hooks import Hooks, Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class MetaFSCIL(FewShotFineTuning):
    r"""Meta-learning for few-shot class-incremental learning (Chi et al., CVPR 2022), approximated.

    .. math:: \min_\theta \sum_t \mathrm{CE}(Q_t; \theta_t), \quad
        \theta_t = \theta_{t-1} - \eta \nabla \mathrm{CE}(S_t; \theta_{t-1})

    over sequences of sessions drawn from the classes of the first task: :math:`S_t` are the shots
    of session t, :math:`Q_t` other images of all its classes so far. The gradient is taken at
    :math:`\theta_t` and not through the steps (first order), and the second network of the paper,
    which gates the first, is left out. A later task trains the rows of its classes, then takes the
    same steps with all weights; it follows these options and not the plan of later tasks.

    No code of the authors was found: the defaults are those of a third-party implementation, except
    the numbers of sequences, sessions and queries.

    Parameters
    ----------
    sequences : int
        Sequences of sessions after the first task.
    known, ways, shots, sessions : int
        The classes before the first session, 20, classes per session, 5, their shots, 5, and
        sessions; fewer where the classes do not suffice.
    queries : int
        Images per class so far, to judge the adapted weights by.
    outer_rate : float
        Learning rate of the original weights, 0.001.
    row_steps, row_rate : int, float
        Steps of new rows alone, 20, and their learning rate, 0.1.
    steps, rate : int, float
        Steps of all weights, 5, and their learning rate, 0.001.
    """

    approximation: ClassVar[str | None] = "first order, without the gating network"

    batch_norm: BatchNorm = "frozen"
    sequences: int = 200
    known: int = 20
    ways: int = 5
    shots: int = 5
    sessions: int = 8
    queries: int = 5
    outer_rate: float = 0.001
    row_steps: int = 20
    row_rate: float = 0.1
    steps: int = 5
    rate: float = 0.001

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("sequences", self.sequences, 0, error=TrainingError)
        for name in ("known", "ways", "shots", "sessions", "queries", "row_steps", "steps"):
            check_int(name, getattr(self, name), error=TrainingError)
        for name in ("outer_rate", "row_rate", "rate"):
            check_number(name, getattr(self, name), above=0, error=TrainingError)

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of a task; that of later ones has a step per epoch."""
        plan = super().plan_for(index)
        if not index:
            return plan
        return replace(
            plan,
            epochs=self.row_steps + self.steps,
            batch_size=4096,  # all shots at once
            learning_rate=self.row_rate,
            milestones=(self.row_steps,),
            decay=min(1.0, self.rate / self.row_rate),
            warmup_epochs=0,
            momentum=0.0,
            weight_decay=0.0,
            label_smoothing=0.0,
            augmentation=Augmentation(),
            optimizer="sgd",
        )

    def hooks(self, task: LearningTask) -> Hooks:
        """Return what keeps all but the new rows fixed in the first steps of a later task."""

        def only_new_rows(step: Step) -> None:
            if step.epoch >= self.row_steps:
                return
            for parameter in step.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            for parameter in step.classifier.parameters():
                parameter.grad[: task.n_old] = 0

        return Hooks() if task.first else Hooks(backward=[only_new_rows])

    def after_task(self, task: LearningTask) -> None:
        """After the first task, train the network on sequences of sessions."""
        if not task.first or task.n_classes < 2:
            return
        generator = Generator().manual_seed(task.plan.seed)
        sampler = EpisodeSampler(task.images, task.positions, generator)
        self.network.to(self.device).eval().requires_grad_(True)
        self.classifier.to(self.device)
        for sequence in range(self.sequences):
            if not math.isfinite(loss := self._learn_sequence(task, sampler)):
                raise TrainingError(
                    f"the loss became {loss} in sequence {sequence + 1} of {self.sequences}. Lower "
                    "outer_rate, row_rate or rate."
                )

    def _learn_sequence(self, task: LearningTask, sampler: EpisodeSampler) -> float:
        """Take a step of the network after one sequence of sessions, and return the last loss."""
        order = torch.randperm(task.n_classes, generator=sampler.generator)
        known = min(self.known, task.n_classes - 1)
        groups = order[known:].split(self.ways)[: self.sessions]
        rows, offsets = (
            x.detach()[order[:known].to(x.device)] for x in self.classifier.parameters()
        )
        fast = FastWeights(self.network, rows, offsets)
        position = torch.empty(task.n_classes, dtype=torch.int64)
        position[order] = torch.arange(task.n_classes)
        loss = 0.0
        self.network.zero_grad()
        for group in groups:
            images, labels, held = self._shots(task, sampler, group, position)
            fast.add_classes(images, labels, self.row_steps, self.row_rate)
            fast.adapt(images, labels, self.steps, self.rate)
            seen = order[: len(fast.rows)]
            queries = torch.cat([self._queries(sampler, c, held) for c in seen.tolist()])
            judged = position[sampler.positions[queries]].to(self.device)
            loss = fast.teach(self.network, sampler.load(queries, task.plan, self.device), judged)
        gradients = [p.grad / len(groups) for p in self.network.parameters()]
        descend([*self.network.parameters()], gradients, self.outer_rate)
        return loss

    def _shots(
        self, task: LearningTask, sampler: EpisodeSampler, group: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, set[int]]:
        """Return images and labels of a session, and the rows that are no queries."""
        episode = sampler.draw(len(group), self.shots, 1, among=group)
        rows = episode.supports.flatten()
        images = sampler.load(rows, task.plan, self.device)
        labels = position[sampler.positions[rows]].to(self.device)
        return images, labels, set(rows.tolist())

    def _queries(self, sampler: EpisodeSampler, label: int, held: set[int]) -> Tensor:
        """Return rows of a class that are not among the shots of this session."""
        rows = [row for row in sampler.by_class[label].tolist() if row not in held]
        chosen = torch.randperm(len(rows), generator=sampler.generator)[: self.queries]
        return torch.tensor(rows)[chosen]
