"""What a learner adds to the training loop: losses, heads, looks at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Generator, Tensor, nn


@dataclass(frozen=True, eq=False)
class Step:
    """One batch on its way through the network, as a hook sees it."""

    images: Tensor
    """As they went in: augmented, normalised."""
    labels: Tensor
    """The position of each image's class among the classifier's outputs."""
    rows: Tensor
    """Where in the data set each image is."""
    features: Tensor
    logits: Tensor
    network: nn.Module
    classifier: nn.Module
    heads: Mapping[str, nn.Module]
    epoch: int
    """From 0."""
    generator: Generator
    """The one to draw from: a run resumed then draws the same."""


@dataclass(frozen=True, eq=False)
class Modules:
    """What is trained, as a hook sees it between epochs."""

    network: nn.Module
    classifier: nn.Module
    heads: Mapping[str, nn.Module]
    epoch: int
    """From 0: the one to come, or the one just done."""


Loss = Callable[[Step], Tensor]


@dataclass(frozen=True, eq=False)
class Hooks:
    """What a learner adds to the loop. Every part may be left out.

    State that has to survive a kill belongs in a buffer of a head: heads go into the checkpoint.
    """

    loss: Loss | None = None
    """In place of the cross-entropy."""
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """Added to it, weighted already; a record tells the mean of each by its name."""
    heads: Mapping[str, nn.Module] = field(default_factory=dict)
    """More layers to train: they join the optimiser and the checkpoint."""
    outputs: range | None = None
    """The outputs that the cross-entropy is taken over: all images are of these, and the others
    are not touched."""
    batch: Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]] | None = None
    """Replaces images and labels of a batch before the network sees them: mixes, turns, repeats."""
    epoch_start: Sequence[Callable[[Modules], None]] = ()
    epoch_end: Sequence[Callable[[Modules], None]] = ()
    """After the last step, before the checkpoint is written."""
    backward: Sequence[Callable[[Step], None]] = ()
    """Between the gradient and the update: to look at gradients, or to change them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else decides the result, for JSON: a checkpoint made with others is refused."""
