"""Random crops, flips and brightness."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.training import augmentation
from fecam.training.augmentation import AUGMENTATIONS, Augmentation


def unique_pixels(count=6, side=8):
    """Every pixel of every image has a unique nonzero value."""
    values = torch.arange(1, 1 + count * 3 * side * side, dtype=torch.int32)
    return values.reshape(count, 3, side, side)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_part_of_the_padded_image():
    images = unique_pixels(64)
    windows = augmentation.random_crops(images, 8, 2, seeded())
    padded = functional.pad(images, (2, 2, 2, 2))
    places = set()
    for image, window in zip(padded, windows, strict=True):
        matches = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(image[:, top : top + 8, left : left + 8], window)
        ]
        assert len(matches) == 1
        places.update(matches)
    assert len(places) > 15  # of 25


def test_a_crop_larger_than_the_image_is_rejected():
    with pytest.raises(TrainingError, match="16 x 16"):
        augmentation.random_crops(unique_pixels(), 16, 2, seeded())


def test_half_of_the_images_are_flipped_horizontally():
    images = unique_pixels(100)
    flipped = augmentation.random_flips(images, seeded())
    kinds = [
        (torch.equal(new, old), torch.equal(new, old.flip(2)))
        for new, old in zip(flipped, images, strict=True)
    ]
    assert set(kinds) == {(True, False), (False, True)}
    assert 30 < sum(mirrored for _, mirrored in kinds) < 70


def test_brightness_multiplies_a_whole_image_and_stays_in_range():
    images = torch.full((200, 3, 2, 2), 0.5)
    lit = augmentation.random_brightness(images, 0.4, seeded())
    factors = lit / 0.5
    assert torch.equal(factors.amax((1, 2, 3)), factors.amin((1, 2, 3)))
    assert 0.6 <= factors.min() < 0.65 and 1.35 < factors.max() <= 1.4
    assert augmentation.random_brightness(images * 2, 0.4, seeded()).max() == 1


def test_random_boxes_are_inside_with_the_requested_area():
    boxes = augmentation.random_boxes(500, (0.2, 0.5), 4 / 3, seeded())
    assert (boxes >= 0).all() and (boxes <= 1 + 1e-6).all()
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = width * height, width / height
    assert area.min() > 0.199 and area.max() < 0.501 and area.max() - area.min() > 0.25
    assert ratio.min() > 0.749 and ratio.max() < 1.334
    whole = augmentation.random_boxes(50, (1.0, 1.0), 2.0, seeded())
    assert (whole >= 0).all() and (whole <= 1 + 1e-6).all()


def test_a_resized_crop_shows_its_box():
    images = torch.rand(2, 3, 8, 8)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
    torch.testing.assert_close(augmentation.resized_crops(images, whole, 8), images)
    quarter = torch.tensor([[0.5, 0.0, 1.0, 0.5]] * 2)  # right, top
    torch.testing.assert_close(
        augmentation.resized_crops(images, quarter, 4), images[:, :, :4, 4:], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_augmentation_is_repeatable_and_in_range(name):
    augment = AUGMENTATIONS[name]
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=seeded(1))
    first = augment(images, 32, seeded())
    assert first.shape == (5, 3, 32, 32) and first.dtype == torch.float32
    assert first.min() >= 0 and first.max() <= 1
    assert torch.equal(first, augment(images, 32, seeded()))
    assert torch.equal(first, augment(images, 32, seeded(7))) == (name == "none")
    assert Augmentation(**json.loads(json.dumps(augment.as_dict()))) == augment


def test_letters_and_digits_are_never_flipped():
    assert not AUGMENTATIONS["glyphs"].flip and not AUGMENTATIONS["digits"].flip


@pytest.mark.parametrize(
    "wrong",
    [
        {"padding": -1},
        {"area": (0.0, 1.0)},
        {"area": (0.5, 0.2)},
        {"area": (0.5, 1.0), "padding": 4},
        {"stretch": 0.5},
        {"brightness": 2.0},
    ],
)
def test_invalid_augmentations_are_rejected(wrong):
    with pytest.raises(TrainingError, match="must be"):
        Augmentation(**wrong)
