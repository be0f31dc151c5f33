"""Small tasks drawn from the classes of the first task, and a second stage of training on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from fecam.errors import TrainingError
from fecam.training.images import TrainingImages
from fecam.training.plan import TrainingPlan

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
HALVINGS = 5
"""The learning rate is halved after each fifth of the episodes (CEC)."""


class Episode(NamedTuple):
    """Rows of supports (ways, shots) and queries (ways, n) of some classes (ways,)."""

    classes: Tensor
    supports: Tensor
    queries: Tensor


class EpisodeSampler:
    """Draws episodes from the readable images of a task.

    Parameters
    ----------
    images : TrainingImages
        The images.
    positions : tensor of int
        The class of each row, from 0.
    generator : torch.Generator
        The source of random numbers.
    """

    def __init__(self, images: TrainingImages, positions: Tensor, generator: Generator) -> None:
        rows = torch.tensor([i for i in images.rows.tolist() if i not in images.skipped])
        self.images, self.positions, self.generator = images, positions, generator
        self.rows = rows
        self.by_class = [rows[positions[rows] == c] for c in range(int(positions.max()) + 1)]

    def draw(self, ways: int, shots: int, queries: int, *, among: Tensor | None = None) -> Episode:
        """Return an episode; of small classes and few classes it has all that there is."""
        classes = torch.arange(len(self.by_class)) if among is None else among
        classes = self._permuted(classes)[:ways]
        shuffled = [self._permuted(self.by_class[c]) for c in classes.tolist()]
        least = min(map(len, shuffled))
        if least < 2:
            raise TrainingError(
                "a class of the first task has one readable image: an episode needs a support and "
                "a query. Add images, or leave the class out."
            )
        shots = min(shots, least - 1)
        supports = torch.stack([rows[:shots] for rows in shuffled])
        return Episode(
            classes, supports, torch.stack([rows[shots : shots + queries][: least - shots]
                                            for rows in shuffled]),
        )  # fmt: skip

    def batch(self, size: int) -> Tensor:
        """Return the rows of some images of all classes."""
        return self._permuted(self.rows)[:size]

    def load(self, rows: Tensor, plan: TrainingPlan, device: torch.device) -> Tensor:
        """Return images of rows of any shape, augmented as in the training, in that shape."""
        _, pixels = next(iter(self.images.batches([rows.flatten()])))
        size = self.images.preprocessing.size
        augmented = plan.augmentation(pixels.to(device), size, self.generator)
        return self.images.normalize(augmented).unflatten(0, rows.shape)

    def _permuted(self, values: Tensor) -> Tensor:
        return values[torch.randperm(len(values), generator=self.generator)]


def train_episodes(
    modules: Mapping[nn.Module, float], loss: Callable[[], Tensor], episodes: int
) -> None:
    """Take a step of SGD per episode, with a learning rate per module.

    Batch normalization uses its running statistics, as in the authors' code of CEC.
    """
    groups = [
        {"params": [*module.parameters()], "lr": rate, "rate": rate}
        for module, rate in modules.items()
    ]
    for module in modules:
        module.eval().requires_grad_(True)
    optimizer = torch.optim.SGD(
        groups, lr=0.1, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    for episode in range(episodes):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * 0.5 ** (HALVINGS * episode // episodes)
        value = loss()
        if not math.isfinite(now := float(value.detach())):
            raise TrainingError(
                f"the loss became {now} in episode {episode + 1} of {episodes}. Lower the "
                "learning rates of the second stage."
            )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def rotated_by_class(images: Tensor, quarters: Sequence[int]) -> Tensor:
    """Return images (ways, n, c, h, w) with those of each class turned by its own quarters.

    >>> x = torch.arange(4.0).reshape(1, 1, 1, 2, 2)
    >>> rotated_by_class(x, [2])[0, 0, 0].tolist()
    [[3.0, 2.0], [1.0, 0.0]]
    """
    return torch.stack([own.rot90(k, (-2, -1)) for own, k in zip(images, quarters, strict=True)])
