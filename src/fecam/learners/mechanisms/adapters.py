"""Structural re-parameterization (SSRE): 1 x 1 adapters beside 3 x 3 convolutions, added into them.

A network has adapters only while it is trained. A 1 x 1 kernel beside a 3 x 3 kernel with padding 1
is the same as an addition to its center, for every stride.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fecam.encoders.torch_runtime import fuse_batchnorm
from fecam.errors import TrainingError


class AdaptedConv(nn.Module):
    """A frozen 3 x 3 convolution and a trained 1 x 1 one, which starts at zero."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv.requires_grad_(False)
        self.stride = conv.stride[0]
        shape = (conv.out_channels, conv.in_channels, 1, 1)
        self.adapter = nn.Parameter(conv.weight.new_zeros(shape))

    def forward(self, maps: Tensor) -> Tensor:
        """Return the sum of both convolutions."""
        # Strides by slicing, as in the shortcuts of ResNet18.
        inputs = maps[:, :, :: self.stride, :: self.stride]
        adapted: Tensor = self.conv(maps) + nn.functional.conv2d(inputs, self.adapter)
        return adapted

    def folded(self) -> nn.Conv2d:
        """Return the convolution with the adapter added to the center of its kernel."""
        with torch.no_grad():
            self.conv.weight[:, :, 1:2, 1:2] += self.adapter
        return self.conv


def fold_batchnorm(network: nn.Module) -> nn.Module:
    """Add batch normalizations to their convolutions, in place; they get a bias."""
    fuse_batchnorm(network)
    left = [name for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)]
    if left:
        raise TrainingError(
            f"the batch normalization {left[0]!r} of {type(network).__name__} does not follow a "
            "convolution that is known to belong to it. Use a ResNet-18."
        )
    return network


def add_adapters(network: nn.Module) -> nn.Module:
    """Freeze the network and add an adapter to each 3 x 3 convolution, in place."""
    network.requires_grad_(False)
    places = list(_places(network, nn.Conv2d))
    for parent, name, conv in places:
        if conv.kernel_size == (3, 3) and conv.padding == (1, 1) and conv.groups == 1:
            setattr(parent, name, AdaptedConv(conv))
    if not any(isinstance(module, AdaptedConv) for module in network.modules()):
        raise TrainingError(
            f"{type(network).__name__} has no 3 x 3 convolutions to adapt. Use a ResNet-18."
        )
    return network


def fold_adapters(network: nn.Module) -> nn.Module:
    """Add each adapter to its convolution and remove it, in place; outputs do not change."""
    for parent, name, adapted in list(_places(network, AdaptedConv)):
        setattr(parent, name, adapted.folded())
    return network


def _places(
    network: nn.Module, kind: type[nn.Module]
) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in network.modules():
        for name, child in parent.named_children():
            if isinstance(child, kind):
                yield parent, name, child
