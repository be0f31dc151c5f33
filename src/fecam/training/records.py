"""Records of epochs, progress within an epoch, and the running means behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fecam.training.hooks import Step


@dataclass(frozen=True)
class EpochRecord:
    """The result of one epoch."""

    epoch: int
    """From 1."""
    epochs: int
    loss: float
    """The total loss, averaged over the images."""
    accuracy: float
    """The share of augmented images classified correctly during the epoch."""
    learning_rate: float
    """Of the last step."""
    seconds: float
    remaining: float
    """Estimated seconds to the end of the plan."""
    images: int
    skipped: int = 0
    """Unreadable images so far; `TrainingImages.skipped` lists them."""
    losses: Mapping[str, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    restored: bool = False
    """Read from the checkpoint of an earlier process."""


@dataclass(frozen=True)
class Progress:
    """The progress within an epoch."""

    epoch: int
    """From 1."""
    epochs: int
    batch: int
    """From 1."""
    n_batches: int
    loss: float
    """The mean so far in this epoch, updated every ten batches: reading it stops a GPU."""
    accuracy: float
    seconds: float
    """Since the start of this epoch."""
    remaining: float
    """Estimated seconds to the end of the plan, at the speed of this epoch."""


class RunningMeans:
    """Means over the images of an epoch; the sums stay on their device until they are read."""

    def __init__(self) -> None:
        self.images = 0
        self._sums: dict[str, Any] = {}

    def add(self, step: Step, losses: Mapping[str, Tensor]) -> None:
        """Add a batch with its losses."""
        count = len(step.labels)
        values = {f"loss {name}": count * loss.detach() for name, loss in losses.items()}
        values["correct"] = (step.logits.detach().argmax(1) == step.labels).sum()
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.images += count

    def mean(self, name: str) -> float:
        """Return the mean over the images so far."""
        return float(self._sums.get(name, 0.0)) / max(1, self.images)
