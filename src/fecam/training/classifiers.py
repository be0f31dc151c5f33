"""The classifier layers of a network in training; encoders do not keep them."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.validation import check_choice

ClassifierName = Literal["cosine", "linear", "proxies"]


class CosineClassifier(nn.Module):
    """Logits ``s cos(f, w_c)`` with a learned scale ``s``.

    The norms of features and weights, which differ between old and new classes, have no effect.

    >>> CosineClassifier(8, 3)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_features: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        bound = n_features**-0.5
        self.weight = nn.Parameter(torch.empty(classes, n_features).uniform_(-bound, bound))
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, one row per row of features."""
        cosines = functional.linear(
            functional.normalize(features, dim=1), functional.normalize(self.weight, dim=1)
        )
        return self.scale * cosines


class ProxyClassifier(nn.Module):
    """Logits ``s y_c`` with a learned scale ``s`` and several proxies per class (PODNet).

    ``y_c`` is the mean of the cosines to the proxies of a class, weighted by their softmax. With
    one proxy it is the cosine classifier.

    >>> ProxyClassifier(8, 3)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, n_features: int, classes: int, *, scale: float = 1.0, proxies: int = 10
    ) -> None:
        super().__init__()
        bound = n_features**-0.5
        weight = torch.empty(classes, proxies, n_features).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight)
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, one row per row of features."""
        proxies = functional.normalize(self.weight, dim=2).flatten(0, 1)
        cosines = functional.linear(functional.normalize(features, dim=1), proxies)
        cosines = cosines.unflatten(1, self.weight.shape[:2])
        return self.scale * (cosines.softmax(2) * cosines).sum(2)


LinearClassifier = nn.Linear


def make_classifier(
    name: ClassifierName, n_features: int, classes: int, *, scale: float = 1.0
) -> nn.Module:
    """Return an untrained classifier by its name in a plan; ``scale`` is for the cosine one."""
    check_choice("classifier", name, get_args(ClassifierName), error=TrainingError)
    if name == "cosine":
        return CosineClassifier(n_features, classes, scale=scale)
    if name == "proxies":
        return ProxyClassifier(n_features, classes, scale=scale)
    return LinearClassifier(n_features, classes)


def expand_classifier(classifier: nn.Module, classes: int) -> nn.Module:
    """Return a classifier for more classes, which keeps the weights of the first ones.

    >>> old = LinearClassifier(8, 3)
    >>> torch.equal(expand_classifier(old, 5).weight[:3], old.weight)
    True
    """
    rows, n_features = classifier.weight.shape[0], classifier.weight.shape[-1]
    if classes < rows:
        raise TrainingError(
            f"classes={classes} must be at least {rows}, the number that the classifier has: "
            "train a new one to remove classes."
        )
    larger = type(classifier)(n_features, classes).to(classifier.weight.device)
    with torch.no_grad():
        for name, old in classifier.state_dict().items():
            new = larger.state_dict()[name]  # shares its memory with the parameter
            (new[:rows] if new.ndim else new).copy_(old)
    return larger
