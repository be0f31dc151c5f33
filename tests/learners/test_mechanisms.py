"""Distillation of features, label expansion, replay from statistics."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.mechanisms import feature_distillation as distillation
from fecam.learners.mechanisms import pair_mixup, prototype_replay, rotations


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def features(n=6, d=4, seed=0):
    return torch.randn(n, d, generator=seeded(seed))


# ---------------------------------------------------------------------- feature distillation


def test_distances_equal_their_formulas():
    new, old = features(seed=1), features(seed=2)
    difference = (new - old).numpy()
    rows = [math.sqrt(sum(x * x for x in row)) for row in difference]
    np.testing.assert_allclose(distillation.sample_norms(new, old), rows, rtol=1e-6)
    total = math.sqrt(sum(norm**2 for norm in rows))
    assert distillation.frobenius_norm(new, old).item() == pytest.approx(total)
    assert distillation.mean_square(new, old).item() == pytest.approx(total**2 / difference.size)


@pytest.mark.parametrize("distance", ["sample_norms", "frobenius_norm", "mean_square"])
def test_equal_features_have_no_distance_and_no_gradient(distance):
    new = features().requires_grad_()
    loss = getattr(distillation, distance)(new, new.detach().clone()).sum()
    loss.backward()
    assert loss.item() == 0 and torch.equal(new.grad, torch.zeros_like(new))


def test_the_weight_makes_the_frobenius_norm_independent_of_batch_and_width():
    def loss(n, d):
        new, old = torch.full((n, d), 0.3), torch.zeros(n, d)
        return distillation.frobenius_weight(10, new) * distillation.frobenius_norm(new, old)

    published = 10 * distillation.frobenius_norm(torch.full((256, 512), 0.3), torch.zeros(256, 512))
    for shape in [(256, 512), (64, 512), (17, 8)]:
        assert loss(*shape).item() == pytest.approx(published.item(), rel=1e-4)  # 131,072 squares


def test_a_projection_explains_a_change_that_is_a_function_of_the_features():
    torch.manual_seed(0)
    projector = distillation.Projector(4)
    optimizer = torch.optim.Adam(projector.parameters(), 1e-2)
    new = features(200)
    old = new @ torch.randn(4, 4, generator=seeded(5))
    start = distillation.mean_square(new, old)
    for _ in range(200):
        optimizer.zero_grad()
        loss = distillation.projected_mean_square(projector, new, old)
        loss.backward()
        optimizer.step()
    assert loss < 0.05 * start


# ---------------------------------------------------------------------- rotations


def test_labels_and_images_rotate_together():
    images = torch.rand(3, 3, 6, 6)
    rotated, labels = rotations.rotate_four(images, torch.tensor([4, 0, 2]))
    assert labels.tolist() == [16, 17, 18, 19, 0, 1, 2, 3, 8, 9, 10, 11]
    for row, label in enumerate(labels.tolist()):
        expected = np.rot90(images[row // 4].numpy(), label % 4, axes=(1, 2))
        np.testing.assert_array_equal(rotated[row], expected)
    assert torch.equal(rotated[::4], images)
    assert torch.equal(rotations.rotation_labels(torch.tensor([4, 0, 2])), labels[::4])


def test_four_rotations_are_none_and_predictions_have_one_column_per_class():
    images = torch.rand(2, 3, 5, 5)
    turned = images
    for _ in range(4):
        turned = rotations.rotate_four(turned, torch.zeros(2).long())[0][1::4]
    assert torch.equal(turned, images)
    logits = torch.randn(7, 4 * 5)
    columns = rotations.unrotated_logits(logits)
    assert columns.shape == (7, 5)
    assert all(torch.equal(columns[:, c], logits[:, 4 * c]) for c in range(5))


# ---------------------------------------------------------------------- pairs


@pytest.mark.parametrize("n_classes", [2, 3, 10, 50])
def test_pairs_have_a_symmetric_bijection(n_classes):
    pairs = torch.tensor(list(itertools.combinations(range(n_classes), 2)))
    index = pair_mixup.pair_index(pairs[:, 0], pairs[:, 1])
    assert sorted(index.tolist()) == list(range(pair_mixup.n_pairs(n_classes)))
    assert torch.equal(index, pair_mixup.pair_index(pairs[:, 1], pairs[:, 0]))


def test_mixtures_are_of_two_classes_and_labeled_by_their_pair():
    """Images whose pixels are their label: the label follows from the mixture."""
    n_old, n_classes = 5, 9
    labels = torch.arange(n_old, n_classes).repeat(40)
    marks = torch.eye(n_classes)[labels][:, :, None, None].expand(-1, -1, 2, 2)
    mixed, targets = pair_mixup.mix_pairs(marks, labels, seeded(), n_old=n_old, n_classes=n_classes)
    count = len(labels)
    assert torch.equal(mixed[:count], marks) and torch.equal(targets[:count], labels)
    assert 3 * count < len(mixed) - count < 4 * count  # a quarter has the same class
    shares = set()
    for image, target in zip(mixed[count:], targets[count:].tolist(), strict=True):
        classes = image[:, 0, 0].nonzero()[:, 0]
        assert len(classes) == 2
        first, second = (classes - n_old).tolist()
        assert target == n_classes + second * (second - 1) // 2 + first
        share = image[classes[0], 0, 0].item()
        assert 0.4 - 1e-6 <= share <= 0.6 + 1e-6
        shares.add(round(share, 6))
    assert len(shares) > 100


def test_shares_follow_the_beta_distribution():
    draws = pair_mixup.draw_beta(20.0, 20_000, seeded())
    assert abs(draws.mean().item() - 0.5) < 0.002
    assert abs(draws.std().item() - math.sqrt(1 / (4 * 41))) < 0.002


def test_one_class_has_no_pairs():
    with pytest.raises(TrainingError, match="at least two classes"):
        pair_mixup.check_pairs(1)
    pair_mixup.check_pairs(2)


# ---------------------------------------------------------------------- replay


def statistics(n_classes=4, d=3, seed=0):
    root = torch.randn(n_classes, d, d, generator=seeded(seed))
    return torch.randn(n_classes, d, generator=seeded(seed + 1)), root @ root.mT


def test_the_radius_is_the_mean_deviation_of_all_classes():
    _, covariances = statistics()
    traces = [float(np.trace(matrix)) for matrix in covariances.numpy()]
    expected = math.sqrt(sum(traces) / len(traces) / 3)
    variances = covariances.diagonal(dim1=1, dim2=2)
    assert prototype_replay.common_radius(variances).item() == pytest.approx(expected)


def test_noise_has_the_radius_and_none_gives_the_means():
    means, _ = statistics()
    labels = prototype_replay.draw_classes(20_000, 4, seeded())
    assert torch.equal(prototype_replay.noisy_means(means, labels, 0.0, seeded()), means[labels])
    noise = prototype_replay.noisy_means(means, labels, 0.7, seeded(2)) - means[labels]
    assert abs(noise.std().item() - 0.7) < 0.01 and abs(noise.mean().item()) < 0.01
    assert abs(labels.bincount() / 5000 - 1).max() < 0.05


def test_samples_have_the_moments_of_their_class():
    means, covariances = statistics()
    covariances[1] = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 0]])  # singular
    labels = torch.arange(4).repeat_interleave(20_000)
    factors = prototype_replay.covariance_factors(covariances)
    torch.testing.assert_close(factors @ factors.mT, covariances, atol=1e-5, rtol=1e-5)
    samples = prototype_replay.normal_samples(means, factors, labels, seeded())
    for c, rows in enumerate(samples.view(4, -1, 3)):
        scale = covariances[c].abs().max()
        torch.testing.assert_close(rows.mean(0), means[c], atol=0.05 * scale.sqrt().item(), rtol=0)
        torch.testing.assert_close(rows.T.cov(), covariances[c], atol=0.05 * scale.item(), rtol=0)


def literal_logits(weight, bias, means, covariances, labels, strength):
    rows = []
    for c in labels.tolist():
        row = []
        for j in range(len(weight)):
            difference = weight[j] - weight[c]
            spread = difference @ covariances[c] @ difference
            row.append(weight[j] @ means[c] + bias[j] + strength / 2 * spread)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_implicit_augmentation_equals_its_formula():
    means, covariances = statistics()
    weight, bias = features(6, 3), features(1, 6)[0]
    labels = torch.tensor([3, 0, 3, 2, 1])
    expected = literal_logits(weight, bias, means, covariances, labels, 2.5)
    ours = prototype_replay.implicitly_augmented_logits(
        weight, bias, means, covariances, labels, 2.5
    )
    torch.testing.assert_close(ours, expected)
    plain = prototype_replay.implicitly_augmented_logits(
        weight, bias, means, torch.zeros_like(covariances), labels, 2.5
    )
    torch.testing.assert_close(plain, means[labels] @ weight.T + bias)
    added = ours - plain
    assert (added >= -1e-6).all()
    torch.testing.assert_close(added.gather(1, labels[:, None]), torch.zeros(5, 1))
    assert functional.cross_entropy(ours, labels) >= functional.cross_entropy(plain, labels)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_implicit_augmentation_bounds_the_loss_of_samples(temperature):
    """The expected loss of samples is below, and near it for small covariances."""
    means, covariances = statistics()
    covariances = 0.01 * covariances
    weight, bias = features(6, 3), torch.zeros(6)
    labels = torch.arange(4).repeat_interleave(50_000)
    factors = prototype_replay.covariance_factors(covariances)
    samples = prototype_replay.normal_samples(means, factors, labels, seeded())
    expected = functional.cross_entropy((samples @ weight.T + bias) / temperature, labels)
    bound = functional.cross_entropy(
        prototype_replay.implicitly_augmented_logits(
            weight / temperature, bias / temperature, means, covariances, torch.arange(4), 1.0
        ),
        torch.arange(4),
    )
    assert expected < bound < 1.2 * expected


def test_the_weights_get_the_gradient_of_both_terms():
    means, covariances = statistics()
    weight = features(6, 3).double().requires_grad_()

    def loss(weight):
        return prototype_replay.implicitly_augmented_logits(
            weight, None, means.double(), covariances.double(), torch.tensor([1, 2]), 2.5
        )

    assert torch.autograd.gradcheck(loss, (weight,))
