"""Pooled distillation of the maps after each stage of a network (POD)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.encoders.resnet import ResNet18


class StageMaps:
    """The outputs of the four stages of a ResNet-18 in its last forward pass.

    Parameters
    ----------
    network : ResNet18
        The network; `remove` ends the recording.
    """

    def __init__(self, network: ResNet18) -> None:
        stages = (network.layer1, network.layer2, network.layer3, network.layer4)
        self.maps: dict[int, Tensor] = {}
        self._handles = [
            stage.register_forward_hook(self._recorder(index)) for index, stage in enumerate(stages)
        ]

    def _recorder(self, index: int):  # type: ignore[no-untyped-def]
        def record(module: nn.Module, inputs: object, output: Tensor) -> None:
            self.maps[index] = output

        return record

    def remove(self) -> None:
        """Record no more."""
        for handle in self._handles:
            handle.remove()


def pooled(maps: Tensor) -> Tensor:
    """Return the sums of squares over the width and over the height, at unit length."""
    squares = maps.float().square()
    return functional.normalize(
        torch.cat([squares.sum(3).flatten(1), squares.sum(2).flatten(1)], 1)
    )


def spatial_distillation(maps: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor:
    r"""Return the mean distance of pooled maps, over images and stages (Douillard et al. 2020).

    >>> x = torch.rand(2, 3, 4, 4)
    >>> float(spatial_distillation([x], [-2 * x]))
    0.0
    """
    distances = [(pooled(a) - pooled(b)).norm(dim=1) for a, b in zip(maps, old, strict=True)]
    return torch.stack(distances).mean()


def flat_distillation(features: Tensor, old: Tensor) -> Tensor:
    """Return the mean of one minus the cosine of features and old features."""
    return (1 - functional.cosine_similarity(features.float(), old.float())).mean()
