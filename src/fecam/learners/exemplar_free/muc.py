"""MUC: LwF with side classifiers that are trained to disagree about unlabelled images."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.data import load
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.errors import TrainingError
from fecam.learners.decisions import OldRows
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.class_statistics import features_of
from fecam.learners.mechanisms.logit_distillation import softmax_distillation
from fecam.learners.mechanisms.side_classifiers import train_side_classifiers
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.training.images import TrainingImages
from fecam.validation import check_int, check_number

EMBEDDED = ("digits", "glyphs")
"""Data sets that need no download; the first that is not learned is the default. The authors have
house numbers (SVHN)."""
MOST_IMAGES = 1000
"""Unlabelled images that are used, evenly spaced in their data set."""


@dataclass(kw_only=True, eq=False)
class MUC(Learner):
    r"""More classifiers, less forgetting (Liu et al., ECCV 2020), as MUC-LwF.

    .. math:: L = (1 - a)\, \mathrm{CE}(z_{new}, y)
        + a \Bigl(\mathrm{KD}(z, z^{old}) + \frac13 \sum_{k=1}^3 \mathrm{KD}(s_k, s_k^{old})\Bigr),
        \quad a = \frac{t}{t + 1}

    in task t > 0, where :math:`s_k` are the side classifiers of the last task, and KD is
    `softmax_distillation`. After each task, new side classifiers are trained on the features of the
    task and of unlabelled images u to minimize :math:`\sum_k \mathrm{CE}(s_k, y) -
    \sum_{i < j} mean |p_i(u) - p_j(u)|`. Only the main classifier predicts.

    The authors train the side classifiers on augmented images and take SVHN for u; here features
    are computed once, without augmentation.

    Parameters
    ----------
    unlabelled : str, optional
        A data set of images that are not those of the tasks; "auto" takes digits, or glyphs if the
        tasks are digits. The options of a learner that has learned name the one that it used.
    sides : int
        Side classifiers, 3 in the paper.
    side_epochs : int
        80 in the authors' code.
    temperature : float
        Of the distillation, 2.
    """

    old_rows: OldRows = "included"
    unlabelled: str | None = "auto"
    sides: int = 3
    side_epochs: int = 80
    temperature: float = 2.0

    needs_old_network = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        if not isinstance(self.unlabelled, str):
            raise TrainingError(
                f"unlabelled={self.unlabelled!r}: muc needs the name of a data set of unlabelled "
                "images, about which its side classifiers disagree. Without one, use lwf."
            )
        check_int("sides", self.sides, 2, error=TrainingError)
        check_int("side_epochs", self.side_epochs, error=TrainingError)
        check_number("temperature", self.temperature, above=0, error=TrainingError)

    def check_task(self, task: LearningTask) -> None:
        """Raise if the unlabelled images are those of the tasks, or the task has one class."""
        name = self._set_for(task.images.name)
        if name == task.images.name:
            raise TrainingError(
                f"unlabelled={name!r} is the data set of the tasks. Name another one, such as "
                f"{next(other for other in EMBEDDED if other != name)!r}."
            )
        if len(task.new) < 2:
            raise TrainingError(
                f"task {task.index + 1} has one class, about which side classifiers cannot "
                "disagree. Use tasks of at least two classes, or lwf."
            )

    def _set_for(self, learned: str) -> str:
        others = [name for name in EMBEDDED if name != learned]
        return others[0] if self.unlabelled == "auto" else str(self.unlabelled)

    def options(self) -> dict[str, Any]:
        """Return the options, after a task with the unlabelled set that was used."""
        return {**super().options(), "unlabelled": self._used()}

    def describe(self) -> dict[str, Any]:
        """Return what determines the result; it does not depend on what was learned."""
        return {**super().describe(), "unlabelled": self.unlabelled}

    def _used(self) -> str | None:
        """Return the name of the unlabelled set; what is kept has the number of its images."""
        return next(iter(self.kept.get("unlabelled images", {})), self.unlabelled)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the weighted loss in later tasks; the side classifiers are trained with it."""
        old, share = self.old, task.index / (task.index + 1)
        if old is None:
            return Hooks()
        fixed = self._side_classifiers()
        trained = {f"side {k}": copy.deepcopy(side) for k, side in enumerate(fixed)}
        start = task.n_old if self.outputs == "new" else 0

        def classification(step: Step) -> Tensor:
            logits = step.logits[:, start:].float()
            return (1 - share) * functional.cross_entropy(logits, step.labels - start)

        def main(step: Step) -> Tensor:
            return share * softmax_distillation(step.logits, old.logits(step), self.temperature)

        def side(step: Step) -> Tensor:
            losses = [
                softmax_distillation(new(step.features), then(old.features(step)), self.temperature)
                for new, then in zip(step.heads.values(), fixed, strict=True)
            ]
            return share * torch.stack(losses).mean()

        return Hooks(
            loss=classification,
            losses={"distillation": main, "side distillation": side},
            heads=trained,
        )

    def _side_classifiers(self) -> list[nn.Linear]:
        kept = self.kept["side classifiers"]
        sides = []
        for k in range(self.sides):
            weight = kept[f"weight {k}"].to(self.device)
            side = nn.Linear(weight.shape[1], weight.shape[0], device=self.device)
            side.load_state_dict({"weight": weight, "bias": kept[f"bias {k}"]})
            sides.append(side.requires_grad_(True))
        return sides

    def after_task(self, task: LearningTask) -> None:
        """Train side classifiers for the classes of this task, which replace the last ones."""
        name = self._set_for(task.images.name)
        unlabelled = _unlabelled_images(name, self.recipe.preprocessing)
        self.kept["unlabelled images"] = {name: torch.tensor(len(unlabelled))}
        features, other_features = (
            torch.from_numpy(features_of(self.network, images, self.device)).to(self.device)
            for images in (task.images, unlabelled)
        )
        sides = train_side_classifiers(
            features,
            task.positions[task.images.rows] - task.n_old,
            other_features,
            count=self.sides,
            epochs=self.side_epochs,
            seed=task.plan.seed,
        )
        self.kept["side classifiers"] = {
            f"{name} {k}": tensor.detach()
            for k, side in enumerate(sides)
            for name, tensor in side.state_dict().items()
        }


@lru_cache(maxsize=1)
def _unlabelled_images(name: str, preprocessing: ImagePreprocessing) -> TrainingImages:
    data = load(name)
    rows = np.linspace(0, len(data) - 1, min(len(data), MOST_IMAGES)).astype(np.int64)
    return TrainingImages(data.subset(rows), preprocessing)
