"""The training loop: what it computes, what it survives, and what can be built on it."""

from __future__ import annotations

import copy
import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders import augmentation, first_task
from fecam.encoders.augmentation import AUGMENTATIONS, Augmentation
from fecam.encoders.classifiers import CosineClassifier, LinearClassifier, grown, new_classifier
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import ResNet18, load_encoder, read_tensors, write_tensors
from fecam.encoders.training import evaluate, train
from fecam.encoders.training_hooks import Hooks
from fecam.encoders.training_images import TrainingImages
from fecam.encoders.training_plan import TrainingPlan, learning_rate
from fecam.errors import ItemError, TrainingError


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Networks this small are slower on several cores, and much slower if those are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PLAIN = ImagePreprocessing(size=8, mean=(0.5,) * 3, std=(0.25,) * 3)
PLAN = TrainingPlan(epochs=3, batch_size=16, learning_rate=0.05, classifier="linear")


def signs(classes=4, per_class=24, side=8, seed=0, bad=()):
    """Images that show their class: a bright bar at a place of its own, in noise."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(classes), per_class)
    pixels = rng.integers(0, 90, (len(labels), side, side, 3), np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        start = label // 2 * 2 + 1
        if label % 2:
            image[:, start : start + 2] += 150
        else:
            image[start : start + 2] += 150
    items = [ItemError(f"{i}.png", "torn") if i in bad else pixels[i] for i in range(len(labels))]
    return Dataset(
        name="signs",
        kind="images",
        items=Items(items),
        labels=labels,
        label_names=tuple(f"sign {i}" for i in range(classes)),
        fingerprint=fingerprint_of([pixels, labels, str(bad)]),
        is_test=np.arange(len(labels)) >= len(labels) * 3 // 4,
    )


class Items(list):
    def __getitem__(self, at):
        item = super().__getitem__(at)
        if isinstance(item, Exception):
            raise item
        return item


def fresh(classes=4, width=2, seed=0, kind="linear"):
    torch.manual_seed(seed)
    network = ResNet18(width=width)
    return network, new_classifier(kind, network.feature_size, classes)


def run(plan=PLAN, data=None, outputs=4, hooks=None, **options):
    """Train a fresh network; returns it with its classifier and the records."""
    images = TrainingImages(signs() if data is None else data, PLAIN)
    network, classifier = fresh(outputs)
    records = list(train(network, classifier, images, plan, hooks=hooks, **options))
    return network, classifier, records


def weights(*modules):
    return [tensor.clone() for module in modules for tensor in module.state_dict().values()]


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --------------------------------------------------------------------------------- the schedule


def literal_rates(epochs, steps, rate, warmup, milestones=(), decay=0.1):
    rates, warm = [], []
    for _ in range(warmup * steps):
        warm.append(rate * (len(warm) + 1) / (warmup * steps))
    for epoch in range(warmup, epochs):
        for step in range(steps):
            now = rate
            if milestones:
                for milestone in milestones:
                    if epoch >= milestone:
                        now = now * decay
            else:
                done = (epoch - warmup) * steps + step
                now = 0.5 * rate * (1 + math.cos(math.pi * done / ((epochs - warmup) * steps)))
            rates.append(now)
    return warm + rates


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("milestones", [(), (4,), (4, 6)])
def test_the_rate_is_the_literal_schedule(warmup, milestones):
    plan = TrainingPlan(
        epochs=8, learning_rate=0.3, warmup_epochs=warmup, milestones=milestones, decay=0.2
    )
    ours = [learning_rate(plan, step, 5) for step in range(40)]
    assert ours == pytest.approx(literal_rates(8, 5, 0.3, warmup, milestones, 0.2))


def test_the_loop_follows_the_schedule_and_the_plan_to_the_letter():
    """Two epochs against SGD written out, without shuffling to speak of: one batch an epoch."""
    plan = replace(
        PLAN, epochs=2, batch_size=96, weight_decay=0.01, label_smoothing=0.1, warmup_epochs=1
    )
    data = signs()
    network, classifier = fresh()
    slow, slow_classifier = copy.deepcopy(network), copy.deepcopy(classifier)
    images = TrainingImages(data, PLAIN)
    records = list(train(network, classifier, images, plan))
    batch = np.stack([data.items[i] for i in range(96)]).transpose(0, 3, 1, 2)
    batch = (torch.from_numpy(batch).float() / 255 - 0.5) / 0.25
    labels = torch.from_numpy(data.labels)
    parameters = [*slow.parameters(), *slow_classifier.parameters()]
    buffers = [torch.zeros_like(parameter) for parameter in parameters]
    for epoch, rate in enumerate(literal_rates(2, 1, 0.05, 1)):
        target = torch.full((96, 4), 0.1 / 4)
        target[torch.arange(96), labels] += 0.9
        loss = -(target * slow_classifier(slow(batch)).log_softmax(1)).sum(1).mean()
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, buffer, gradient in zip(parameters, buffers, gradients, strict=True):
            buffer.mul_(0.9).add_(gradient + 0.01 * parameter.detach())
            parameter.data.sub_(rate * buffer)
        assert records[epoch].learning_rate == pytest.approx(rate)
        assert records[epoch].loss == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(network.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"epochs": 5, "warmup_epochs": 5},
        {"milestones": (5, 3)},
        {"milestones": (300,)},
        {"label_smoothing": 1.0},
        {"scale": 0.0},
        {"classifier": "nearest"},
        {"seed": -1},
        {"seed": 1.5},
        {"epochs": "ten"},
        {"learning_rate": "fast"},
        {"milestones": 3},
        {"milestones": "35"},
        {"augmentation": "flip"},
        {"mixed_precision": "yes"},
    ],
)
def test_impossible_plans_are_refused_by_name(wrong):
    name = list(wrong)[-1]
    with pytest.raises(TrainingError, match=f"{name} = .* must be"):
        TrainingPlan(**wrong)


# ------------------------------------------------------------------------------ the augmentation


def pixels_that_tell_their_place(count=6, side=8):
    """Every pixel of every image has a value of its own, and none is 0."""
    values = torch.arange(1, 1 + count * 3 * side * side, dtype=torch.int32)
    return values.reshape(count, 3, side, side)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_window_is_part_of_the_padded_image():
    images = pixels_that_tell_their_place(64)
    windows = augmentation.random_windows(images, 8, 2, seeded())
    padded = functional.pad(images, (2, 2, 2, 2))
    places = set()
    for image, window in zip(padded, windows, strict=True):
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if torch.equal(image[:, top : top + 8, left : left + 8], window)
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 15  # of 25


def test_a_window_larger_than_the_image_is_refused():
    with pytest.raises(TrainingError, match="16 by 16"):
        augmentation.random_windows(pixels_that_tell_their_place(), 16, 2, seeded())


def test_a_flip_mirrors_left_to_right_half_of_the_time():
    images = pixels_that_tell_their_place(100)
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


def test_boxes_lie_inside_and_have_the_area_asked_for():
    boxes = augmentation.random_boxes(500, (0.2, 0.5), 4 / 3, seeded())
    assert (boxes >= 0).all() and (boxes <= 1 + 1e-6).all()
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = width * height, width / height
    assert area.min() > 0.199 and area.max() < 0.501 and area.max() - area.min() > 0.25
    assert ratio.min() > 0.749 and ratio.max() < 1.334
    whole = augmentation.random_boxes(50, (1.0, 1.0), 2.0, seeded())
    assert (whole >= 0).all() and (whole <= 1 + 1e-6).all()


def test_a_box_scaled_shows_what_is_in_the_box():
    images = torch.rand(2, 3, 8, 8)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
    torch.testing.assert_close(augmentation.resized_boxes(images, whole, 8), images)
    quarter = torch.tensor([[0.5, 0.0, 1.0, 0.5]] * 2)  # right, top
    torch.testing.assert_close(
        augmentation.resized_boxes(images, quarter, 4), images[:, :, :4, 4:], atol=1e-5, rtol=1e-5
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
    assert Augmentation.from_dict(json.loads(json.dumps(augment.as_dict()))) == augment


def test_signs_are_never_mirrored():
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
def test_impossible_augmentations_are_refused(wrong):
    with pytest.raises(TrainingError, match="must be"):
        Augmentation(**wrong)


# ------------------------------------------------------------------------------- the classifiers


def test_cosine_logits_ignore_length_and_stay_within_the_scale():
    classifier = CosineClassifier(8, 3, scale=5.0)
    features = torch.randn(10, 8)
    torch.testing.assert_close(classifier(features), classifier(7 * features))
    assert classifier(features).abs().max() <= 5
    assert classifier(classifier.weight)[1, 1].item() == pytest.approx(5)
    assert len(list(classifier.parameters())) == 2  # the scale is learnt


@pytest.mark.parametrize("kind", [CosineClassifier, LinearClassifier])
def test_a_classifier_that_grows_names_old_classes_as_before(kind):
    old = kind(8, 3)
    larger = grown(old, 5)
    features = torch.randn(4, 8)
    assert larger(features).shape == (4, 5)
    torch.testing.assert_close(larger(features)[:, :3], old(features))
    with pytest.raises(TrainingError, match="cannot grow to 2"):
        grown(old, 2)
    assert new_classifier("cosine", 8, 3, scale=4.0).scale.item() == 4
    with pytest.raises(TrainingError, match="round"):
        new_classifier("round", 8, 3)


# ----------------------------------------------------------------------------------- it learns


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_it_learns_easy_images(kind):
    data = signs(classes=6, per_class=32)
    train_images = TrainingImages(data.subset(data.train), PLAIN)
    test_images = TrainingImages(data.subset(data.test), PLAIN)
    network, classifier = fresh(6, width=4, kind=kind)
    plan = replace(PLAN, epochs=12, learning_rate=0.1, classifier=kind)
    ticks = []
    records = list(
        train(network, classifier, train_images, plan, test=test_images, progress=ticks.append)
    )
    assert records[-1].loss < records[0].loss and records[-1].accuracy > 0.95
    assert records[-1].test_accuracy > 0.95
    assert evaluate(network, classifier, test_images, range(6)) == records[-1].test_accuracy
    assert [record.epoch for record in records] == list(range(1, 13))
    assert records[0].remaining > 0 and records[-1].remaining == 0
    assert all(record.seconds > 0 and record.images == 144 for record in records)
    assert [tick.batches for tick in ticks[:9]] == list(range(1, 10)) and ticks[0].of == 9
    assert ticks[8].loss == records[0].loss and ticks[8].accuracy == records[0].accuracy
    assert ticks[0].remaining > ticks[-1].remaining == 0


@pytest.mark.parametrize(("every", "tested"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_the_test_comes_every_so_often_and_at_the_end(every, tested):
    images = TrainingImages(signs(), PLAIN)
    records = run(test=images, test_every=every)[2]
    assert [r.epoch for r in records if r.test_accuracy is not None] == tested


def test_labels_are_mapped_to_outputs_in_the_order_of_classes():
    data = signs().subset(np.isin(signs().labels, [1, 3]))
    seen = []

    def look(step):
        seen.append((step.rows, step.labels, step.logits.shape, step.features.shape))
        return step.logits.sum() * 0

    run(replace(PLAN, epochs=1), data, 2, Hooks(losses={"look": look}), classes=[3, 1])
    for rows, labels, logits, features in seen:
        assert labels.tolist() == [0 if data.labels[row] == 3 else 1 for row in rows]
        assert logits == (len(rows), 2) and features == (len(rows), 16)
    assert sorted(torch.cat([rows for rows, *_ in seen]).tolist()) == list(range(len(data)))


def test_classes_that_do_not_fit_the_data_are_refused():
    with pytest.raises(TrainingError, match="sign 2"):
        _with_classes([0, 1])
    with pytest.raises(TrainingError, match="different labels"):
        _with_classes([0, 1, 2, 2, 3])
    with pytest.raises(TrainingError, match="from 0 to 3"):
        _with_classes([0, 1, 2, 3, 4])


def _with_classes(classes):
    images = TrainingImages(signs(), PLAIN)
    train(*fresh(), images, PLAN, classes=classes)


def test_batches_are_even_and_none_is_left_with_one_image():
    sizes = []

    def look(step):
        sizes.append(len(step.labels))
        return step.logits.sum() * 0

    run(replace(PLAN, epochs=1, batch_size=19), hooks=Hooks(losses={"look": look}))
    assert sum(sizes) == 96 and max(sizes) <= 19 and max(sizes) - min(sizes) <= 1


def test_divergence_is_an_error_that_says_what_to_do():
    def broken(step):
        return step.logits.sum() * math.nan

    with pytest.raises(TrainingError, match="Lower the learning rate"):
        run(hooks=Hooks(losses={"broken": broken}))
    with pytest.raises(TrainingError, match="Lower the learning rate"):
        run(replace(PLAN, learning_rate=1e30, epochs=1))

    def burst(step):
        step.classifier.weight.grad.fill_(math.inf)

    with pytest.raises(TrainingError, match="Lower the learning rate"):  # no loss has seen it yet
        run(replace(PLAN, epochs=1, batch_size=96), hooks=Hooks(backward=[burst]))


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="2 outputs for 4"):
        run(outputs=2)
    with pytest.raises(TrainingError, match="'total'"):
        run(hooks=Hooks(losses={"total": lambda step: step.logits.sum()}))
    with pytest.raises(TrainingError, match="settings"):
        run(hooks=Hooks(settings={"teacher": object()}))
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="was not written"):  # before anything is trained
        train(*fresh(), TrainingImages(signs(), PLAIN), PLAN, checkpoint=tmp_path / "file" / "x")


def test_texts_cannot_be_trained_on_and_one_image_is_too_few():
    texts = Dataset("fruit", "texts", ["a", "b"], [0, 1], ("apple", "pear"), "f")
    with pytest.raises(TrainingError, match="'fruit' holds texts"):
        TrainingImages(texts, PLAIN)
    with pytest.raises(TrainingError, match="1 images"):
        run(data=signs().subset(np.array([0])))


# ------------------------------------------------------------------------------------ bad images


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_images_that_cannot_be_read_are_left_out_and_counted(memory):
    data = signs(bad=(3, 17, 90))
    images = TrainingImages(data, PLAIN, memory=memory)
    network, classifier = fresh()
    records = list(train(network, classifier, images, PLAN))
    assert [record.skipped for record in records] == [3, 3, 3]
    assert [record.images for record in records] == [93, 93, 93]
    assert sorted(images.skipped) == [3, 17, 90] and "torn" in images.skipped[17]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
@pytest.mark.parametrize("workers", [0, 2])
def test_images_read_each_time_train_as_those_in_memory(workers):
    results = []
    for options in ({}, {"memory": 0, "workers": workers}):
        images = TrainingImages(signs(), PLAIN, **options)
        network, classifier = fresh()
        list(train(network, classifier, images, replace(PLAN, epochs=1)))
        results.append(weights(network, classifier))
    assert same(*results)


def test_no_readable_image_at_all_is_an_error():
    data = signs(per_class=2, bad=range(8))
    with pytest.raises(TrainingError, match="0 images"):
        run(data=data)
    images = TrainingImages(data, PLAIN, memory=0)
    with pytest.raises(TrainingError, match="torn"):
        list(train(*fresh(), images, PLAN))
    with pytest.raises(TrainingError, match="can be read"):
        evaluate(*fresh(), images, range(4))


# -------------------------------------------------------------------------- seeds and resumption


AUGMENTED = replace(PLAN, augmentation=Augmentation(padding=2, flip=True, brightness=0.2))


def test_the_seed_decides_everything_and_nobody_elses_randomness_is_touched():
    torch.manual_seed(1)
    first = run(AUGMENTED)
    torch.manual_seed(2)
    images = TrainingImages(signs(), PLAIN)
    modules = fresh()
    state = torch.get_rng_state()
    list(train(*modules, images, AUGMENTED))
    assert torch.equal(torch.get_rng_state(), state)
    assert same(weights(*first[:2]), weights(*modules))
    other = run(replace(AUGMENTED, seed=1))
    assert not same(weights(*first[:2]), weights(*other[:2]))


class Dropped(torch.nn.Module):
    """A head that draws at random and counts the batches it has seen."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, features):
        self.seen += 1
        return self.layer(functional.dropout(features, 0.5, self.training))


