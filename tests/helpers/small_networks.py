"""Small networks, images that show their class, and short training runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import ResNet18
from fecam.errors import ItemError
from fecam.training.augmentation import Augmentation
from fecam.training.classifiers import make_classifier
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from fecam.training.plan import TrainingPlan

PLAIN = ImagePreprocessing(size=8, mean=(0.5,) * 3, std=(0.25,) * 3)
PLAN = TrainingPlan(epochs=3, batch_size=16, learning_rate=0.05, classifier="linear")
AUGMENTED = replace(PLAN, augmentation=Augmentation(padding=2, flip=True, brightness=0.2))


def signs(classes=4, per_class=24, side=8, seed=0, bad=()):
    """Images that show their class: a bright bar whose position is the class, in noise."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(classes), per_class)
    pixels = rng.integers(0, 90, (len(labels), side, side, 3), np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        start = label // 2 * 2 + 1
        if label % 2:
            image[:, start : start + 2] += 150
        else:
            image[start : start + 2] += 150
    items = [ItemError(f"{i}.png", "torn") if i in bad else pixels[i] for i in range(len(labels))]
    return Dataset(
        name="signs",
        kind="images",
        items=Items(items),
        labels=labels,
        label_names=tuple(f"sign {i}" for i in range(classes)),
        fingerprint=fingerprint_of([pixels, labels, str(bad)]),
        is_test=np.arange(len(labels)) >= len(labels) * 3 // 4,
    )


class Items(list):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        if isinstance(item, Exception):
            raise item
        return item


def fresh(classes=4, width=2, seed=0, kind="linear"):
    torch.manual_seed(seed)
    network = ResNet18(width=width)
    return network, make_classifier(kind, network.n_features, classes)


def run(plan=PLAN, data=None, outputs=4, hooks=None, **options):
    """Train a new network and return it with its classifier and the records."""
    images = TrainingImages(signs() if data is None else data, PLAIN)
    network, classifier = fresh(outputs)
    records = list(train(network, classifier, images, plan, hooks=hooks, **options))
    return network, classifier, records


def weights(*modules):
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def literal_rates(epochs, steps, rate, warmup, milestones=(), decay=0.1):
    rates, warm = [], []
    for _ in range(warmup * steps):
        warm.append(rate * (len(warm) + 1) / (warmup * steps))
    for epoch in range(warmup, epochs):
        for step in range(steps):
            now = rate
            if milestones:
                for milestone in milestones:
                    if epoch >= milestone:
                        now = now * decay
            else:
                done = (epoch - warmup) * steps + step
                now = 0.5 * rate * (1 + math.cos(math.pi * done / ((epochs - warmup) * steps)))
            rates.append(now)
    return warm + rates
