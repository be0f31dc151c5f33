"""Operations of AutoAugment against Pillow; the policy; Cutout; changes of color."""

from __future__ import annotations

import colorsys
import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from fecam.errors import TrainingError
from fecam.training import augmentation, autoaugment
from fecam.training.augmentation import Augmentation
from fecam.training.augmentation_color import shift_hue
from fecam.training.augmentation_geometry import random_cutout


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_pixels(count=8, height=20, width=24):
    """Noise, a dark gradient, two constant images and one of two colors."""
    pixels = torch.randint(0, 256, (count, 3, height, width), generator=seeded(3)).float()
    pixels[1] = (pixels[1] / 8).floor() + torch.arange(width)
    pixels[2], pixels[3] = 7, 255
    pixels[4] = torch.where(pixels[4] < 200, 10.0, 90.0)
    return pixels


def as_picture(pixels):
    return Image.fromarray(pixels.permute(1, 2, 0).numpy().astype(np.uint8))


def transformed(picture, *matrix):
    return picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128)
    )


PILLOW = {
    "brightness": lambda p, m: ImageEnhance.Brightness(p).enhance(m),
    "color": lambda p, m: ImageEnhance.Color(p).enhance(m),
    "contrast": lambda p, m: ImageEnhance.Contrast(p).enhance(m),
    "sharpness": lambda p, m: ImageEnhance.Sharpness(p).enhance(m),
    "invert": lambda p, m: ImageOps.invert(p),
    "autocontrast": lambda p, m: ImageOps.autocontrast(p),
    "equalize": lambda p, m: ImageOps.equalize(p),
    "solarize": lambda p, m: ImageOps.solarize(p, m),
    "posterize": lambda p, m: ImageOps.posterize(p, int(m)),
    "shear-x": lambda p, m: transformed(p, 1, m, 0, 0, 1, 0),
    "shear-y": lambda p, m: transformed(p, 1, 0, 0, m, 1, 0),
    "translate-x": lambda p, m: transformed(p, 1, 0, m * p.width, 0, 1, 0),
    "translate-y": lambda p, m: transformed(p, 1, 0, 0, 0, 1, m * p.height),
    "rotate": lambda p, m: p.rotate(m, fillcolor=(128, 128, 128)),
}


@pytest.mark.parametrize("name", autoaugment.OPERATIONS)
def test_an_operation_equals_that_of_pillow(name):
    operation, magnitude = autoaugment.OPERATIONS[name]
    pixels = random_pixels()
    for level in range(10):
        signs = torch.tensor([1.0, -1.0] * 4)
        magnitudes = magnitude(torch.full((8,), level / 9), signs)
        ours = operation(pixels, magnitudes)
        for image, value, result in zip(pixels, magnitudes.tolist(), ours, strict=True):
            theirs = np.asarray(PILLOW[name](as_picture(image), value)).transpose(2, 0, 1)
            np.testing.assert_array_equal(result.numpy(), theirs, err_msg=f"{level} {value}")


def test_all_operations_of_the_paper_have_the_ranges_of_the_public_ports():
    assert set(PILLOW) == set(autoaugment.OPERATIONS)
    share, sign = torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0])
    ends = {
        "shear-x": [0, -0.3],
        "rotate": [0, -30],
        "posterize": [8, 4],
        "solarize": [256, 0],
        "sharpness": [1, 0.1],
        "translate-y": [0, -150 / 331],
    }
    for name, expected in ends.items():
        magnitudes = autoaugment.OPERATIONS[name][1](share, sign)
        np.testing.assert_allclose(magnitudes, expected, atol=1e-6)


def test_each_pair_and_each_probability_of_the_policy_occurs(monkeypatch):
    """Operations that only count: the number of calls per image agrees with the policy."""
    seen = Counter()

    def counting(name):
        def operation(pixels, magnitudes):
            seen[name] += len(pixels)
            return pixels

        return operation, lambda share, sign: share

    counters = {name: counting(name) for name in autoaugment.OPERATIONS}
    monkeypatch.setattr(autoaugment, "OPERATIONS", counters)
    count = 50_000
    images = torch.rand(count, 3, 1, 1)
    unchanged = autoaugment.autoaugment(images, "cifar10", seeded())
    torch.testing.assert_close(unchanged, images, atol=0.5 / 255 + 1e-6, rtol=0)
    expected = Counter()
    for pair in autoaugment.CIFAR10:
        for name, probability, _ in pair:
            expected[name] += count * probability / 25
    assert len(autoaugment.CIFAR10) == 25
    for name, mean in expected.items():
        assert abs(seen[name] - mean) < 5 * mean**0.5 + 1, name