def with_head():
    torch.manual_seed(5)
    head = Dropped()

    def loss(step):
        return functional.cross_entropy(step.heads["extra"](step.features), step.labels)

    return head, Hooks(losses={"extra": loss}, heads={"extra": head})


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_resumed_ends_with_the_same_weights_to_the_bit(tmp_path, stop):
    whole_head, hooks = with_head()
    whole = run(AUGMENTED, hooks=hooks)
    path = tmp_path / "training.safetensors"
    images = TrainingImages(signs(), PLAIN)
    _, hooks = with_head()
    begun = train(*fresh(), images, AUGMENTED, hooks=hooks, checkpoint=path)
    early = [next(begun) for _ in range(stop)]
    head, hooks = with_head()
    resumed = run(AUGMENTED, hooks=hooks, checkpoint=path)
    assert same(weights(*whole[:2], whole_head), weights(*resumed[:2], head))
    assert int(head.seen) == 18
    assert [record.restored for record in resumed[2]] == [i < stop for i in range(3)]
    assert [replace(r, restored=False) for r in resumed[2][:stop]] == early
    assert [r.loss for r in resumed[2]] == [r.loss for r in whole[2]]
    assert [r.losses["extra"] for r in resumed[2]] == [r.losses["extra"] for r in whole[2]]


