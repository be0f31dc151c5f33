"""Images in memory or read for each batch, and images that cannot be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.training.images import TrainingImages
from fecam.training.loop import evaluate, train
from helpers.small_networks import (
    PLAIN,
    PLAN,
    fresh,
    run,
    same,
    signs,
    weights,
)


def test_training_needs_images_and_at_least_two():
    texts = Dataset("fruit", "texts", ["a", "b"], [0, 1], ("apple", "pear"), "f")
    with pytest.raises(TrainingError, match="'fruit' holds texts"):
        TrainingImages(texts, PLAIN)
    with pytest.raises(TrainingError, match="1 images"):
        run(data=signs().subset(np.array([0])))


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_unreadable_images_are_skipped_and_counted(memory):
    data = signs(bad=(3, 17, 90))
    images = TrainingImages(data, PLAIN, memory=memory)
    network, classifier = fresh()
    records = list(train(network, classifier, images, PLAN))
    assert [record.skipped for record in records] == [3, 3, 3]
    assert [record.images for record in records] == [93, 93, 93]
    assert sorted(images.skipped) == [3, 17, 90] and "torn" in images.skipped[17]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_per_batch_trains_as_from_memory(workers):
    results = []
    for options in ({}, {"memory": 0, "workers": workers}):
        images = TrainingImages(signs(), PLAIN, **options)
        network, classifier = fresh()
        list(train(network, classifier, images, replace(PLAN, epochs=1)))
        results.append(weights(network, classifier))
    assert same(*results)


def test_no_readable_image_is_an_error():
    data = signs(per_class=2, bad=range(8))
    with pytest.raises(TrainingError, match="0 images"):
        run(data=data)
    images = TrainingImages(data, PLAIN, memory=0)
    with pytest.raises(TrainingError, match="torn"):
        list(train(*fresh(), images, PLAN))
    with pytest.raises(TrainingError, match="can be read"):
        evaluate(*fresh(), images, range(4))
