"""ResNet-20 and ResNet-12, the networks of papers on few-shot learning from small images."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from fecam.encoders.resnet_blocks import Stem, initialize, stage
from fecam.errors import EncoderError
from fecam.validation import check_choice, check_int

_WIDEST = 1024


class ResNet20(nn.Module):
    """ResNet-20 without its classifier: images (n, 3, h, w) to ``4 * width`` features.

    Three stages of three blocks; the public width is 16. The features are the output of the last
    ReLU averaged over the image, so they are nonnegative.
    """

    def __init__(self, width: int = 16, stem: Stem = "small") -> None:
        super().__init__()
        _check("ResNet-20", width, stem)
        self.width, self.stem, self.n_features = width, stem, 4 * width
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, 1, 3)
        self.layer2 = stage(width, 2 * width, 2, 3)
        self.layer3 = stage(2 * width, 4 * width, 2, 3)
        initialize(self)

    def early(self, images: Tensor) -> Tensor:
        """Return the maps after the second stage."""
        maps = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        out: Tensor = self.layer2(self.layer1(maps))
        return out

    def late(self, maps: Tensor) -> Tensor:
        """Return the features of maps."""
        out: Tensor = self.layer3(maps).mean((2, 3))
        return out

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        return self.late(self.early(images))


class ResNet12(nn.Module):
    """ResNet-12 without its classifier: images (n, 3, h, w) to ``10 * width`` features.

    Four stages of one block of three convolutions, with 1, 2.5, 5 and 10 times ``width`` channels,
    a leaky ReLU and max-pooling; the public width is 64. The features have both signs.
    """

    def __init__(self, width: int = 64, stem: Stem = "small") -> None:
        super().__init__()
        _check("ResNet-12", width, stem)
        self.width, self.stem, self.n_features = width, stem, 10 * width
        channels = (3, width, 5 * width // 2, 5 * width, 10 * width)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _PooledBlock(a, b) for a, b in pairwise(channels)
        )
        initialize(self)

    def early(self, images: Tensor) -> Tensor:
        """Return the maps after the second stage."""
        out: Tensor = self.layer2(self.layer1(images))
        return out

    def late(self, maps: Tensor) -> Tensor:
        """Return the features of maps."""
        out: Tensor = self.layer4(self.layer3(maps)).mean((2, 3))
        return out

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        return self.late(self.early(images))


class _PooledBlock(nn.Module):
    """Three convolutions, a shortcut, and max-pooling where the maps are larger than a pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv3 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, maps: Tensor) -> Tensor:
        inner = functional.leaky_relu(self.bn1(self.conv1(maps)), 0.1)
        inner = functional.leaky_relu(self.bn2(self.conv2(inner)), 0.1)
        out = functional.leaky_relu(self.bn3(self.conv3(inner)) + self.downsample(maps), 0.1)
        return functional.max_pool2d(out, 2) if min(out.shape[2:]) > 1 else out


def _check(name: str, width: int, stem: Stem) -> None:
    check_int("width", width, 1, _WIDEST, error=EncoderError)
    check_choice(f"stem of {name}", stem, ("small",), error=EncoderError)
