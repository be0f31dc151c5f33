"""Training on the base classes saves an encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fecam.data.dataset import Dataset
from fecam.encoders.resnet import load_encoder
from fecam.errors import TrainingError
from fecam.training import base_training
from fecam.training.augmentation import Augmentation
from fecam.training.images import TrainingImages
from helpers.small_networks import (
    PLAIN,
    PLAN,
    signs,
)


def test_plan_for_is_the_plan_of_the_paper():
    plan = base_training.plan_for("cifar100")
    assert (plan.epochs, plan.learning_rate, plan.batch_size) == (200, 0.1, 128)
    assert (plan.momentum, plan.weight_decay, plan.classifier) == (0.9, 5e-4, "cosine")
    assert plan.augmentation == Augmentation(padding=4, flip=True, brightness=63 / 255)
    assert base_training.plan_for("holidays", 224).augmentation.area is not None
    assert plan.changed({"weight_decay": 1e-4}) == replace(plan, weight_decay=1e-4)
    with pytest.raises(
        TrainingError, match=r"no setting 'learning_rat'.*Did you mean 'learning_rate"
    ):
        plan.changed({"learning_rat": 1})
    with pytest.raises(TrainingError, match="augmentation=1 must be an Augmentation"):
        plan.changed({"augmentation": 1})


def test_base_training_saves_an_encoder(tmp_path):
    data = signs(classes=6, per_class=40)
    plan = replace(
        base_training.scale_schedule(base_training.plan_for("glyphs"), 8),
        batch_size=16,
        augmentation=Augmentation(),  # a shifted bar is another class
    )
    records = list(
        base_training.train_base_classes(data, [4, 0, 2, 1], plan, folder=tmp_path, width=4)
    )
    assert records[-1].test_accuracy > 0.9
    assert records[-1].images == 4 * 30  # the training rows of four classes
    encoder = load_encoder(tmp_path / "encoder.safetensors")
    assert encoder.class_names == ("sign 4", "sign 0", "sign 2", "sign 1")
    features = encoder.encode([data.items[row] for row in range(len(data))])
    assert features.shape == (240, 32) and (features >= 0).all()
    held_out = np.isin(data.labels, [0, 1, 2, 4]) & data.is_test
    means = np.stack([features[~data.is_test & (data.labels == c)].mean(0) for c in range(6)])
    nearest = ((features[:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == data.labels)[held_out].mean() > 0.8
    fingerprint = encoder.fingerprint
    again = list(
        base_training.train_base_classes(data, [4, 0, 2, 1], plan, folder=tmp_path, width=4)
    )
    assert all(record.restored for record in again)
    assert load_encoder(tmp_path / "encoder.safetensors").fingerprint == fingerprint
    with pytest.raises(TrainingError, match="classes"):
        base_training.train_base_classes(data, [0, 1, 2, 4], plan, folder=tmp_path, width=4)


def test_channel_stats_equal_those_of_the_training_images():
    data = signs()
    images = TrainingImages(data, PLAIN)
    stack = np.stack([data.items[row] for row in range(len(data))]) / 255
    mean, std = base_training.channel_stats(images)
    np.testing.assert_allclose(mean, stack.mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(std, stack.std((0, 1, 2)), atol=1e-4)


def test_image_size_is_that_of_small_images():
    def of(side, name="holidays"):
        images = [np.zeros((side, side - 2, 3), np.uint8)]
        return Dataset(name, "images", images, np.zeros(1, np.int64), ("a",), "f")

    assert base_training.image_size(of(40)) == 40
    assert base_training.image_size(of(500)) == 224
    assert base_training.image_size(of(500), 128) == 128
    assert base_training.image_size(of(500, "cifar100")) == 32


def test_base_classes_need_training_images(tmp_path):
    data = signs()
    with pytest.raises(TrainingError, match="at least two classes"):
        base_training.train_base_classes(data, [1], PLAN, folder=tmp_path)
    only_test = replace(data, is_test=np.ones(len(data), bool))
    with pytest.raises(TrainingError, match="no label 4"):
        base_training.train_base_classes(data, [0, 4], PLAN, folder=tmp_path)
    with pytest.raises(TrainingError, match="no training images of 'sign 0'"):
        base_training.train_base_classes(only_test, [0, 1], PLAN, folder=tmp_path)
