"""A generator of images, trained without data against a network and its student."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ENTROPY_WEIGHT = 0.01
"""Of the entropy of the teacher's answers, in the authors' code: generated images are uncertain."""
CHANNELS = 64


class ImageGenerator(nn.Module):
    """Noise (n, latent) to normalized images (n, 3, size, size).

    In training mode the images of a batch have mean 0 and deviation 1 per channel.
    """

    def __init__(self, latent: int, size: int) -> None:
        super().__init__()
        self.latent, self.size = latent, size
        self.side = -(-size // 4)
        self.start = nn.Linear(latent, 2 * CHANNELS * self.side**2)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * CHANNELS),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * CHANNELS, 2 * CHANNELS, 3, padding=1),
            nn.BatchNorm2d(2 * CHANNELS),
            nn.LeakyReLU(0.2),
            nn.Upsample(size=size),
            nn.Conv2d(2 * CHANNELS, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.LeakyReLU(0.2),
            nn.Conv2d(CHANNELS, 3, 3, padding=1),
            nn.Tanh(),
            nn.BatchNorm2d(3, affine=False),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return images, one per row."""
        maps = self.start(noise).unflatten(1, (2 * CHANNELS, self.side, self.side))
        images: Tensor = self.layers(maps)
        return images

    def draw(self, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
        """Return images of new noise."""
        noise = torch.randn(count, self.latent, generator=generator)
        images: Tensor = self(noise.to(device))
        return images


def train_generator(
    images: ImageGenerator,
    teacher: Callable[[Tensor], Tensor],
    student: nn.Module,
    generator: torch.Generator,
    *,
    iterations: int,
    student_steps: int,
    batch: int,
    device: torch.device,
) -> None:
    r"""Train a generator to find images on which a student differs from the teacher.

    The student minimizes :math:`D = \operatorname{mean} |s(G(z)) - t(G(z))|` over logits, the
    generator :math:`-D - w H(\mathrm{softmax}\, t(G(z)))` with the entropy H.
    """
    images.to(device).train()
    student.to(device).train()
    follow = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    lead = torch.optim.Adam(images.parameters(), lr=1e-3)
    for _ in range(iterations):
        for _ in range(student_steps):
            with torch.no_grad():
                drawn = images.draw(batch, generator, device)
                target = teacher(drawn)
            follow.zero_grad()
            functional.l1_loss(student(drawn), target).backward()
            follow.step()
        drawn = images.draw(batch, generator, device)
        target = teacher(drawn)
        disagreement = functional.l1_loss(student(drawn), target)
        lead.zero_grad()
        (-disagreement - ENTROPY_WEIGHT * mean_entropy(target)).backward()
        lead.step()


def mean_entropy(logits: Tensor) -> Tensor:
    """Return the mean entropy of softmax outputs in nats.

    >>> round(float(mean_entropy(torch.zeros(1, 4))), 4)  # log 4
    1.3863
    """
    logs = logits.log_softmax(1)
    return -(logs.exp() * logs).sum(1).mean()
