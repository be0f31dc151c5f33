"""What a method adds to the training loop: losses, heads and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Generator, Tensor, nn


@dataclass(frozen=True, eq=False)
class Modules:
    """The trained modules between two epochs."""

    network: nn.Module
    classifier: nn.Module
    heads: Mapping[str, nn.Module]
    epoch: int
    """From 0: the current epoch, or the one that starts or ends."""


@dataclass(frozen=True, eq=False)
class Step(Modules):
    """One batch after the forward pass."""

    images: Tensor
    """The network's input: augmented and normalized."""
    labels: Tensor
    """The index of each image's class among the classifier's outputs."""
    rows: Tensor
    """The index of each image in the data set."""
    features: Tensor
    logits: Tensor
    generator: Generator
    """The source of random numbers for hooks: a resumed run draws the same ones."""


Loss = Callable[[Step], Tensor]


@dataclass(frozen=True, eq=False)
class Hooks:
    """What a method adds to the training loop; all parts are optional.

    State that must survive a killed run belongs in a buffer of a head: checkpoints contain heads.

    Parameters
    ----------
    loss : callable, optional
        Replaces the cross-entropy: `Step` to tensor.
    losses : mapping of str to callable, optional
        Weighted losses that are added; each record has their means by name.
    heads : mapping of str to torch.nn.Module, optional
        More modules to train and to save in the checkpoint.
    outputs : range, optional
        The outputs in the cross-entropy, of which all labels must be; others get no gradient.
    views : int
        Augmentations per image: the batch has all images once per view, one view after the other.
    batch : callable, optional
        Replaces images and labels before the forward pass: (images, labels, generator) to
        (images, labels).
    epoch_start, epoch_end : sequence of callables, optional
        Called with `Modules` before the first step, and after the last one before the checkpoint.
    backward : sequence of callables, optional
        Called with the `Step` between gradients and update, to read or change gradients.
    updated : sequence of callables, optional
        Called with the `Step` after each update, to correct weights.
    settings : mapping, optional
        JSON values that change the result; a checkpoint with other settings is rejected.

    Examples
    --------
    >>> Hooks(losses={"norm": lambda step: 0.1 * step.features.square().mean()}).outputs is None
    True
    """

    loss: Loss | None = None
    losses: Mapping[str, Loss] = field(default_factory=dict)
    heads: Mapping[str, nn.Module] = field(default_factory=dict)
    outputs: range | None = None
    views: int = 1
    batch: Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]] | None = None
    epoch_start: Sequence[Callable[[Modules], None]] = ()
    epoch_end: Sequence[Callable[[Modules], None]] = ()
    backward: Sequence[Callable[[Step], None]] = ()
    updated: Sequence[Callable[[Step], None]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