KILLED = """
import sys, time
sys.path[:0] = {tests!r}
from test_training import AUGMENTED, PLAIN, TrainingImages, fresh, replace, signs, torch, train
torch.set_num_threads(1)
def slowly(progress):
    print(progress.epoch, progress.batches, flush=True)
    time.sleep(0.01)
for record in train(*fresh(), TrainingImages(signs(), PLAIN), replace(AUGMENTED, epochs=6),
                    checkpoint={path!r}, progress=slowly):
    pass
"""


def test_a_run_killed_in_the_middle_of_an_epoch_ends_with_the_same_weights(tmp_path):
    path = tmp_path / "training.safetensors"
    script = KILLED.format(
        tests=[str(parent) for parent in Path(__file__).parents[:2]], path=str(path)
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        for line in process.stdout:
            if line.strip() == "3 4":
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
    plan = replace(AUGMENTED, epochs=6)
    network, classifier, records = run(plan, checkpoint=path)
    assert [record.restored for record in records] == [True] * 2 + [False] * 4
    assert same(weights(network, classifier), weights(*run(plan)[:2]))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"plan": replace(PLAN, learning_rate=0.07)}, r"plan.learning_rate \(0.05 there, 0.07 "),
        ({"plan": replace(PLAN, epochs=4)}, "plan.epochs"),
        ({"plan": replace(PLAN, augmentation=Augmentation(padding=1))}, "plan.augmentation"),
        ({"data": signs(seed=9)}, "data set"),
        ({"outputs": 5}, "the layer classifier.weight"),
        ({"hooks": Hooks(settings={"task": 2})}, r"settings.task \(none there, 2 here"),
        ({"hooks": Hooks(losses={"zero": lambda step: step.logits.sum() * 0})}, "extra losses"),
        ({"hooks": Hooks(heads={"x": torch.nn.Linear(2, 2)})}, "the layer heads.x.weight"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path, other, said):
    path = tmp_path / "training.safetensors"
    run(checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=said) as caught:
        run(**other, checkpoint=path)
    assert "another folder, or delete" in str(caught.value)
    assert path.read_bytes() == before


