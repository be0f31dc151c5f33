"""Networks that grow by a branch per task, whose features stand side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fecam.encoders.resnet import ResNet18
from fecam.training.hooks import Modules, Step


class Branches(nn.Module):
    """A shared part, and branches on it: images to the features of all branches.

    Parameters
    ----------
    shared : torch.nn.Module
        The part before the branches; ``torch.nn.Identity()`` if branches are whole networks.
    branches : sequence of torch.nn.Module
        The branches, each with ``n_features``.
    """

    def __init__(self, shared: nn.Module, branches: list[nn.Module]) -> None:
        super().__init__()
        self.shared, self.branches = shared, nn.ModuleList(branches)

    @property
    def n_features(self) -> int:
        """The features of all branches."""
        return sum(int(branch.n_features) for branch in self.branches)

    @property
    def n_new_features(self) -> int:
        """The features of the last branch, which are the last columns."""
        return int(self.branches[-1].n_features)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        maps = self.shared(images)
        return torch.cat([branch(maps) for branch in self.branches], 1)

    def add_branch(self) -> None:
        """Add a copy of the last branch."""
        self.branches.append(copy.deepcopy(self.branches[-1]))

    def freeze(self, *, shared: bool = True) -> Callable[[Modules], None]:
        """Freeze all but the last branch, and optionally train the shared part.

        Returns a hook for the start of an epoch: frozen batch normalization keeps its statistics.
        """
        frozen = [*self.branches[:-1], *([self.shared] if shared else [])]
        for module in frozen:
            module.requires_grad_(False)

        def use_running_statistics(modules: Modules) -> None:
            for module in frozen:
                module.eval()

        return use_running_statistics


class SharedStages(nn.Module):
    """A ResNet-18 up to its third stage."""

    def __init__(self, network: ResNet18) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.network.layer4 = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps before the last stage."""
        return self.network.shared_maps(images)


class LastStage(nn.Module):
    """The last stage of a ResNet-18, from maps to features."""

    def __init__(self, network: ResNet18) -> None:
        super().__init__()
        self.layer4, self.n_features = copy.deepcopy(network.layer4), network.n_features

    def forward(self, maps: Tensor) -> Tensor:
        """Return the features, one row per image."""
        features: Tensor = self.layer4(maps).mean((2, 3))
        return features


def widen_classifier(classifier: nn.Linear, n_old: int, n_features: int) -> nn.Linear:
    """Return a classifier of more features; old outputs do not depend on the new ones at first.

    >>> narrow = nn.Linear(2, 3)
    >>> wide, X = widen_classifier(narrow, 2, 4), torch.rand(5, 4)
    >>> torch.allclose(wide(X)[:, :2], narrow(X[:, :2])[:, :2])
    True
    """
    wide = nn.Linear(n_features, classifier.out_features)
    wide.to(classifier.weight.device)
    with torch.no_grad():
        wide.weight[:, : classifier.in_features] = classifier.weight
        wide.weight[:n_old, classifier.in_features :] = 0
        wide.bias.copy_(classifier.bias)
    return wide


def auxiliary_targets(labels: Tensor, n_old: int) -> Tensor:
    """Return 0 for old classes, and 1, 2, ... for new ones.

    >>> auxiliary_targets(torch.tensor([0, 3, 4, 5]), 4)
    tensor([0, 0, 1, 2])
    """
    return (labels - n_old + 1).clamp(min=0)


def auxiliary_loss(n_features: int, n_old: int) -> Callable[[Step], Tensor]:
    """Return the cross-entropy of the head ``auxiliary`` on the features of the last branch."""

    def loss(step: Step) -> Tensor:
        logits = step.heads["auxiliary"](step.features[:, -n_features:])
        targets = auxiliary_targets(step.labels, n_old)
        return nn.functional.cross_entropy(logits.float(), targets)

    return loss
