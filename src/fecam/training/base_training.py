"""Train a network on the classes of the first task, as the paper does, and leave an encoder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fecam.data.dataset import Dataset
from fecam.data.images import read_image
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import ResNet18, save_encoder
from fecam.errors import ItemError, TrainingError
from fecam.training.augmentation import augmentation_for
from fecam.training.classifiers import new_classifier
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from fecam.training.plan import TrainingPlan
from fecam.training.records import EpochRecord, Progress

ENCODER_FILE = "encoder.safetensors"
CHECKPOINT_FILE = "training.safetensors"
Colour = tuple[float, float, float]

_SIZES = {"cifar100": 32, "tiny-imagenet": 64, "mini-imagenet": 84, "glyphs": 32, "digits": 16}
_LARGE_SIZE = 224
_SMALL_AT_MOST = 96
_EPOCHS = {"glyphs": 30, "digits": 30}  # far easier than photographs


def plan_for(name: str, size: int = 32) -> TrainingPlan:
    """The paper's plan for a data set; for one it does not know, by the size of the images.

    SGD, 200 epochs, batches of 128, a rate of 0.1 that falls as a cosine. The weight decay is the
    5e-4 of the authors' settings; ``replace(plan, weight_decay=1e-4)`` is the paper's text.

    >>> plan_for("cifar100").epochs, plan_for("cifar100").augmentation.padding
    (200, 4)
    """
    return TrainingPlan(
        epochs=_EPOCHS.get(name, 200), augmentation=augmentation_for(name, _SIZES.get(name, size))
    )


def scale_schedule(plan: TrainingPlan, epochs: int = 20) -> TrainingPlan:
    """The same in few epochs, for a machine without a GPU: one to warm up, then the whole cosine.

    The scale of a cosine classifier starts where it ends up after a while anyway: from 1 it takes
    epochs that a short plan does not have.

    >>> scale_schedule(plan_for("cifar100"), 10).epochs
    10
    """
    return replace(plan, epochs=epochs, warmup_epochs=min(1, epochs - 1), milestones=(), scale=10.0)


def train_base_classes(
    dataset: Dataset,
    classes: Sequence[int],
    plan: TrainingPlan,
    *,
    folder: str | os.PathLike[str],
    width: int = 64,
    size: int | None = None,
    test_every: int = 1,
    progress: Callable[[Progress], None] | None = None,
    device: Any = None,
) -> Iterator[EpochRecord]:
    """Train a ResNet-18 on some classes of a data set, and leave ``encoder.safetensors``.

    ``classes`` are labels, in any order. Only rows for training are learnt from; those for testing
    give a test accuracy every ``test_every`` epochs and after the last (0: only then). After a kill
    the same call goes on where the last epoch ended. ``size`` is the side of the images as the
    network sees them; by default their own if they are small, else 224.

    Raises:
        TrainingError: the data cannot be trained on, or ``folder`` holds another run.
    """
    if len(classes) < 2:
        raise TrainingError(f"classes = {list(classes)}: name two classes at least to tell apart.")
    chosen = np.isin(dataset.labels, np.asarray(classes))
    _check_classes(dataset, classes)
    side = image_size(dataset, size)
    images = TrainingImages(dataset.subset(dataset.train[chosen[dataset.train]]), _steps(side))
    mean, std = channel_stats(images)
    images.preprocessing = replace(images.preprocessing, mean=mean, std=std)
    test = None
    if len(test_rows := dataset.test[chosen[dataset.test]]):
        test = TrainingImages(dataset.subset(test_rows), images.preprocessing)
    with torch.random.fork_rng([]):
        torch.manual_seed(plan.seed)
        network = ResNet18(width, "small" if side <= _SMALL_AT_MOST else "large")
        classifier = new_classifier(
            plan.classifier, network.n_features, len(classes), scale=plan.scale
        )
    folder = Path(folder)
    records = train(
        network,
        classifier,
        images,
        plan,
        classes=classes,
        test=test,
        test_every=test_every,
        checkpoint=folder / CHECKPOINT_FILE,
        progress=progress,
        device=device,
    )
    return _kept(records, folder / ENCODER_FILE, network, images, classes, plan)


def _kept(
    records: Iterator[EpochRecord],
    path: Path,
    network: ResNet18,
    images: TrainingImages,
    classes: Sequence[int],
    plan: TrainingPlan,
) -> Iterator[EpochRecord]:
    """The records as they come; the encoder is written before the last is handed on."""
    for record in records:
        if record.epoch == plan.epochs:
            notes = {
                "data set": images.name,
                "fingerprint of the data": images.fingerprint,
                "images": record.images,
                "plan": plan.as_dict(),
                "accuracy": record.accuracy,
                "test accuracy": record.test_accuracy,
            }
            names = [images.label_names[label] for label in classes]
            save_encoder(path, network, images.preprocessing, names, notes)
        yield record


def _check_classes(dataset: Dataset, classes: Sequence[int]) -> None:
    names = dataset.label_names
    for label in classes:
        if not 0 <= label < len(names):
            raise TrainingError(
                f"the data set {dataset.name!r} has no label {label}: choose from 0 to "
                f"{len(names) - 1}."
            )
        if label not in dataset.labels[dataset.train]:
            raise TrainingError(
                f"the data set {dataset.name!r} has no images for training of {names[label]!r} "
                f"(label {label}). Leave it out of classes, or mark some of its rows for training."
            )


def _steps(side: int) -> ImagePreprocessing:
    """Small images keep their edges; of large ones the centre is looked at, as is usual."""
    if side <= _SMALL_AT_MOST:
        return ImagePreprocessing(side, squash=True)
    return ImagePreprocessing(side, resize=round(side * 256 / 224))


def image_size(dataset: Dataset, size: int | None = None) -> int:
    """The side of the images as the network sees them: as asked for, or as suits the data set.

    Of one that is not known by name, it is that of the first image that can be read, if it is
    small; else 224.
    """
    if known := size or _SIZES.get(dataset.name):
        return known
    for item in dataset.items:
        try:
            side = max(read_image(item).shape[:2])
        except ItemError:
            continue
        return side if side <= _SMALL_AT_MOST else _LARGE_SIZE
    return _LARGE_SIZE


def channel_stats(images: TrainingImages, most: int = 10_000) -> tuple[Colour, Colour]:
    """Mean and spread of the three colours, from 0 to 1, over at most so many images."""
    stride = math.ceil(len(images) / most)
    count = 0
    sums = squares = torch.zeros(3, dtype=torch.float64)
    for _, batch in images.batches(images.rows[::stride].split(256)):
        values = batch.double() / 255
        count += values.numel() // 3
        sums = sums + values.sum((0, 2, 3))
        squares = squares + values.square().sum((0, 2, 3))
    if not count:
        raise TrainingError(f"no image of {images.name!r} can be read.")
    mean = sums / count
    spread = (squares / count - mean.square()).clamp(min=1e-4).sqrt()  # paper of one colour
    return _colour(mean), _colour(spread)


def _colour(values: torch.Tensor) -> Colour:
    red, green, blue = (round(value, 4) for value in values.tolist())
    return red, green, blue
