"""What an encoder is: a frozen function from raw items to feature vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Kind

Features = NDArray[np.float32]


class Encoder(ABC):
    """A frozen encoder, with the preprocessing that its weights were made for.

    Work is in two steps, so that items can be decoded and scaled by several threads while the
    network is busy: `prepare` looks at one item and knows nothing of the network; `embed` runs the
    network on prepared items. `encode` does both.
    """

    name: str
    """As `fecam.encoders.load` knows it."""
    kind: Kind
    """What goes in."""
    n_features: int
    """How many features come out."""
    fingerprint: str
    """Changes whenever a feature might: with the weights, the layers and the preprocessing."""
    preprocessing: str
    """What happens to an item before the network sees it, for a person to read."""
    batch_size: int = 16
    """How many items at a time are fastest."""

    @abstractmethod
    def prepare(self, item: Any) -> Any:
        """One item as the network wants it; safe to call from several threads."""

    @abstractmethod
    def embed(self, prepared: Sequence[Any]) -> Features:
        """The features of prepared items, one row each, float32."""

    def encode(self, items: Sequence[Any]) -> Features:
        """The features of raw items, one row each: the same alone, in a batch, in any order."""
        if not len(items):
            return np.zeros((0, self.n_features), np.float32)
        parts = [
            self.embed([self.prepare(item) for item in items[start : start + self.batch_size]])
            for start in range(0, len(items), self.batch_size)
        ]
        return np.concatenate(parts)

    def __repr__(self) -> str:
        return f"<encoder {self.name}: {self.kind} to {self.n_features} features>"
