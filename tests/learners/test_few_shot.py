"""Few-shot methods: frozen networks, their losses against literal ones, and their limits."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam import heads
from fecam.errors import TrainingError
from fecam.learners import available, make
from fecam.learners.few_shot.fact import mixed_maps
from fecam.learners.mechanisms.anchors import drift_loss, pull_loss, push_loss
from fecam.learners.mechanisms.cosine_prototypes import cosface_loss, fix_scale, nearest_to_mean
from fecam.learners.mechanisms.episodes import EpisodeSampler, rotated_by_class
from fecam.learners.mechanisms.fast_weights import FastWeights
from fecam.learners.mechanisms.freezing import freeze_batch_norm
from fecam.learners.mechanisms.image_generator import ImageGenerator
from fecam.learners.mechanisms.label_multiplication import TRANSFORMS, multiply
from fecam.learners.mechanisms.momentum_queue import (
    MomentumQueue,
    labeled_contrast,
    small_crops,
)
from fecam.learners.mechanisms.pair_mixup import mix_pairs
from fecam.learners.mechanisms.set_attention import SetAttention, adapted_cosines
from fecam.learners.mechanisms.simplex import dot_regression, simplex_vertices
from fecam.learners.mechanisms.views import (
    cosine_between_classes,
    info_nce,
    stack_views,
    unstack_views,
)
from fecam.learners.mechanisms.virtual_prototypes import (
    allowed_virtual,
    mixed_loss,
    virtual_loss,
    virtual_scores,
)
from fecam.learners.task import LearningTask
from fecam.training.classifiers import expand_classifier
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_learners import RECIPE, finish, learned, new, tasks, tensors, tiny
from helpers.small_networks import AUGMENTED, PLAIN, same

FROZEN = [entry.name for entry in available() if not make(entry.name).trains_later]
MEANS = {"d-cosine", "closer"}
"""Frozen learners that keep the mean of all images and nothing else."""


def network_of(learner):
    return list(learner.network.state_dict().values())


@pytest.mark.parametrize("name", FROZEN)
def test_later_tasks_change_neither_the_network_nor_old_prototypes(name):
    first, later = learned(name, 1), learned(name, 3)
    assert same(network_of(first), network_of(later))
    assert torch.equal(later.classifier.weight[: len(first.classifier.weight)],
                       first.classifier.weight)  # fmt: skip


@pytest.mark.parametrize("name", FROZEN)
def test_neither_the_order_of_new_classes_nor_their_grouping_matters(name):
    train_data, test = tasks()
    together = learned(name, 1)
    finish(together, tasks(((1, 0), (3, 5, 2, 4)))[0][1])
    swapped = learned(name, 1)
    for task in train_data[:0:-1]:
        finish(swapped, task)
    expected = learned(name).predict(test)
    np.testing.assert_array_equal(together.predict(test), expected)
    np.testing.assert_array_equal(swapped.predict(test), expected)


@pytest.mark.parametrize("name", sorted(MEANS & set(FROZEN)))
def test_a_nearest_mean_head_by_cosine_predicts_as_the_method(name):
    _, test = tasks()
    learner = learned(name)
    head = heads.make("ncm", metric="cosine")
    for data in tasks()[0]:
        head.partial_fit(learner.features(data), data.labels)
    np.testing.assert_array_equal(head.predict(learner.features(test)), learner.predict(test))


def test_the_scale_is_not_trained():
    assert float(learned("d-cosine", 1, scale=7.0).classifier.scale) == 7.0


def test_one_image_per_class_is_enough_and_none_is_an_error():
    train_data, test = tasks()
    learner = learned("d-cosine", 1)
    finish(learner, train_data[1].subset([0, 1]))
    assert set(learner.predict(test).tolist()) <= {0, 1, 2, 4}
    bad = tasks(bad=tuple(range(3, 96, 6)))[0][2]
    with pytest.raises(TrainingError, match=r"'sign 3' \(label 3\) has no readable image"):
        finish(learner, bad)


def test_closer_without_its_losses_and_with_equal_views_is_d_cosine():
    options = {"scale": 16.0, "contrast": 0.0, "closeness": 0.0, "views": 2}
    recipe = replace(RECIPE, first=replace(RECIPE.first, epochs=1, learning_rate=0.005))
    both = (("closer", options), ("d-cosine", {}))
    ours, plain = (learned(name, 1, recipe, **own) for name, own in both)
    # The recipe has no augmentation: two equal views have the loss and the statistics of one.
    for a, b in zip(ours.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------------------------- finetune


def test_finetune_trains_small_new_rows_with_all_outputs_on_the_session_alone():
    train_data, _ = tasks()
    learner, by_hand = learned("finetune", 1), learned("finetune", 1)
    finish(learner, train_data[1])
    plan = by_hand.plan_for(1)
    classifier = torch.nn.Linear(16, 4)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(plan.seed)
        rows = torch.empty(2, 16).normal_(0, 0.001, generator=generator)
        classifier.weight.copy_(torch.cat([by_hand.classifier.weight, rows]))
        classifier.bias.copy_(torch.cat([by_hand.classifier.bias, torch.zeros(2)]))
    images = TrainingImages(train_data[1], PLAIN)
    list(train(by_hand.network, classifier, images, plan, classes=learner.classes))
    assert same(learner.classifier.state_dict().values(), classifier.state_dict().values())
    assert same(network_of(learner), network_of(by_hand))


def test_the_first_task_of_finetune_is_that_of_ft_with_a_linear_classifier():
    ours = learned("finetune", 1, replace(RECIPE, first=replace(RECIPE.first, classifier="cosine")))
    assert same(tensors(ours).values(), tensors(learned("ft", 1)).values())


def test_finetune_forgets_the_classes_of_the_first_task():
    _, test = tasks()
    recipe = replace(RECIPE, later=replace(RECIPE.first, epochs=12))
    learner = learned("finetune", 2, recipe)
    base = test.subset(np.isin(test.labels, (0, 1)))
    before = (learned("finetune", 1).predict(base) == base.labels).mean()
    assert before > 0.5 > 2 * (learner.predict(base) == base.labels).mean()


# --------------------------------------------------------------------------- margin, mixtures


def test_the_margin_lowers_the_logit_of_the_class():
    torch.manual_seed(0)
    cosines, labels = torch.rand(6, 4) * 2 - 1, torch.tensor([0, 1, 2, 3, 0, 1])
    for scale, margin in ((30.0, 0.4), (16.0, 0.0)):
        expected = 0.0
        for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
            logits = [scale * (c - margin * (i == label)) for i, c in enumerate(row)]
            expected += np.logaddexp.reduce(logits) - logits[label]
        loss = cosface_loss(scale * cosines, labels, scale, margin)
        assert float(loss) == pytest.approx(expected / 6, rel=1e-5)
    plain = functional.cross_entropy(16 * cosines, labels)
    assert torch.equal(cosface_loss(16 * cosines, labels, 16.0, 0.0), plain)
    losses = [float(cosface_loss(16 * cosines, labels, 16.0, m)) for m in (0.0, 0.1, 0.4)]
    assert losses == sorted(losses) and losses[0] < losses[2]


def test_views_of_an_image_are_mixed_alike():
    torch.manual_seed(0)
    images, labels = torch.rand(5, 3, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    views = torch.cat([images, images + 10])
    stacked = stack_views(views, 2)
    assert torch.equal(unstack_views(stacked, 2), views)
    assert torch.equal(stacked[1], torch.cat([images[1], images[1] + 10]))
    generator = torch.Generator().manual_seed(1)
    mixed, targets = mix_pairs(stacked, labels, generator, n_old=0, n_classes=3, repeats=4)
    first, second = unstack_views(mixed, 2).chunk(2)
    torch.testing.assert_close(second, first + 10)
    assert targets.max() < 3 + 3 and len(first) == len(targets) > 5


def test_alice_drops_its_projector_and_averages_the_images_nearest_to_the_mean():
    train_data, _ = tasks()
    learner = learned("alice", 1)
    assert sorted(dict(learner.classifier.named_parameters())) == ["scale", "weight"]
    features, labels = learner.features(train_data[0]), train_data[0].labels
    for row, label in enumerate((0, 1)):
        own = features[labels == label].astype(np.float64)
        cosines = own @ own.mean(0) / np.linalg.norm(own, axis=1)
        expected = own[np.argsort(-cosines)[:5]].mean(0)
        np.testing.assert_allclose(learner.classifier.weight[row].detach(), expected, rtol=1e-4)
    assert len(nearest_to_mean(features, labels, 0, 99)) == (labels == 0).sum()


def test_alice_needs_two_classes_for_mixtures():
    data = tasks(((0,),))[0][0]
    with pytest.raises(TrainingError, match="mixtures=0"):
        finish(new("alice"), data)


# ----------------------------------------------------------------------- virtual prototypes


def test_losses_of_virtual_prototypes_equal_literal_ones():
    torch.manual_seed(0)
    base, virtual, labels = torch.randn(5, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    allowed = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1]]).bool()
    first, second, third = [], [], []
    for b, v, y in zip(base.tolist(), virtual.tolist(), labels.tolist(), strict=True):
        choices = [i for i in range(4) if allowed[y, i]]
        target = max(choices, key=lambda i: v[i])
        others = [x for c, x in enumerate(b) if c != y]
        first.append(np.logaddexp.reduce([*others, *v]) - v[target])
        second.append(np.logaddexp.reduce([*b, *v]) - max(v))
        rest = [x for i, x in enumerate(v) if i != int(np.argmax(v))]
        third.append(np.logaddexp.reduce([*b, *rest]) - max(b))
    assert float(virtual_loss(base, virtual, labels, allowed)) == pytest.approx(np.mean(first))
    assert float(mixed_loss(base, virtual)) == pytest.approx(np.mean(second) + np.mean(third))


def test_each_virtual_prototype_is_allowed_for_some_classes():
    allowed = allowed_virtual(6, 5, 3, torch.Generator().manual_seed(0))
    chosen = allowed.sum(1) < 5
    assert allowed.any(1).all() and (allowed[chosen].sum(0) <= 3).all()
    assert allowed_virtual(9, 1, 3, torch.Generator()).all()  # those that none chose have all


def test_scores_by_way_of_virtual_prototypes_equal_literal_ones():
    torch.manual_seed(0)
    f, w, v = (functional.normalize(torch.randn(n, 4), dim=1) for n in (3, 2, 5))
    scores = virtual_scores(7 * f, 3 * w, 2 * v, top=2)
    for i in range(3):
        nearest = sorted(range(5), key=lambda k: -float(f[i] @ v[k]))[:2]
        for c in range(2):
            expected = sum(float(f[i] @ v[k]) * float(v[k] @ w[c]) for k in nearest)
            assert float(scores[i, c]) == pytest.approx(expected, abs=1e-6)


def test_fact_without_a_share_of_virtual_prototypes_predicts_nearest_means():
    train_data, test = tasks()
    learner = learned("fact", eta=0.0)
    head = heads.make("ncm", metric="cosine")
    for data in train_data:
        head.partial_fit(learner.features(data), data.labels)
    np.testing.assert_array_equal(head.predict(learner.features(test)), learner.predict(test))
    features = torch.from_numpy(learner.features(test))
    blended = learned("fact").scores(features)
    torch.testing.assert_close(blended.sum(1), torch.ones(len(test)))


def test_fact_trains_the_virtual_rows_and_not_the_frozen_copy_and_records_both_losses():
    data = tasks()[0][0]
    learner = new("fact")
    records = finish(learner, data)
    assert sorted(records[0].losses) == ["mixtures", "virtual"]
    assert all(record.losses["virtual"] > 0 for record in records)
    trained = learner.kept["virtual"]["prototypes"]
    plain = learned("fact", 1, balance=0.0)
    assert trained.shape == (40, 16) and len(learner.classifier.weight) == 2
    start = torch.nn.init.orthogonal_
    torch.manual_seed(RECIPE.first.seed)
    rows = start(torch.empty(42, 16))[2:]
    assert not torch.allclose(trained, rows, atol=1e-4)
    # Weight decay alone scales them: their directions stay.
    turned = functional.cosine_similarity(plain.kept["virtual"]["prototypes"], rows)
    torch.testing.assert_close(turned, torch.ones(40), rtol=1e-4, atol=1e-4)


def test_maps_of_different_classes_are_mixed_with_one_share():
    torch.manual_seed(0)
    images, labels = torch.randn(6, 1, 2, 2), torch.tensor([0, 0, 1, 1, 2, 2])
    network = SimpleNamespace(early=lambda x: 2 * x)

    def step():
        generator = torch.Generator().manual_seed(3)
        return SimpleNamespace(images=images, labels=labels, generator=generator, network=network)

    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    pairs = [(i, int(j)) for i, j in enumerate(order) if labels[i] != labels[j]]
    maps = mixed_maps(step(), 0.5)
    assert len(maps) == len(pairs) and torch.equal(maps, mixed_maps(step(), 0.5))
    shares = [
        float(((mixed - 2 * images[j]) / (2 * images[i] - 2 * images[j])).mean())
        for mixed, (i, j) in zip(maps, pairs, strict=True)
    ]
    assert np.ptp(shares) < 1e-4 and 0 <= shares[0] <= 1


def test_fact_needs_maps_in_the_middle():
    with pytest.raises(TrainingError, match="Linear has no methods early and late"):
        make("fact").check_network(torch.nn.Linear(2, 2))


# -------------------------------------------------------------------- transforms as classes


def test_savc_with_one_transform_is_d_cosine_to_the_bit():
    ours, plain = learned("savc", transforms="identity", contrast=False), learned("d-cosine")
    assert same(tensors(ours).values(), tensors(plain).values())


@pytest.mark.parametrize("name", TRANSFORMS)
def test_labels_of_transforms_can_be_inverted_and_the_first_is_the_image(name):
    torch.manual_seed(0)
    images, labels = torch.rand(3, 3, 4, 4), torch.tensor([2, 0, 5])
    transforms = TRANSFORMS[name]
    m = len(transforms)
    multiplied, targets = multiply(images, labels, transforms)
    assert torch.equal(targets // m, labels.repeat_interleave(m))
    assert torch.equal(targets % m, torch.arange(m).repeat(3))
    assert torch.equal(multiplied[::m], images)
    distinct = {tuple(image.flatten().tolist()) for image in multiplied}
    assert len(distinct) == 3 * m


def test_savc_predicts_the_mean_over_transforms():
    _, test = tasks()
    learner = learned("savc")
    few = test.subset(range(4))
    (images,) = (x for _, x in TrainingImages(few, PLAIN).eval_batches(8))
    rows = functional.normalize(learner.classifier.weight.detach(), dim=1)
    expected = 0
    with torch.no_grad():
        for k, transformed in enumerate((images, images.rot90(2, (2, 3)))):
            features = functional.normalize(learner.network.eval()(transformed), dim=1)
            expected = expected + 16 * features @ rows[k::2].T / 2
    scores = learner.scores(torch.from_numpy(learner.features(few)))
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)
    assert learner.features(few).shape == (4, 32)
    assert learned("savc", head="ncm").features(few).shape == (4, 16)


# ----------------------------------------------------------------------------------- simplex


@pytest.mark.parametrize(("count", "dimension"), [(2, 2), (5, 9), (12, 12)])
def test_vertices_have_unit_length_equal_angles_and_sum_to_zero(count, dimension):
    rows = simplex_vertices(count, dimension, torch.Generator().manual_seed(0)).double()
    expected = torch.full((count, count), -1 / (count - 1), dtype=torch.float64)
    torch.testing.assert_close(rows @ rows.T, expected.fill_diagonal_(1), atol=1e-6, rtol=0)
    assert rows.sum(0).abs().max() < 1e-6


def test_dot_regression_is_zero_only_at_the_vertices():
    vertices = simplex_vertices(3, 4, torch.Generator().manual_seed(0))
    assert float(dot_regression(5 * vertices, vertices)) < 1e-12
    cosines = [float(vertices[0] @ vertices[1])] * 3
    wrong = float(dot_regression(vertices.roll(1, 0), vertices))
    assert wrong == pytest.approx(np.mean([(c - 1) ** 2 / 2 for c in cosines]), rel=1e-5)


def test_nc_fscil_trains_the_neck_alone_in_later_tasks_and_never_the_vertices():
    one, all_tasks = learned("nc-fscil", 1), learned("nc-fscil")
    assert same(one.network.backbone.state_dict().values(),
                all_tasks.network.backbone.state_dict().values())  # fmt: skip
    necks = [list(x.network.neck.state_dict().values()) for x in (one, all_tasks)]
    assert not same(*necks)
    generator = torch.Generator().manual_seed(RECIPE.first.seed)
    vertices = simplex_vertices(8, 12, generator)
    assert torch.equal(one.classifier.weight, vertices[:2])
    assert torch.equal(all_tasks.classifier.weight, vertices[:6])
    kept = all_tasks.kept["statistics"]["means"]
    assert kept.shape == (6, 16) and torch.equal(kept[:2], one.kept["statistics"]["means"])


def test_the_loss_of_nc_fscil_is_over_images_and_earlier_means():
    train_data, _ = tasks()
    learner = learned("nc-fscil", 1)
    task = learner._task(train_data[1])
    learner._grow(task)
    learner.before_task(task)
    torch.manual_seed(0)
    features, labels = torch.randn(3, 12), torch.tensor([2, 3, 2])
    step = SimpleNamespace(
        features=features, labels=labels, network=learner.network, classifier=learner.classifier
    )
    old = learner.network.neck(learner.kept["statistics"]["means"])
    rows = learner.classifier.weight
    cosines = [functional.cosine_similarity(f, rows[y], dim=0) for f, y in [
        *zip(features, labels, strict=True), (old[0], 0), (old[1], 1)]]  # fmt: skip
    expected = 10 * np.mean([(float(c.detach()) - 1) ** 2 / 2 for c in cosines])
    loss = float(learner.hooks(task).loss(step).detach())
    assert loss == pytest.approx(expected, rel=1e-4)


def test_more_classes_than_vertices_are_an_error():
    with pytest.raises(TrainingError, match="classes to 4, more than classes_to_come=3"):
        finish(learned("nc-fscil", 1, classes_to_come=3), tasks()[0][1])
    assert learned("nc-fscil", 2, head="ncm").features(tasks()[1]).shape[1] == 16


# ------------------------------------------------------------------------------------- views


def test_the_loop_augments_each_view_anew():
    seen = []
    learner = new("closer", recipe=replace(RECIPE, first=replace(AUGMENTED, epochs=1)))
    hooks = learner.hooks

    def spying(task):
        parts = hooks(task)

        def record(step):
            seen.append((step.images.clone(), step.labels.clone(), step.rows.clone()))
            return parts.losses["contrast"](step)

        return replace(parts, losses={**parts.losses, "contrast": record})

    learner.hooks = spying
    finish(learner, tasks()[0][0])
    images, labels, rows = seen[0]
    first, second, third = images.chunk(3)
    assert not torch.equal(first, second) and not torch.equal(second, third)
    assert torch.equal(labels.chunk(3)[0], labels.chunk(3)[2])
    assert torch.equal(rows.chunk(3)[0], rows.chunk(3)[1])


def test_losses_between_views_equal_literal_ones():
    torch.manual_seed(0)
    features, labels = torch.randn(6, 3), torch.tensor([0, 1, 0, 0, 1, 0])  # 3 images, 2 views
    unit = functional.normalize(features, dim=1).numpy().astype(float)
    s = 5 * unit @ unit.T
    losses = [
        -np.log(np.exp(s[i, j]) / (np.exp(s[i, j]) + sum(
            np.exp(s[i, k]) for k in range(6) if k % 3 != i % 3)))
        for i in range(6) for j in range(6) if i != j and i % 3 == j % 3
    ]  # fmt: skip
    assert float(info_nce(features, 2, 5.0)) == pytest.approx(np.mean(losses), rel=1e-5)
    pairs = [s[i, j] / 5 for i in range(6) for j in range(6) if labels[i] != labels[j]]
    assert float(cosine_between_classes(features, labels)) == pytest.approx(np.mean(pairs))
    assert float(cosine_between_classes(features, torch.zeros(6))) == 0
    assert float(info_nce(features[:2], 2, 5.0)) == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("finetune", {"initial_std": -1.0}, "initial_std=-1.0"),
        ("d-cosine", {"scale": 0.0}, "scale=0.0 must be"),
        ("alice", {"margin": -0.1}, "margin=-0.1"),
        ("alice", {"images_per_prototype": 0}, "images_per_prototype=0"),
        ("closer", {"views": 1}, "views=1"),
        ("fact", {"eta": 1.5}, "eta=1.5"),
        ("fact", {"virtual": 0}, "virtual=0"),
        ("nc-fscil", {"dimension": 100}, "must be at least classes_to_come=200"),
        ("savc", {"transforms": "shear"}, "transforms='shear' must be one of"),
        ("closer", {"closeness": -1.0}, "closeness=-1.0"),
        ("savc", {"crop_area": 0.5}, "crop_area=0.5 must be two shares"),
        ("savc", {"crop_area": [0.7, 0.2]}, "in increasing order"),
        ("savc", {"contrast": "yes"}, "contrast='yes' must be a bool"),
        ("cec", {"ways": 1}, "ways=1"),
        ("cec", {"rotations": "no"}, "rotations='no' must be a bool"),
        ("limit", {"episodes": -1}, "episodes=-1"),
        ("topic", {"anchors": 0}, "anchors=0"),
        ("metafscil", {"rate": 0.0}, "rate=0.0"),
        ("data-free-replay", {"batch": 1}, "batch=1"),
    ],
)
def test_options_out_of_range(name, options, message):
    with pytest.raises(TrainingError, match=message):
        make(name, **options)


def test_tensors_of_a_saved_learner_are_those_of_the_plain_classifier(tmp_path):
    learner = learned("alice", 2)
    learner.save(tmp_path / "state")
    again = new("alice")
    again.load(tmp_path / "state")
    assert same(tensors(again).values(), tensors(learner).values())


# -------------------------------------------------------------- attention and episodes

FOUR_AND_TWO = ((0, 1, 2, 3), (4, 5))


def episodes_of(name, **options):
    """A learner before its second stage, its first task, a sampler and a block."""
    learner = new(name, **{"episodes": 0, **options})
    (first, _), _ = tasks(FOUR_AND_TWO)
    finish(learner, first)
    images = TrainingImages(first, PLAIN)
    task = LearningTask(0, first, images, (), learner.classes, learner.plan_for(0))
    sampler = EpisodeSampler(images, task.positions, torch.Generator().manual_seed(0))
    return learner, task, sampler, learner.attention()


def test_prototypes_may_come_in_any_order_and_each_query_has_its_own():
    torch.manual_seed(0)
    block, prototypes, queries = SetAttention(6), torch.randn(5, 6), torch.randn(4, 6)
    logits, order = adapted_cosines(block, prototypes, queries), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(adapted_cosines(block, prototypes[order], queries), logits[:, order])
    for query, row in zip(queries, logits, strict=True):
        tokens = torch.cat([prototypes, query[None]])
        q, k, v = (layer(tokens) for layer in (block.query, block.key, block.value))
        mixed = torch.stack([torch.softmax(k @ x / 6**0.5, 0) @ v for x in q])
        adapted = block.norm(tokens + block.output(mixed))
        expected = functional.cosine_similarity(adapted[:-1], adapted[-1:])
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("name", ["cec", "limit"])
def test_a_block_without_output_only_normalizes_its_tokens(name):
    learner, (_, test) = learned(name), tasks()
    for key in ("output.weight", "output.bias"):
        learner.kept["attention"][key].zero_()
    features = torch.from_numpy(learner.features(test))
    norm = learner.attention().norm
    rows, queries = norm(learner.classifier.weight), norm(features)
    expected = 16 * functional.cosine_similarity(queries[:, None], rows[None], dim=2)
    torch.testing.assert_close(learner.scores(features), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cec", "limit", "data-free-replay"])
def test_the_first_stage_is_that_of_d_cosine(name):
    ours = new(name)
    assert ours.first_task_key() == new("d-cosine").first_task_key()
    nothing = {"iterations": 0} if name == "data-free-replay" else {"episodes": 0}
    assert same(network_of(learned(name, 1, **nothing)), network_of(learned("d-cosine", 1)))


@pytest.mark.parametrize("name", ["cec", "limit"])
def test_the_second_stage_trains_the_network_and_the_block(name):
    rates = {"encoder_rate": 0.01, "attention_rate": 0.01}
    before, after = learned(name, 1, episodes=0), learned(name, 1, **rates)
    assert not same(before.kept["attention"].values(), after.kept["attention"].values())
    assert not same(network_of(before), network_of(after))
    idle = learned(name, 1, encoder_rate=0.0)
    assert same(network_of(before), network_of(idle))  # also the statistics of normalization


def test_an_episode_has_disjoint_images_of_its_classes():
    _, task, sampler, _ = episodes_of("cec")
    for _ in range(5):
        episode = sampler.draw(3, 2, 4)
        assert len(set(episode.classes.tolist())) == 3
        rows = torch.cat([episode.supports, episode.queries], 1)
        assert rows.shape == (3, 6) and len(set(rows.flatten().tolist())) == 18
        assert torch.equal(task.positions[rows], episode.classes[:, None].expand(3, 6))
    small = sampler.draw(99, 5, 99)
    assert small.supports.shape == (4, 5) and small.queries.shape == (4, 7)


def test_turned_images_are_classes_of_their_own():
    learner, task, sampler, block = episodes_of("cec", queries=3)
    state = sampler.generator.get_state()
    loss = learner.episode_loss(task, sampler, block)
    sampler.generator.set_state(state)
    episode = sampler.draw(15, 1, 3)
    rows = torch.cat([episode.supports, episode.queries], 1)
    images = sampler.load(rows, task.plan, torch.device("cpu"))
    quarters = torch.randint(1, 4, (4,), generator=sampler.generator).tolist()
    classes = [*images, *(x.rot90(k, (2, 3)) for x, k in zip(images, quarters, strict=True))]
    features = [learner.network(x) for x in classes]
    prototypes = torch.stack([x[0] for x in features])
    losses = [
        functional.cross_entropy(
            16 * adapted_cosines(block, prototypes, x[1:]), torch.full((3,), c)
        )
        for c, x in enumerate(features)
    ]
    assert len(losses) == 8
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    with_none = make("cec", rotations=False).start(RECIPE)
    with_none.network, with_none.classifier = learner.network, learner.classifier
    assert with_none.episode_loss(task, sampler, block).isfinite()


def test_four_quarters_are_a_whole_turn_and_each_class_has_its_own():
    images = torch.rand(2, 3, 3, 4, 4)
    whole = images
    for _ in range(4):
        whole = rotated_by_class(whole, [1, 1])
    assert torch.equal(whole, images)
    mixed = rotated_by_class(images, [1, 2])
    assert torch.equal(mixed[0], rotated_by_class(images, [1, 1])[0])
    assert torch.equal(mixed[1], images[1].rot90(2, (2, 3)))


def test_fake_new_classes_of_limit_replace_rows_of_the_classifier():
    learner, task, sampler, block = episodes_of("limit", ways=2, queries=12)
    state = sampler.generator.get_state()
    drawn = sampler.draw(2, 1, 1).classes
    sampler.generator.set_state(state)
    learner.classifier.weight.requires_grad_(True)
    learner.classifier.zero_grad()
    learner.episode_loss(task, sampler, block).backward()
    moved = learner.classifier.weight.grad.abs().sum(1) > 0
    assert torch.equal(moved, torch.ones(4, dtype=torch.bool).index_fill(0, drawn, False))


# ------------------------------------------------------------------- training in sessions


def test_topic_without_its_losses_is_finetune_to_the_bit():
    nothing = {"drift": 0.0, "pull": 0.0, "push": 0.0}
    ours = learned("topic", 2, **nothing, old_rows="included", batch_norm="running")
    plain = learned("finetune", 2)
    for name, value in tensors(ours).items():
        if "running" in name or "num_batches" in name:
            continue  # the pass over the anchors moves the running statistics
        torch.testing.assert_close(value, tensors(plain)[name])


def test_anchors_are_kept_as_images_and_hold_their_features():
    recipe = replace(RECIPE, later=replace(RECIPE.first, epochs=6, learning_rate=0.01))
    firm, loose = (learned("topic", 2, recipe, drift=drift) for drift in (350.0, 0.0))
    assert firm.kept["anchors"]["pixels"].shape == (6 + 2, 3, 8, 8)
    before = learned("topic", 1)
    images = TrainingImages(tasks()[0][0], PLAIN).normalize(
        before.kept["anchors"]["pixels"].float() / 255
    )
    with torch.no_grad():
        start, *moved = (
            functional.normalize(x.network.eval()(images)) for x in (before, firm, loose)
        )
    near, far = (float(drift_loss(x, start)) for x in moved)
    assert near < 0.8 * far and float(drift_loss(start, start)) < 1e-12


def test_losses_of_anchors_equal_literal_ones():
    torch.manual_seed(0)
    features, anchors = torch.randn(5, 3), functional.normalize(torch.randn(4, 3))
    labels = torch.tensor([7, 8, 7, 8, 8])
    unit = functional.normalize(features, dim=1).numpy().astype(float)
    pulled = [
        np.sum((x - unit[labels.numpy() == y].mean(0)) ** 2)
        for x, y in zip(unit, labels.tolist(), strict=True)
    ]
    assert float(pull_loss(features, labels)) == pytest.approx(np.mean(pulled), rel=1e-5)
    pushed = [max(0.0, 1.5 - np.linalg.norm(x - a)) ** 2 for x in unit for a in anchors.numpy()]
    assert float(push_loss(features, anchors, 1.5)) == pytest.approx(np.mean(pushed), rel=1e-4)
    features.requires_grad_(True)
    push_loss(features, functional.normalize(features.detach(), dim=1), 0.5).backward()
    assert features.grad.isfinite().all(), "an anchor may be where a feature is"


def test_fast_weights_are_those_of_plain_training_and_the_original_stays():
    torch.manual_seed(0)
    network, other = tiny().eval(), torch.nn.Linear(16, 3)
    images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    before = [x.clone() for x in network.state_dict().values()]
    fast = FastWeights(network, other.weight, other.bias)
    fast.adapt(images, labels, 3, 0.01)
    by_hand = copy.deepcopy(torch.nn.Sequential(network, other)).eval()
    descent = torch.optim.SGD(by_hand.parameters(), lr=0.01)
    for _ in range(4):
        descent.zero_grad()
        functional.cross_entropy(by_hand(images), labels).backward()
        gradients = [p.grad.clone() for p in by_hand[0].parameters()]
        if _ < 3:
            descent.step()
    for ours, theirs in zip(fast.weights, by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    fast.teach(network, images, labels)
    for ours, theirs in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-3, atol=1e-6)
    assert same(network.state_dict().values(), before)
    fast.add_classes(images, labels + 3, 2, 0.1)
    assert fast.rows.shape == (6, 16)
    torch.testing.assert_close(fast.rows[:3].detach(), by_hand[1].weight.data)


def test_a_session_of_metafscil_trains_new_rows_first():
    options = {"row_steps": 2, "steps": 1, "rate": 1e-9}
    before, after = learned("metafscil", 1, **options), learned("metafscil", 2, **options)
    for a, b in zip(network_of(before), network_of(after), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(after.classifier.weight[:2], before.classifier.weight)
    assert after.plan_for(1).epochs == 3 and after.plan_for(1).milestones == (2,)
    assert after.classifier.weight[2:].abs().sum() > 0
    moving = learned("metafscil", 2, **{**options, "rate": 0.05})
    assert not same(network_of(before), network_of(moving))


def test_sequences_change_the_network_only():
    plain, taught = (learned("metafscil", 1, sequences=n, outer_rate=0.1) for n in (0, 2))
    assert same(plain.classifier.state_dict().values(), taught.classifier.state_dict().values())
    assert not same(network_of(plain), network_of(taught))


def test_generated_images_have_mean_0_and_deviation_1():
    torch.manual_seed(0)
    images = ImageGenerator(5, 9).train()(torch.randn(32, 5))
    assert images.shape == (32, 3, 9, 9)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), atol=1e-2, rtol=0)


def test_without_generated_images_the_last_stage_is_trained_alone():
    train_data, _ = tasks()
    learner, by_hand = (learned("data-free-replay", 1, generated=0, slow=1.0) for _ in range(2))
    finish(learner, train_data[1])
    plan, network = by_hand.plan_for(1), by_hand.network
    with torch.random.fork_rng([]):
        torch.manual_seed(plan.seed)
        classifier = expand_classifier(by_hand.classifier, 4)
    fix_scale(classifier, 16.0)
    network.requires_grad_(False)
    network.layer4.requires_grad_(True)
    images = TrainingImages(train_data[1], PLAIN)
    hooks = Hooks(epoch_start=[freeze_batch_norm(network)])
    list(train(network, classifier, images, plan, classes=learner.classes, hooks=hooks))
    assert same(learner.network.state_dict().values(), network.state_dict().values())
    assert torch.equal(learner.classifier.weight, classifier.weight)
    assert "generator" not in learner.kept


def test_what_is_old_learns_slowly_and_early_stages_not_at_all():
    before, after = learned("data-free-replay", 1), learned("data-free-replay", 2)
    for (name, a), b in zip(
        before.network.named_parameters(), after.network.parameters(), strict=True
    ):
        assert torch.equal(a, b) is not (name.startswith("layer4") and a.ndim == 4), name
    moved = (after.classifier.weight[:2] - before.classifier.weight).abs().max()
    still = learned("data-free-replay", 2, slow=0.0).classifier.weight[:2]
    assert 0 < moved < 0.01
    torch.testing.assert_close(still, before.classifier.weight, rtol=1e-3, atol=1e-3)
    assert not same(before.kept["generator"].values(), after.kept["generator"].values())


# ------------------------------------------------------------------------- momentum and queue


def filled_queue(length=6, used=4):
    torch.manual_seed(0)
    queue = MomentumQueue(tiny(), 5, length, 0.9)
    queue.enqueue(functional.normalize(torch.randn(used, 5)), torch.tensor([3, 4, 3, 5])[:used])
    return queue


def test_the_contrastive_loss_is_literal_and_ignores_empty_places():
    queue = filled_queue()
    queries, keys = (functional.normalize(torch.randn(n, 5)) for n in (4, 2))
    labels = torch.tensor([3, 9])
    losses = []
    for i, query in enumerate(queries):
        label = int(labels[i % 2])
        stored = [(k, int(y)) for k, y in zip(queue.queue, queue.labels, strict=True) if y >= 0]
        assert len(stored) == 4
        positives = [keys[i % 2], *(k for k, y in stored if y == label)]
        negatives = [k for k, y in stored if y != label]
        losses.append(np.mean([
            np.log(1 + sum(np.exp(float(query @ n - query @ p) / 0.5) for n in negatives))
            for p in positives
        ]))  # fmt: skip
    ours = labeled_contrast(queries, labels, keys, queue, 0.5)
    assert float(ours) == pytest.approx(np.mean(losses), rel=1e-5)
    empty = filled_queue(used=0)
    assert float(labeled_contrast(queries, labels, keys, empty, 0.5)) == 0


def test_the_queue_is_a_ring_and_the_copy_is_slow():
    queue = filled_queue()
    more = functional.normalize(torch.randn(4, 5))
    queue.enqueue(more, torch.tensor([6, 7, 8, 9]))
    assert queue.labels.tolist() == [8, 9, 3, 5, 6, 7]
    assert torch.equal(queue.queue[[4, 5, 0, 1]], more)
    slow, network = queue.slow_network.conv1.weight.clone(), tiny()
    queue.follow(network)
    torch.testing.assert_close(
        queue.slow_network.conv1.weight, 0.9 * slow + 0.1 * network.conv1.weight
    )
    assert not any(p.requires_grad for p in queue.slow_network.parameters())


def test_a_crop_of_the_whole_image_is_the_image():
    images = torch.rand(3, 3, 8, 8)
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(small_crops(images, 8, (1.0, 1.0), generator), images)
    crops = small_crops(torch.full((2, 3, 8, 8), 0.5), 5, (0.2, 0.7), generator)
    torch.testing.assert_close(crops, torch.full((2, 3, 5, 5), 0.5))


def test_contrast_adds_a_loss_and_changes_the_network():
    learner = new("savc")
    records = finish(learner, tasks()[0][0])
    assert all(record.losses["contrast"] > 0 for record in records)
    assert not same(network_of(learner), network_of(learned("savc", 1, contrast=False)))
