"""Few-shot methods: frozen networks, their losses against literal ones, and their limits."""

from __future__ import annotations

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
from fecam.learners.mechanisms.cosine_prototypes import cosface_loss, nearest_to_mean
from fecam.learners.mechanisms.label_multiplication import TRANSFORMS, multiply
from fecam.learners.mechanisms.pair_mixup import mix_pairs
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
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_learners import RECIPE, finish, learned, new, tasks, tensors
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
    ours, plain = learned("savc", transforms="none"), learned("d-cosine")
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
