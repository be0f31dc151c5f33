"""What holds for every learner."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fecam import heads
from fecam.errors import TrainingError
from fecam.learners import available, make
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_learners import (
    GROUPS,
    NAMES,
    RECIPE,
    finish,
    learned,
    new,
    noisy,
    tasks,
    tensors,
    tiny,
)
from helpers.small_networks import PLAIN, PLAN, Items, same, signs

LONGER_FIRST = {"metafscil"}
"""Learners that go on training the network of plain cross-entropy in the first task."""
PLAIN_FIRST = [
    name for name in NAMES if not new(name).first_task_key() and name not in LONGER_FIRST
]


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_is_told_one_task_after_another(name):
    train_data, test = tasks()
    learner = new(name)
    for count, data in enumerate(train_data, start=1):
        records = finish(learner, data)
        if count == 1 or learner.trains_later:
            assert [record.epoch for record in records][-1] == records[-1].epochs
        else:
            assert not records
        seen = tuple(label for group in GROUPS[:count] for label in sorted(group))
        assert learner.classes == seen and learner.n_tasks == count and learner.old is None
        some = test.subset(np.isin(test.labels, seen))
        assert set(learner.predict(some).tolist()) <= set(seen)
        features = learner.features(some)
        assert features.shape[0] == len(some) and features.dtype == np.float32
    memory = learner.memory()
    assert memory["network"] > 0 and all(isinstance(size, int) for size in memory.values())
    assert learner.n_parameters() > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_trains_in_bfloat16(name):
    plan = replace(RECIPE.later, epochs=1, mixed_precision="everywhere")
    # Gradients of oneDNN may be NaN for fewer channels, and for small crops of images of 8 pixels.
    recipe = replace(RECIPE, network=partial(tiny, 16), first=plan, later=plan)
    options = {"crop_size": 1.0} if name == "savc" else {}
    learner = learned(name, 2, recipe, **options)
    values = tensors(learner).values()
    assert all(bool(value.isfinite().all()) for value in values)
    assert not any(value.dtype == torch.bfloat16 for value in values)


@pytest.mark.parametrize("name", NAMES)
def test_images_of_old_tasks_are_never_read_again(name):
    train_data, test = tasks()
    undisturbed = learned(name)
    learner = new(name)
    now = [replace(data, items=Items(list(data.items))) for data in train_data]
    for count, data in enumerate(now):
        finish(learner, data)
        data.items[:] = noisy(train_data[count]).items
    equal = same(tensors(learner).values(), tensors(undisturbed).values())
    assert equal is not make(name).keeps_data, "only a learner that keeps data may notice"
    if equal:
        np.testing.assert_array_equal(learner.predict(test), undisturbed.predict(test))


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_bit_by_bit(name, tmp_path):
    train_data, test = tasks()
    whole, before = learned(name, head="fecam"), learned(name, 2, head="fecam")
    before.save(tmp_path / "state.safetensors", {"note": 1})
    after = new(name, "fecam")
    assert after.load(tmp_path / "state.safetensors", train_data) == {"note": 1}
    assert after.memory() == before.memory() and after.classes == before.classes
    np.testing.assert_array_equal(after.predict(test), before.predict(test))
    finish(after, train_data[2])
    assert same(tensors(after).values(), tensors(whole).values())
    assert same_kept(after.kept, whole.kept)
    np.testing.assert_array_equal(after.predict(test), whole.predict(test))


def same_kept(ours, theirs):
    assert {kind: list(values) for kind, values in ours.items()} == {
        kind: list(values) for kind, values in theirs.items()
    }
    return all(
        torch.equal(value, theirs[kind][key])
        for kind, values in ours.items()
        for key, value in values.items()
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_task_resumes_after_an_epoch(name, tmp_path):
    train_data, _ = tasks()
    task = int(make(name).trains_later)  # the last task that is trained
    whole = learned(name, task + 1)
    checkpoint = tmp_path / "epochs.safetensors"
    next(learned(name, task).learn(train_data[task], checkpoint=checkpoint))
    again = learned(name, task)
    records = finish(again, train_data[task], checkpoint=checkpoint)
    assert [record.restored for record in records][:2] == [True, False]
    assert same(tensors(again).values(), tensors(whole).values())


@pytest.mark.parametrize("name", NAMES)
def test_predictions_depend_neither_on_order_nor_on_the_batch(name):
    learner, (_, test) = learned(name), tasks()
    rows = np.random.default_rng(0).permutation(len(test))
    together = learner.predict(test)
    np.testing.assert_array_equal(learner.predict(test.subset(rows)), together[rows])
    alone = [int(learner.predict(test.subset([row]))[0]) for row in range(6)]
    assert alone == together[:6].tolist()


@pytest.mark.parametrize("name", PLAIN_FIRST)
def test_one_task_is_plain_training(name):
    data = tasks()[0][0]
    learner = learned(name, 1)
    torch.manual_seed(PLAN.seed)
    network = tiny()
    classifier = torch.nn.Linear(network.n_features, 2)
    list(train(network, classifier, TrainingImages(data, PLAIN), PLAN, classes=[0, 1]))
    # A method may change the layers afterwards, as by folding; its features are still these.
    images = [x for _, x in TrainingImages(data, PLAIN).eval_batches(64)]
    with torch.no_grad():
        expected = torch.cat([network.eval()(x) for x in images]).numpy()
    if name == "sdc":  # its features are embeddings of unit length
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    if name == "fecam-moving":  # the first network is the current one
        expected = np.concatenate([expected, expected], axis=1)
    np.testing.assert_allclose(learner.features(data), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", ["fecam", "ncm"])
def test_any_head_is_put_on_any_learner(name, head):
    learner, (_, test) = learned(name, head=head), tasks()
    assert sorted(learner.classes) == learner.head.classes_.tolist()
    assert learner.memory()["statistics"] >= heads.state_nbytes(learner.head) > 0
    features = learner.features(test)
    np.testing.assert_array_equal(learner.predict(test), learner.head.predict(features))


def test_statistics_are_those_at_the_time_of_learning():
    train_data, _ = tasks()
    learner = learned("ft", 1, head="ncm")
    then = learner.features(train_data[0].subset(train_data[0].labels == 1)).mean(0)
    for data in train_data[1:]:
        finish(learner, data)
    now = learner.features(train_data[0].subset(train_data[0].labels == 1)).mean(0)
    mean = learner.head.state_.means[learner.head.classes_.tolist().index(1)]
    np.testing.assert_allclose(mean, then, rtol=1e-5)
    assert not np.allclose(mean, now, rtol=1e-3)
    joint = learned("joint", head="ncm")
    mean = joint.head.state_.means[joint.head.classes_.tolist().index(1)]
    now = joint.features(train_data[0].subset(train_data[0].labels == 1)).mean(0)
    np.testing.assert_allclose(mean, now, rtol=1e-5)


@pytest.mark.parametrize("head", [entry.name for entry in heads.available()])
def test_the_state_of_every_head_can_be_saved(head, tmp_path):
    train_data, test = tasks()
    learner = learned("ft-frozen", 2, head=head)
    learner.save(tmp_path / "state")
    again = new("ft-frozen", head)
    again.load(tmp_path / "state")
    X = learner.features(test)
    np.testing.assert_array_equal(
        again.head.decision_function(X), learner.head.decision_function(X)
    )
    finish(again, train_data[2])
    finish(learner, train_data[2])
    np.testing.assert_array_equal(again.predict(test), learner.predict(test))


def test_the_registry_says_what_each_learner_is():
    for entry in available():
        assert entry.description and entry.keeps and entry.source and entry.verified
        kind = type(make(entry.name))
        assert kind.__doc__ and ".. math::" in kind.__doc__, entry.name


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lfw", {}, "Did you mean 'lwf'"),
        ("lwf", {"wieght": 3}, "Did you mean 'weight'"),
        ("lwf", {"weight": -1.0}, "weight=-1.0 must be"),
        ("lwf", {"temperature": 0.0}, "temperature=0.0 must be"),
        ("ft", {"outputs": "old"}, "outputs='old' must be one of 'new', 'all'"),
        ("ft", {"old_rows": "some"}, "old_rows='some'"),
        ("ft", {"batch_norm": "eval"}, "batch_norm='eval'"),
        ("joint", {"weights": "cold"}, "weights='cold'"),
        ("joint", {"outputs": "new"}, "joint training trains all outputs"),
        ("lwf-mc", {"outputs": "new"}, "of all outputs"),
        ("ewc", {"labels": "drawn"}, "labels='drawn'"),
        ("ewc", {"samples": 0}, "samples=0"),
        ("ewc", {"merge": "mean"}, "merge='mean'"),
        ("nowhere:Class", {}, "cannot be imported"),
        ("fecam.heads.ncm:NearestMean", {}, "must be a subclass"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(TrainingError, match=message):
        make(name, **options)


def test_a_task_with_a_known_label_is_rejected_and_changes_nothing():
    train_data, test = tasks()
    learner = learned("ft", 1)
    before = learner.predict(test)
    with pytest.raises(TrainingError, match=r"'sign 0' \(label 0\), which an earlier task had"):
        next(learner.learn(train_data[0]))
    assert learner.classes == (0, 1)
    np.testing.assert_array_equal(learner.predict(test), before)


def test_nothing_is_predicted_before_a_task():
    with pytest.raises(TrainingError, match="no task yet"):
        make("ft").start(RECIPE).predict(tasks()[1])


def test_an_image_that_cannot_be_read_is_named_when_it_is_to_be_predicted():
    data = signs(classes=6, bad=(3,))
    learner = learned("ft", 1)
    with pytest.raises(TrainingError, match=r"image 3 of 'signs' cannot be read: .*torn"):
        learner.predict(data)


def test_a_loss_that_is_not_finite_is_an_error_with_a_remedy():
    recipe = replace(RECIPE, later=replace(PLAN, learning_rate=1e18))
    with pytest.raises(TrainingError, match="Lower the learning rate"):
        learned("ft", 2, recipe)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make("ft", batch_norm="frozen").start(RECIPE), "batch_norm .running in the file"),
        (lambda: make("lwf").start(RECIPE), "method .FineTuning in the file, LwF now"),
        (lambda: make("ft").start(RECIPE, heads.make("ncm")), "head .None in the file"),
        (lambda: make("ft").start(replace(RECIPE, later=PLAN)), "later_tasks"),
        (lambda: make("ft").start(replace(RECIPE, network=lambda: tiny(4))), "another network"),
    ],
)
def test_the_state_of_another_learner_is_rejected(other, message, tmp_path):
    learned("ft", 1).save(tmp_path / "state")
    with pytest.raises(TrainingError, match=message) as error:
        other().load(tmp_path / "state")
    assert "delete the file" in str(error.value)


def test_the_checkpoint_of_other_settings_is_rejected(tmp_path):
    train_data, _ = tasks()
    next(learned("ft", 1).learn(train_data[1], checkpoint=tmp_path / "c"))
    with pytest.raises(TrainingError, match=r"settings\.learner"):
        next(learned("ft", 1, batch_norm="frozen").learn(train_data[1], checkpoint=tmp_path / "c"))


def test_a_damaged_state_is_rejected(tmp_path):
    path = tmp_path / "state"
    learned("ft", 1).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(TrainingError, match="damaged"):
        make("ft").start(RECIPE).load(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(TrainingError, match="cannot be read"):
        make("ft").start(RECIPE).load(path)