def test_a_checkpoint_from_other_starting_weights_is_refused(tmp_path):
    path = tmp_path / "training.safetensors"
    run(checkpoint=path)
    with pytest.raises(TrainingError, match="starting weights"):
        train(*fresh(seed=1), TrainingImages(signs(), PLAIN), PLAN, checkpoint=path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: data[:-20] + bytes([data[-20] ^ 4]) + data[-19:],
        lambda _: b"",
        lambda _: b"\xff" * 100,
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    path = tmp_path / "training.safetensors"
    run(replace(PLAN, epochs=1), checkpoint=path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TrainingError, match=r"training\.safetensors"):
        run(replace(PLAN, epochs=1), checkpoint=path)


@pytest.mark.parametrize(
    "state",
    ["[]", "nonsense", "{}", '{"identity": {}, "records": [{}]}', "[" * 100_000],
)
def test_a_checkpoint_that_says_nonsense_is_refused(tmp_path, state):
    path = tmp_path / "training.safetensors"
    run(replace(PLAN, epochs=1), checkpoint=path)
    tensors, _ = read_tensors(path, "fecam training 1", TrainingError)
    write_tensors(path, tensors, {"state": state}, "fecam training 1", TrainingError)
    with pytest.raises(TrainingError, match="Delete it"):
        run(replace(PLAN, epochs=1), checkpoint=path)


def test_a_layer_missing_from_a_checkpoint_is_named(tmp_path):
    path = tmp_path / "training.safetensors"
    run(replace(PLAN, epochs=1), checkpoint=path)
    tensors, words = read_tensors(path, "fecam training 1", TrainingError)
    del tensors["network.conv1.weight"]
    write_tensors(path, tensors, words, "fecam training 1", TrainingError)
    with pytest.raises(TrainingError, match=r"network\.conv1\.weight"):
        run(replace(PLAN, epochs=1), checkpoint=path)


# -------------------------------------------------------------------- hooks, and learners of them


def distance(old, network):
    return sum(
        float((old[name] - value.detach()).square().sum())
        for name, value in network.named_parameters()
    )


def test_hooks_are_called_in_order_once_each_epoch():
    calls = []
    hooks = Hooks(
        epoch_start=[lambda modules: calls.append(("start", modules.epoch))],
        epoch_end=[lambda modules: calls.append(("end", modules.epoch))],
        backward=[lambda step: calls.append(("backward", step.epoch))],
    )
    run(replace(PLAN, epochs=2, batch_size=96), hooks=hooks)
    assert calls == [(what, epoch) for epoch in (0, 1) for what in ("start", "backward", "end")]


def test_gradients_can_be_changed_before_the_update():
    def freeze(step):
        for parameter in step.network.parameters():
            parameter.grad.zero_()

    before, _ = fresh()
    network, classifier, _ = run(replace(PLAN, weight_decay=0.0), hooks=Hooks(backward=[freeze]))
    assert same(list(before.parameters()), list(network.parameters()))
    assert not torch.equal(classifier.weight, fresh()[1].weight)


def test_parameters_that_need_no_gradient_stay():
    network, classifier = fresh()
    for parameter in network.layer1.parameters():
        parameter.requires_grad_(False)
    before = copy.deepcopy(network.layer1)
    list(train(network, classifier, TrainingImages(signs(), PLAIN), PLAN))
    assert same(list(before.parameters()), list(network.layer1.parameters()))


def test_the_loss_can_be_replaced_and_the_batch_too():
    seen = []

    def turned(images, labels, generator):
        quarter = int(torch.randint(4, (), generator=generator))
        return torch.cat([images, images.rot90(quarter, (2, 3))]), torch.cat([labels, labels])

    def binary(step):
        seen.append(len(step.images))
        target = functional.one_hot(step.labels, 4).float()
        return functional.binary_cross_entropy_with_logits(step.logits, target)

    _, _, records = run(hooks=Hooks(loss=binary, batch=turned))
    assert seen[0] == 32 and records[0].images == 192
    assert records[0].loss < 1 < run()[2][0].loss
    assert records[0].losses == {}


def test_outputs_outside_the_range_are_not_touched():
    data = signs().subset(signs().labels >= 2)
    plan = replace(PLAN, weight_decay=0.0)
    untouched = fresh()[1].weight[:2]
    _, ranged, _ = run(plan, data, 4, Hooks(outputs=range(2, 4)), classes=range(4))
    assert torch.equal(ranged.weight[:2], untouched)
    _, plain, _ = run(plan, data, 4, classes=range(4))
    assert not torch.equal(plain.weight[:2], untouched)


def learn_tasks(tasks, penalty=0.0, distillation=0.0, folder=None):
    """A learner over many tasks: old weights and old answers are held on to, both as losses."""
    data, network, classifier, seen = signs(), fresh()[0], None, []
    measured = {}
    for number, task in enumerate(tasks):
        torch.manual_seed(number)
        seen = [*seen, *task]
        size = network.feature_size
        classifier = (
            grown(classifier, len(seen)) if classifier else LinearClassifier(size, len(seen))
        )
        losses, start = {}, []
        if number:
            start = [lambda modules: modules.network.eval()]  # statistics of batches stay, too
            old = {name: value.detach().clone() for name, value in network.named_parameters()}
            teacher = copy.deepcopy(torch.nn.Sequential(network, classifier)).eval()
            known = len(seen) - len(task)

            def stay(step, old=old):
                return penalty * sum(
                    (value - old[name]).square().sum()
                    for name, value in step.network.named_parameters()
                )

            def recall(step, teacher=teacher, known=known):
                with torch.no_grad():
                    wanted = teacher(step.images)[:, :known].softmax(1)
                return distillation * functional.cross_entropy(step.logits[:, :known], wanted)

            losses = {"stay": stay, "recall": recall}
        settings = {"task": number, "penalty": penalty, "distillation": distillation}
        hooks = Hooks(losses=losses, epoch_start=start, settings=settings)
        images = TrainingImages(data.subset(np.isin(data.labels, task)), PLAIN)
        checkpoint = folder and folder / f"task-{number}.safetensors"
        records = list(
            train(
                network, classifier, images, PLAN, classes=seen, hooks=hooks, checkpoint=checkpoint
            )
        )
        if number:
            measured["moved"] = distance(old, network)
            measured["records"] = records
            with torch.no_grad():
                _, batch = next(images.plain(64))
                now, then = classifier(network.eval()(batch)), teacher(batch)
                change = now[:, :known].softmax(1) - then[:, :known].softmax(1)
                measured["drift"] = change.abs().mean().item()
    return network, classifier, measured


def test_a_penalty_holds_weights_and_distillation_holds_answers():
    tasks = [[0, 1], [2, 3]]
    *_, free = learn_tasks(tasks)
    *_, held = learn_tasks(tasks, penalty=3.0)
    *_, taught = learn_tasks(tasks, distillation=5.0)
    assert held["moved"] < 0.5 * free["moved"]
    assert taught["drift"] < 0.7 * free["drift"]
    assert free["records"][-1].losses["stay"] == 0 < held["records"][-1].losses["stay"]


def test_a_learner_of_many_tasks_is_resumed_by_running_it_again(tmp_path):
    tasks = [[0, 1], [2], [3]]
    first = learn_tasks(tasks, penalty=0.5, folder=tmp_path)
    again = learn_tasks(tasks, penalty=0.5, folder=tmp_path)
    assert same(weights(*first[:2]), weights(*again[:2]))
    assert all(record.restored for record in again[2]["records"])
    with pytest.raises(TrainingError, match=r"settings\.penalty"):
        learn_tasks(tasks, penalty=0.6, folder=tmp_path)


# --------------------------------------------------------------------------------- the first task


def test_the_first_task_leaves_an_encoder(tmp_path):
    data = signs(classes=6, per_class=40)
    plan = replace(
        first_task.short_plan(first_task.plan_for("glyphs"), 8),
        batch_size=16,
        augmentation=Augmentation(),  # a bar that is moved becomes another sign
    )
    records = list(first_task.train_first_task(data, [4, 0, 2, 1], plan, folder=tmp_path, width=4))
    assert records[-1].test_accuracy > 0.9
    assert records[-1].images == 4 * 30  # the rows for training, of four classes
    encoder = load_encoder(tmp_path / "encoder.safetensors")
    assert encoder.class_names == ("sign 4", "sign 0", "sign 2", "sign 1")
    features = encoder.encode([data.items[row] for row in range(len(data))])
    assert features.shape == (240, 32) and (features >= 0).all()
    held_out = np.isin(data.labels, [0, 1, 2, 4]) & data.is_test
    means = np.stack([features[~data.is_test & (data.labels == c)].mean(0) for c in range(6)])
    nearest = ((features[:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == data.labels)[held_out].mean() > 0.8
    fingerprint = encoder.fingerprint
    again = list(first_task.train_first_task(data, [4, 0, 2, 1], plan, folder=tmp_path, width=4))
    assert all(record.restored for record in again)
    assert load_encoder(tmp_path / "encoder.safetensors").fingerprint == fingerprint
    with pytest.raises(TrainingError, match="classes"):
        first_task.train_first_task(data, [0, 1, 2, 4], plan, folder=tmp_path, width=4)


def test_colours_are_those_of_the_training_images():
    data = signs()
    images = TrainingImages(data, PLAIN)
    stack = np.stack([data.items[row] for row in range(len(data))]) / 255
    mean, std = first_task.colours(images)
    np.testing.assert_allclose(mean, stack.mean((0, 1, 2)), atol=1e-4)
    np.testing.assert_allclose(std, stack.std((0, 1, 2)), atol=1e-4)


def test_the_paper_s_plan():
    plan = first_task.plan_for("cifar100")
    assert (plan.epochs, plan.learning_rate, plan.batch_size) == (200, 0.1, 128)
    assert (plan.momentum, plan.weight_decay, plan.classifier) == (0.9, 5e-4, "cosine")
    assert plan.augmentation == Augmentation(padding=4, flip=True, brightness=63 / 255)
    assert first_task.plan_for("holidays", 224).augmentation.area is not None
    assert plan.changed({"weight_decay": 1e-4}) == replace(plan, weight_decay=1e-4)
    for name in ("learning_rat", "augmentation"):
        with pytest.raises(TrainingError, match=f"no '{name}'.*It has: .*learning_rate"):
            plan.changed({name: 1})


def test_the_side_of_images_is_theirs_if_it_is_small():
    def of(side, name="holidays"):
        images = [np.zeros((side, side - 2, 3), np.uint8)]
        return Dataset(name, "images", images, np.zeros(1, np.int64), ("a",), "f")

    assert first_task.side_of(of(40)) == 40
    assert first_task.side_of(of(500)) == 224
    assert first_task.side_of(of(500), 128) == 128
    assert first_task.side_of(of(500, "cifar100")) == 32


def test_a_first_task_needs_classes_that_have_images(tmp_path):
    data = signs()
    with pytest.raises(TrainingError, match="two classes"):
        first_task.train_first_task(data, [1], PLAN, folder=tmp_path)
    only_test = replace(data, is_test=np.ones(len(data), bool))
    with pytest.raises(TrainingError, match="no label 4"):
        first_task.train_first_task(data, [0, 4], PLAN, folder=tmp_path)
    with pytest.raises(TrainingError, match="no images for training of 'sign 0'"):
        first_task.train_first_task(only_test, [0, 1], PLAN, folder=tmp_path)
