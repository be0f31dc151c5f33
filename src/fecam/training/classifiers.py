"""The layers that name classes while a network is trained, and that are thrown away afterwards."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError

ClassifierName = Literal["cosine", "linear"]


class CosineClassifier(nn.Module):
    """Logits ``s cos(f, w_c)``: only the direction of features counts, and ``s`` is learnt.

    So the lengths of features and weights, which differ between old and new classes, cannot favour
    either.

    >>> CosineClassifier(8, 3)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_features: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        bound = n_features**-0.5
        self.weight = nn.Parameter(torch.empty(classes, n_features).uniform_(-bound, bound))
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor) -> Tensor:
        """The logits, one row for each row of features."""
        cosines = functional.linear(
            functional.normalize(features, dim=1), functional.normalize(self.weight, dim=1)
        )
        return self.scale * cosines


class LinearClassifier(nn.Linear):
    """Logits ``w_c f + b_c``.

    >>> LinearClassifier(8, 3)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """


def new_classifier(
    name: ClassifierName, n_features: int, classes: int, *, scale: float = 1.0
) -> nn.Module:
    """An untrained classifier, by the name that a plan gives it; a linear one has no scale."""
    if name == "cosine":
        return CosineClassifier(n_features, classes, scale=scale)
    if name == "linear":
        return LinearClassifier(n_features, classes)
    raise TrainingError(f"there is no classifier {name!r}: choose 'cosine' or 'linear'.")


def grown(classifier: nn.Module, classes: int) -> nn.Module:
    """A classifier for more classes: what it knows of the first ones is kept, the rest is new.

    >>> old = LinearClassifier(8, 3)
    >>> torch.equal(grown(old, 5).weight[:3], old.weight)
    True
    """
    rows, n_features = classifier.weight.shape
    if classes < rows:
        raise TrainingError(
            f"a classifier of {rows} classes cannot grow to {classes}: "
            "train a new one to forget classes."
        )
    larger = type(classifier)(n_features, classes).to(classifier.weight.device)
    with torch.no_grad():
        for name, old in classifier.state_dict().items():
            new = larger.state_dict()[name]  # shares its memory with the parameter
            (new[:rows] if new.ndim else new).copy_(old)
    return larger