def test_an_image_is_changed_alone_as_it_is_in_a_batch():
    """The draws do not depend on the pixels of the other images."""
    images = random_pixels() / 255
    whole = autoaugment.autoaugment(images, "cifar10", seeded(5))
    others = images.clone()
    others[1:] = 0
    assert torch.equal(autoaugment.autoaugment(others, "cifar10", seeded(5))[0], whole[0])
    assert not torch.equal(whole, images)
    assert torch.equal(images, random_pixels() / 255)  # the input stays


def test_cutout_erases_one_square_around_any_place():
    images = torch.ones(400, 3, 12, 10)
    erased = random_cutout(images, 4, seeded()) == 0
    assert (erased == erased[:, :1]).all()
    sizes = Counter()
    for mask in erased[:, 0]:
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        sizes[len(rows), len(columns)] += 1
    assert sizes.most_common(1)[0][0] == (4, 4)
    assert min(sizes)[0] == 2 == min(width for _, width in sizes)  # clipped at borders
    covered = erased[:, 0].float().mean(0)
    assert (covered > 0).all()


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.1, 0.35])
def test_hues_turn_as_in_colorsys(turn):
    image = random_pixels()[:5] / 255
    ours = shift_hue(image, torch.full((5,), turn)).movedim(1, -1).reshape(-1, 3)
    for color, result in zip(image.movedim(1, -1).reshape(-1, 3).tolist(), ours, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*color)
        expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
        np.testing.assert_allclose(result, expected, atol=2e-6)


def test_contrast_and_saturation_are_those_of_pillow():
    image = random_pixels()[:2] / 255
    changes = {
        augmentation.random_contrast: ImageEnhance.Contrast,
        augmentation.random_saturation: ImageEnhance.Color,
    }
    for change, enhance in changes.items():
        ours = change(image, 0.5, seeded()) * 255
        factors = 1 + 0.5 * (2 * torch.rand(2, generator=seeded()) - 1)
        for picture, factor, result in zip(image, factors.tolist(), ours, strict=True):
            theirs = enhance(as_picture(picture * 255)).enhance(factor)
            assert np.abs(result.numpy() - np.asarray(theirs).transpose(2, 0, 1)).max() < 1.6


def test_the_colors_of_a_batch_change_in_a_random_order():
    augment = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    orders = {
        tuple(change.func.__name__ for change in augment._color_changes(seeded(seed)))
        for seed in range(100)
    }
    assert len(orders) == 24


def test_new_fields_are_written_only_if_they_are_set():
    older = {"padding": 4, "area": None, "stretch": 4 / 3, "flip": True, "brightness": 0.25}
    plain = Augmentation(padding=4, flip=True, brightness=0.25)
    assert plain.as_dict() == older and Augmentation.from_dict(older) == plain
    full = Augmentation(
        padding=4, contrast=0.1, saturation=0.2, hue=0.3, autoaugment="cifar10", cutout=16
    )
    assert full.as_dict()["cutout"] == 16
    assert Augmentation.from_dict(json.loads(json.dumps(full.as_dict()))) == full


def test_brightness_alone_gives_the_images_of_earlier_versions():
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=seeded(1))
    # Crops without padding draw two numbers per image first, of which only the state matters.
    generator = seeded()
    torch.randint(0, 1, (6,), generator=generator)
    torch.randint(0, 1, (6,), generator=generator)
    factors = 1 + 0.25 * (2 * torch.rand(6, generator=generator) - 1)
    expected = (images.float() / 255 * factors[:, None, None, None]).clamp(0, 1)
    assert torch.equal(Augmentation(brightness=0.25)(images, 8, seeded()), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hue": 0.6}, r"hue=0\.6 must be"),
        ({"contrast": -1}, "contrast=-1 must be"),
        ({"autoaugment": "cifar"}, "Did you mean 'cifar10'"),
        ({"cutout": 1.5}, "cutout=1.5 must be"),
        ({"cutuot": 16}, "Did you mean 'cutout'"),
    ],
)
def test_wrong_fields_are_rejected(wrong, message):
    with pytest.raises(TrainingError, match=message):
        Augmentation.from_dict(wrong)


def test_the_full_recipe_is_repeatable_and_in_range():
    augment = Augmentation(
        padding=4, flip=True, brightness=63 / 255, autoaugment="cifar10", cutout=16, hue=0.1
    )
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=seeded(1))
    first = augment(images, 32, seeded())
    assert first.shape == (40, 3, 32, 32) and first.min() >= 0 and first.max() <= 1
    assert torch.equal(first, augment(images, 32, seeded()))
