"""Train a network on the base classes, as the paper does, and save it as an encoder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fecam.data.dataset import Dataset
from fecam.data.images import read_image
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import make_network, save_encoder
from fecam.encoders.resnet_blocks import Stem
from fecam.errors import ItemError, TrainingError
from fecam.training.augmentation import augmentation_for
from fecam.training.classifiers import make_classifier
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from fecam.training.plan import TrainingPlan
from fecam.training.records import EpochRecord, Progress

ENCODER_FILE = "encoder.safetensors"
CHECKPOINT_FILE = "training.safetensors"
ChannelStats = tuple[float, float, float]
Network = TypeVar("Network", bound=Any)
"""A module of images to features, with the attribute ``n_features``."""

_SIZES = {"cifar100": 32, "tiny-imagenet": 64, "mini-imagenet": 84, "glyphs": 32, "digits": 16}
_LARGE_SIZE = 224
_LARGEST_SMALL = 96
"""Pixels. Smaller images keep their size, and the first layer its resolution."""
_EPOCHS = {"glyphs": 30, "digits": 30}  # easier than photographs


def plan_for(name: str, size: int = 32) -> TrainingPlan:
    """Return the paper's training plan for a data set.

    SGD, 200 epochs, batches of 128 and a learning rate of 0.1 that follows a cosine. The weight
    decay is 5e-4 as in the authors' settings; the text of the paper has 1e-4.

    Parameters
    ----------
    name : str
        The name of the data set.
    size : int, default=32
        The side of the images in pixels; it determines the augmentation of unknown data sets.

    Returns
    -------
    TrainingPlan
        The plan.

    Examples
    --------
    >>> plan_for("cifar100").epochs, plan_for("cifar100").augmentation.padding
    (200, 4)
    """
    return TrainingPlan(
        epochs=_EPOCHS.get(name, 200), augmentation=augmentation_for(name, _SIZES.get(name, size))
    )


def scale_schedule(plan: TrainingPlan, epochs: int = 20) -> TrainingPlan:
    """Return the plan with fewer epochs, for training without a GPU.

    One epoch is the warm-up; then the learning rate follows a whole cosine. The scale of a cosine
    classifier starts at 10, which it would need many epochs to reach from 1.

    Parameters
    ----------
    plan : TrainingPlan
        The plan to shorten.
    epochs : int, default=20
        The number of epochs.

    Returns
    -------
    TrainingPlan
        The shorter plan.

    Examples
    --------
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
    network_name: str = "resnet18",
    test_every: int = 1,
    progress: Callable[[Progress], None] | None = None,
    device: Any = None,
) -> Iterator[EpochRecord]:
    """Train a network on the base classes and save it as ``encoder.safetensors``.

    Parameters
    ----------
    dataset : Dataset
        A data set of images.
    classes : sequence of int
        The labels of the base classes.
    plan : TrainingPlan
        The settings.
    folder : path
        The folder of the encoder and the checkpoint. The same call resumes an interrupted run.
    width : int, default=64
        Channels of the first layer; a ResNet-18 has ``8 * width`` features.
    size : int, optional
        The side of the network's input in pixels; by default that of small images, else 224.
    network_name : {"resnet18", "resnet20", "resnet12"}, default="resnet18"
        The network.
    test_every : int, default=1
        Epochs between tests; 0 tests only the last one.
    progress : callable, optional
        Called with a `Progress` after each batch.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.

    Returns
    -------
    iterator of EpochRecord
        Training happens while it is consumed; the encoder is saved before the last record.

    Raises
    ------
    TrainingError
        If the data set lacks training images of a class, or ``folder`` holds another run.

    Examples
    --------
    >>> from fecam.data import load
    >>> plan = scale_schedule(plan_for("digits"), epochs=1)
    >>> records = train_base_classes(load("digits"), [0, 1], plan, folder=".")  # doctest: +SKIP
    """
    if len(classes) < 2:
        raise TrainingError(
            f"classes={list(classes)} must be at least two classes, which the network learns to "
            "tell apart: give the first task more of them."
        )
    images = base_images(dataset, classes, size)
    chosen = np.isin(dataset.labels, np.asarray(classes))
    test = None
    if len(test_rows := dataset.test[chosen[dataset.test]]):
        test = TrainingImages(dataset.subset(test_rows), images.preprocessing)
    network, classifier = new_network(
        partial(make_network, network_name, width, stem_for(images.preprocessing.size)),
        plan,
        len(classes),
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
    return _saving(records, folder / ENCODER_FILE, network, images, classes, plan)


def _saving(
    records: Iterator[EpochRecord],
    path: Path,
    network: Any,
    images: TrainingImages,
    classes: Sequence[int],
    plan: TrainingPlan,
) -> Iterator[EpochRecord]:
    """Yield the records and save the encoder before the last one."""
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


def base_images(
    dataset: Dataset, classes: Sequence[int], size: int | None = None
) -> TrainingImages:
    """Return the training images of the base classes, normalized by their own statistics.

    >>> from fecam.data import load
    >>> len(base_images(load("digits"), [0, 1]))
    180
    """
    _check_classes(dataset, classes)
    size = image_size(dataset, size)
    small = size <= _LARGEST_SMALL
    # Small images are not cropped; of large ones the center is, as is usual.
    steps = ImagePreprocessing(size, 0 if small else round(size * 256 / 224), squash=small)
    images = TrainingImages(base_rows(dataset, classes), steps)
    mean, std = channel_stats(images)
    images.preprocessing = replace(images.preprocessing, mean=mean, std=std)
    return images


def base_rows(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Return the training rows of the base classes."""
    chosen = np.isin(dataset.labels, np.asarray(classes))
    return dataset.subset(dataset.train[chosen[dataset.train]])


def stem_for(size: int) -> Stem:
    """Return the first layers for images of ``size`` pixels."""
    return "small" if size <= _LARGEST_SMALL else "large"


def new_network(
    factory: Callable[[], Network], plan: TrainingPlan, classes: int
) -> tuple[Network, nn.Module]:
    """Return a network and a classifier with the initial weights of the plan's seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(plan.seed)
        network = factory()
        n_features: int = network.n_features
        return network, make_classifier(plan.classifier, n_features, classes, scale=plan.scale)


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
                f"the data set {dataset.name!r} has no training images of {names[label]!r} "
                f"(label {label}). Remove it from classes, or mark rows of it for training."
            )


def image_size(dataset: Dataset, size: int | None = None) -> int:
    """Return the side of the network's input in pixels.

    It is ``size`` if given, that of a data set with a known name, that of the first readable image
    if it is small, or 224.
    """
    if preset := size or _SIZES.get(dataset.name):
        return preset
    for item in dataset.items:
        try:
            side = max(read_image(item).shape[:2])
        except ItemError:
            continue
        return side if side <= _LARGEST_SMALL else _LARGE_SIZE
    return _LARGE_SIZE


def channel_stats(
    images: TrainingImages, max_images: int = 10_000
) -> tuple[ChannelStats, ChannelStats]:
    """Return mean and standard deviation per channel, from 0 to 1, over ``max_images`` images."""
    stride = math.ceil(len(images) / max_images)
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
    std = (squares / count - mean.square()).clamp(min=1e-4).sqrt()  # for images of one color
    return _rounded(mean), _rounded(std)


def _rounded(values: torch.Tensor) -> ChannelStats:
    red, green, blue = (round(value, 4) for value in values.tolist())
    return red, green, blue
