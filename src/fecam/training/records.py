"""What training tells: a record an epoch, progress within one, and the sums they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fecam.training.hooks import Step


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch came to."""

    epoch: int
    """From 1."""
    epochs: int
    loss: float
    """Mean over the images, everything added."""
    accuracy: float
    """Share of the augmented images named rightly while the network still changed."""
    learning_rate: float
    """Of the last step."""
    seconds: float
    remaining: float
    """Seconds until the plan is done, at the pace so far."""
    images: int
    skipped: int = 0
    """Images that could not be read so far; `TrainingImages.skipped` says which and why."""
    losses: Mapping[str, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    restored: bool = False
    """Done by an earlier process, and read from its checkpoint."""


@dataclass(frozen=True)
class Progress:
    """How far an epoch is."""

    epoch: int
    """From 1."""
    epochs: int
    batches: int
    """Done."""
    of: int
    loss: float
    """Mean so far in this epoch; looked at every few batches only, as a GPU has to wait for it."""
    accuracy: float
    seconds: float
    """In this epoch."""
    remaining: float
    """Seconds until the plan is done, at the pace of this epoch."""


class Tally:
    """Sums over an epoch, kept where they are computed until somebody looks."""

    def __init__(self) -> None:
        self.images = 0
        self._sums: dict[str, Any] = {}

    def add(self, step: Step, losses: Mapping[str, Tensor]) -> None:
        """One batch more."""
        count = len(step.labels)
        right = (step.logits.detach().argmax(1) == step.labels).sum()
        means = {f"loss {name}": count * loss.detach() for name, loss in losses.items()}
        for name, value in {"right": right, **means}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.images += count

    def mean(self, name: str) -> float:
        """Over the images so far."""
        return float(self._sums.get(name, 0.0)) / max(1, self.images)
