"""SDC, MUC and L2P: their losses, what they keep, bad input."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam import heads
from fecam.encoders.transformer_network import load_transformer
from fecam.errors import EncoderError, FecamError, TrainingError
from fecam.learners import make
from fecam.learners.mechanisms.drift import semantic_drift
from fecam.learners.mechanisms.metric_learning import metric_importance, triplet_loss
from fecam.learners.mechanisms.moving_means import move_means
from fecam.learners.mechanisms.side_classifiers import discrepancy, train_side_classifiers
from fecam.training.images import TrainingImages
from helpers.small_learners import RECIPE, finish, learned, tasks, tensors, tiny
from helpers.small_models import SIDE, write_vision
from helpers.small_networks import PLAIN, PLAN, same, signs

QUICK = replace(RECIPE, first=replace(PLAN, epochs=1), later=replace(PLAN, epochs=1))


def one_class():
    data = tasks()[0][1]
    return data.subset(data.labels == 4)


# -- SDC -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_the_triplet_loss_is_the_mean_over_all_triplets(margin):
    torch.manual_seed(0)
    points, labels = torch.randn(7, 3), [0, 1, 0, 2, 1, 0, 2]
    losses = [
        max(0.0, float((points[a] - points[p]).norm() - (points[a] - points[n]).norm()) + margin)
        for a, p, n in itertools.permutations(range(7), 3)
        if labels[a] == labels[p] != labels[n]
    ]
    loss = triplet_loss(points, torch.tensor(labels), margin)
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    for same_labels in (torch.zeros(7).long(), torch.arange(7)):
        points.requires_grad_().grad = None
        loss = triplet_loss(points, same_labels, margin)
        loss.backward()
        assert loss.item() == 0 and not points.grad.any()


def embeddings(learner, data):
    return functional.normalize(torch.from_numpy(learner.features(data))).numpy()


def test_a_network_that_stays_is_a_nearest_mean_classifier():
    train_data, test = tasks()
    learner = learned("sdc", 1)
    means = [embeddings(learner, train_data[0].subset(train_data[0].labels == c)) for c in (0, 1)]
    learner.learning_rate = 1e-30
    for data in train_data[1:]:
        finish(learner, data)
    expected = np.stack([rows.mean(0) for rows in means])
    for data, classes in zip(train_data[1:], ((2, 4), (3, 5)), strict=True):
        rows = [embeddings(learner, data.subset(data.labels == c)).mean(0) for c in classes]
        expected = np.concatenate([expected, rows])
    kept = learner.kept["statistics"]["means"].numpy()
    np.testing.assert_allclose(kept, expected, atol=1e-5)
    distances = ((embeddings(learner, test)[:, None] - expected) ** 2).sum(2)
    nearest = np.array(learner.classes)[distances.argmin(1)]
    np.testing.assert_array_equal(learner.predict(test), nearest)


@pytest.mark.parametrize("compensate", [True, False])
def test_a_nearest_mean_head_predicts_as_the_method(compensate):
    _, test = tasks()
    fast = {"learning_rate": 1e-3, "compensate": compensate}
    own, head = (learned("sdc", head=name, **fast) for name in (None, "ncm"))
    np.testing.assert_array_equal(own.predict(test), head.predict(test))
    order = np.argsort(own.classes)
    kept = own.kept["statistics"]["means"].numpy()[order]
    np.testing.assert_allclose(head.head.state_.means, kept, atol=1e-5)


HEADS = {
    "ncm": lambda state: state.means,
    "slda": lambda state: state.classes.means,
    "teen": lambda state: state.classes.means,
    "fecam": lambda state: np.stack([stats.mean for stats in state.classes.values()]),
    "calibrated-fecam": lambda state: np.stack([s.raw_mean for s in state.classes.values()]),
}
PLAIN_HEADS = {
    "fecam": {"tukey": None, "l2": None},
    "calibrated-fecam": {"tukey": None},
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("sigma", [0.01, 0.3, np.inf])
def test_a_constant_shift_moves_every_mean_of_a_head_by_it(name, sigma):
    X, shift = np.random.default_rng(0).random((40, 5)), np.arange(5) / 4
    head = heads.make(name, **PLAIN_HEADS.get(name, {})).fit(X, np.arange(40) % 4)
    before, matrices = HEADS[name](head.state_), head.decision_function(X)
    drift = lambda means, transform: semantic_drift(  # noqa: E731
        means, transform(X), transform(X + shift), sigma
    )
    move_means(head, drift)
    np.testing.assert_allclose(HEADS[name](head.state_), before + shift, rtol=1e-6)
    if name in ("ncm", "fecam"):  # distances between shifted rows and shifted means
        np.testing.assert_allclose(head.decision_function(X + shift), matrices, rtol=1e-4)


def test_heads_without_means_stay_as_they_are():
    X = np.random.default_rng(0).random((40, 5))
    head = heads.make("ridge").fit(X, np.arange(40) % 4)
    before = head.state_
    move_means(head, lambda means, transform: means)
    assert head.state_ is before


def test_means_of_transformed_features_move_by_the_drift_of_transformed_features():
    X = np.random.default_rng(0).random((40, 5))
    head = heads.make("fecam", tukey=0.5, l2=None).fit(X, np.arange(40) % 4)
    before = HEADS["fecam"](head.state_)
    move_means(head, lambda means, transform: np.zeros_like(means) + transform(X * 4).mean(0))
    np.testing.assert_allclose(HEADS["fecam"](head.state_), before + 2 * np.sqrt(X).mean(0))


def test_means_follow_the_drift_of_the_new_images():
    train_data, _ = tasks()
    options = {"optimizer": "recipe", "sigma": float("inf"), "regularizer": "ft"}
    learner = learned("sdc", 1, **options)
    before = learner.kept["statistics"]["means"].clone().numpy()
    old = embeddings(learner, train_data[1])
    finish(learner, train_data[1])
    drift = (embeddings(learner, train_data[1]) - old).mean(0)
    assert np.abs(drift).max() > 5e-5
    kept = learner.kept["statistics"]["means"].numpy()
    np.testing.assert_allclose(kept[:2], before + drift, atol=1e-6)
    fixed = learned("sdc", 2, **options, compensate=False)
    np.testing.assert_array_equal(fixed.kept["statistics"]["means"].numpy()[:2], before)


def test_regularizers_hold_the_network():
    train_data, _ = tasks()

    def drift(**options):
        longer = replace(RECIPE, later=replace(PLAN, epochs=8))
        learner = learned("sdc", 1, longer, learning_rate=1e-3, **options)
        old = embeddings(learner, train_data[1])
        finish(learner, train_data[1])
        return float(np.square(embeddings(learner, train_data[1]) - old).mean())

    free = drift(regularizer="ft")
    assert drift(regularizer="lwf") < 0.5 * free
    assert drift(regularizer="ewc", weight=1e9) < 0.5 * free
    assert drift(regularizer="lwf", weight=0.0) == free == drift(regularizer="ewc", weight=0.0)


def test_the_importance_is_the_mean_squared_gradient_of_batches():
    images = TrainingImages(tasks()[0][0], PLAIN)
    torch.manual_seed(0)
    network = tiny()
    state = [value.clone() for value in network.state_dict().values()]
    options = {"samples": 24, "batch": 8, "margin": 0.5, "device": torch.device("cpu")}
    ours = metric_importance(network, images, torch.Generator().manual_seed(3), **options)
    assert same(state, network.state_dict().values())
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(3))[:24]
    pixels = torch.cat([x for _, x in images.eval_batches(64)])
    expected = torch.zeros_like(network.conv1.weight)
    for rows in order.split(8):
        network.zero_grad()
        embedded = functional.normalize(network(pixels[rows]))
        triplet_loss(embedded, images.labels[rows], 0.5).backward()
        expected += network.conv1.weight.grad**2 / 3
    torch.testing.assert_close(ours["conv1.weight"], expected, rtol=1e-4, atol=1e-8)


def test_the_first_task_of_sdc_is_plain_or_has_triplets():
    assert not make("sdc").first_task_settings()
    assert make("sdc", first_task="triplet").first_task_settings()
    learner = learned("sdc", 1, first_task="triplet")
    assert same(learner.classifier.state_dict().values(), untrained_classifier())
    assert "classifier" not in learner.memory()


def untrained_classifier():
    torch.manual_seed(PLAN.seed)
    network = tiny()
    return torch.nn.Linear(network.n_features, 2).state_dict().values()


def test_sdc_needs_two_classes_per_task():
    learner = learned("sdc", 1, QUICK)
    with pytest.raises(TrainingError, match=r"task 2 has one class.*ft-frozen"):
        finish(learner, one_class())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sdc", {"regularizer": "mas"}, "regularizer='mas' must be one of"),
        ("sdc", {"sigma": 0}, "sigma=0"),
        ("sdc", {"first_task": "ce"}, "first_task='ce'"),
        ("muc", {"unlabelled": None}, "unlabelled=None: muc needs the name of a data set"),
        ("muc", {"sides": 1}, "sides=1"),
        ("muc", {"side_epochs": 0}, "side_epochs=0"),
        ("l2p", {"top": 11}, r"top=11.*1 to 10 \(pool\)"),
        ("l2p", {"prompts_per": "task"}, "prompts_per='task'"),
        ("l2p", {"key_weight": -1}, "key_weight=-1"),
    ],
)
def test_options_out_of_range_are_rejected(name, options, message):
    with pytest.raises(FecamError, match=message):
        make(name, **options)


# -- MUC -------------------------------------------------------------------------------------------


def test_the_discrepancy_is_the_sum_over_pairs():
    logits = torch.randn(3, 5, 4)
    p = logits.softmax(2)
    expected = sum((p[i] - p[j]).abs().mean() for i, j in ((0, 1), (0, 2), (1, 2)))
    torch.testing.assert_close(discrepancy(logits), expected)
    assert discrepancy(logits[:1].expand(3, -1, -1)) == 0


def test_side_classifiers_agree_about_the_task_and_not_about_other_images():
    torch.manual_seed(0)
    labels = torch.arange(2).repeat(50)
    features = torch.randn(100, 6) + 3 * labels[:, None] * torch.eye(6)[0]
    others = torch.randn(60, 6) + 4 * torch.eye(6)[3]
    options = {"count": 3, "seed": 0, "batch_size": 25}
    sides = train_side_classifiers(features, labels, others, epochs=30, **options)
    assert len(sides) == 3
    with torch.no_grad():
        own, other = (torch.stack([side(x) for side in sides]) for x in (features, others))
    assert (own.argmax(2) == labels).float().mean() > 0.9
    assert discrepancy(other) > 2 * discrepancy(own)
    again = train_side_classifiers(features, labels, others, epochs=30, **options)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(sides, again, strict=True))


def test_muc_keeps_the_side_classifiers_of_the_last_task():
    learner = learned("muc", 3, QUICK, side_epochs=2)
    kept = learner.kept["side classifiers"]
    width = learner.network.n_features
    assert {name: tuple(value.shape) for name, value in kept.items()} == {
        f"{part} {k}": shape
        for k in range(3)
        for part, shape in (("weight", (2, width)), ("bias", (2,)))
    }
    assert learner.memory()["side classifiers"] == 3 * 2 * (width + 1) * 4


def test_the_result_names_the_unlabelled_images():
    learner = learned("muc", 1, QUICK, side_epochs=1)
    assert learner.options()["unlabelled"] == "digits"
    assert learner.describe()["unlabelled"] == "auto"
    named = learned("muc", 1, QUICK, side_epochs=1, unlabelled="glyphs")
    assert named.options()["unlabelled"] == "glyphs"
    with pytest.raises(FecamError, match="Did you mean 'digits'"):
        learned("muc", 1, QUICK, unlabelled="digit")


def test_muc_rejects_its_own_images_and_one_class():
    digits = replace(signs(classes=6), name="digits")
    with pytest.raises(TrainingError, match="unlabelled='digits' is the data set of the tasks"):
        finish(make("muc", unlabelled="digits").start(QUICK), digits)
    with pytest.raises(TrainingError, match=r"one class.*or lwf"):
        finish(make("muc").start(QUICK), one_class())


def test_losses_of_muc_have_the_weights_of_the_task():
    """The second task has a = 1 / 2, the third 2 / 3; distillation starts at the entropy."""
    train_data, _ = tasks()
    still = replace(QUICK, later=replace(PLAN, epochs=1, learning_rate=1e-20))
    learner = learned("muc", 1, still, side_epochs=1, batch_norm="frozen")
    for data, share in zip(train_data[1:], (1 / 2, 2 / 3), strict=True):
        features = torch.from_numpy(learner.features(data))
        kept = learner.kept["side classifiers"]
        sides = [features @ kept[f"weight {k}"].T + kept[f"bias {k}"] for k in range(3)]
        expected = {
            "distillation": entropy(learner.scores(features).detach()),
            "side distillation": sum(entropy(side) for side in sides) / 3,
        }
        record = finish(learner, data)[-1]
        assert record.losses == pytest.approx(
            {name: share * value for name, value in expected.items()}, rel=1e-4
        )


def entropy(logits):
    p = (logits / 2).softmax(1)
    return float(-(p * p.log()).sum(1).mean())


# -- L2P -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit") / "tiny"
    write_vision(folder, "vit")
    return folder


def transformer_recipe(folder):
    plan = replace(PLAN, epochs=4, optimizer="adam", learning_rate=0.03, weight_decay=0.0, clip=1.0)
    network = partial(load_transformer, folder)
    return replace(RECIPE, network=network, first=plan, later=plan, preprocessing=steps())


def steps():
    return replace(PLAIN, size=SIDE, resize=0)


SMALL = {"pool": 4, "length": 2, "top": 2}


def taught(name, data, recipe, **options):
    learner = make(name, **options).start(recipe)
    for task in data:
        finish(learner, task)
    return learner


def test_l2p_trains_prompts_and_not_the_transformer(transformer):
    train_data, test = tasks(side=SIDE)
    before = load_transformer(transformer).vit.state_dict()
    learner = taught("l2p", train_data[:2], transformer_recipe(transformer), **SMALL)
    assert same(before.values(), learner.network.vit.state_dict().values())
    first = make("l2p", **SMALL).start(transformer_recipe(transformer))
    records = finish(first, train_data[0])
    assert records[-1].loss < records[0].loss
    assert not torch.equal(first.network.pool.prompts, learner.network.pool.prompts)
    alone = [int(learner.predict(test.subset([row]))[0]) for row in range(8)]
    assert alone == learner.predict(test.subset(range(8))).tolist()


def test_l2p_goes_on_from_a_file(transformer, tmp_path):
    train_data, _ = tasks(side=SIDE)
    recipe = transformer_recipe(transformer)
    learner = taught("l2p", train_data[:1], recipe, **SMALL)
    learner.save(tmp_path / "state.safetensors")
    again = make("l2p", **SMALL).start(recipe)
    again.load(tmp_path / "state.safetensors")
    for each in (learner, again):
        finish(each, train_data[1])
    assert same(tensors(learner).values(), tensors(again).values())


def test_the_loss_of_the_keys_is_minus_the_sum_of_cosines(transformer):
    train_data, _ = tasks(side=SIDE)
    recipe = transformer_recipe(transformer)
    record = finish(make("l2p", **SMALL).start(recipe), train_data[0])[-1]
    assert -2 <= record.losses["keys"] < 0
    free = finish(make("l2p", **SMALL, key_weight=0.0).start(recipe), train_data[0])[-1]
    assert not free.losses


def test_l2p_rejects_other_networks_and_folders(tmp_path):
    with pytest.raises(TrainingError, match="ResNet18 is not a vision transformer"):
        finish(make("l2p").start(QUICK), tasks()[0][0])
    with pytest.raises(EncoderError, match="does not hold a vision transformer"):
        load_transformer(tmp_path)


@pytest.mark.parametrize("name", ["ft", "ft-frozen", "lwf", "ewc", "joint"])
def test_other_learners_train_a_transformer_too(name, transformer):
    train_data, test = tasks(side=SIDE)
    plan = replace(PLAN, epochs=1, learning_rate=0.01)
    recipe = replace(transformer_recipe(transformer), first=plan, later=plan)
    learner = taught(name, train_data[:2], recipe)
    assert set(learner.predict(test).tolist()) <= set(learner.classes)
