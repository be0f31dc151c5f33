"""The parts that residual networks share: the basic block, a stage of them, initial weights."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Stem = Literal["small", "large"]
"""The first layers: "small" keeps the resolution, for about 32 pixels; "large" is for 224."""


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.downsample = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, maps: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(maps)), inplace=True)
        # Strides by slicing: oneDNN 3.12 writes outside its memory when a strided 1 x 1 convolution
        # with few channels is trained in channels-last layout.
        shortcut = self.downsample(maps[:, :, :: self.stride, :: self.stride])
        return functional.relu(self.bn2(self.conv2(inner)) + shortcut, inplace=True)


def stage(inputs: int, outputs: int, stride: int, blocks: int = 2) -> nn.Module:
    """Return blocks of which the first changes channels and resolution."""
    later = (_Block(outputs, outputs, 1) for _ in range(blocks - 1))
    return nn.Sequential(_Block(inputs, outputs, stride), *later)


def initialize(network: nn.Module) -> None:
    """Draw the initial weights of the convolutions."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
