"""LDC: class means follow a linear map of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Generator, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.mechanisms.drift import linear_map
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.moving.moving_learner import MovingLwF
from fecam.learners.task import LearningTask
from fecam.validation import check_choice, check_int, check_number

Fit = Literal["closed-form", "adam"]
RATE, BATCH = 1e-3, 128
"""Of Adam, in the authors' code."""


@dataclass(kw_only=True, eq=False)
class LDC(MovingLwF):
    r"""Learnable drift compensation (Gomez-Villa et al., ECCV 2024).

    .. math:: L = \mathrm{CE}(z_{new}, y) + \lambda\, \mathrm{KD}_2(z^{old}, z), \qquad
        P = \arg\min_P \sum_i \|f^{old}_i P - f_i\|^2, \quad \mu_c \leftarrow \mu_c P

    over the images of the current task. The mean with the largest cosine predicts.

    Parameters
    ----------
    weight : float
        :math:`\lambda`, 10 in the authors' code.
    temperature : float
        Of the distillation.
    fit : {"closed-form", "adam"}
        The minimum itself; or the authors' 20 epochs of Adam from a random map, which do not reach
        it with few images.
    ridge : float
        Of the closed form, a share of the mean squared feature; small, so that the map exists
        also where features do not vary.
    epochs : int
        Of Adam, 20 in the authors' code.
    """

    fit: Fit = "closed-form"
    ridge: float = 1e-3
    epochs: int = 20

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_choice("fit", self.fit, get_args(Fit), error=TrainingError)
        check_number("ridge", self.ridge, error=TrainingError)
        check_int("epochs", self.epochs, error=TrainingError)

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Return the drift of the linear map."""

        def drift(means: Floats, transform: Transform) -> Floats:
            before, after = transform(old), transform(new)
            if self.fit == "adam":
                linear = trained_map(before, after, epochs=self.epochs, seed=task.plan.seed)
            else:
                linear = linear_map(before, after, self.ridge)
            moved: Floats = means @ linear - means
            return moved

        return drift


def trained_map(old: Floats, new: Floats, *, epochs: int, seed: int) -> Floats:
    """Return the map of `linear_map` as the authors train it: with Adam, from a random one.

    >>> old = np.eye(2).repeat(20, 0)
    >>> trained_map(old, 0.5 * old, epochs=2000, seed=0).round(1) + 0
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    generator = Generator().manual_seed(seed)
    before, after = (torch.from_numpy(np.asarray(x, np.float32)) for x in (old, new))
    bound = old.shape[1] ** -0.5  # of a layer of torch
    start = torch.rand(old.shape[1], new.shape[1], generator=generator) * 2 - 1
    weight = nn.Parameter(bound * start)
    optimizer = torch.optim.Adam([weight], lr=RATE)
    for _ in range(epochs):
        for rows in torch.randperm(len(before), generator=generator).split(BATCH):
            loss = functional.mse_loss(before[rows] @ weight, after[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    result: Floats = weight.detach().double().numpy()
    return result
