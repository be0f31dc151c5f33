"""Resuming from a checkpoint gives the same weights; foreign files are rejected."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fecam.encoders.tensor_files import read_tensors, write_tensors
from fecam.errors import TrainingError
from fecam.training.augmentation import Augmentation
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from helpers.small_networks import (
    AUGMENTED,
    PLAIN,
    PLAN,
    fresh,
    run,
    same,
    signs,
    weights,
)


class Dropped(torch.nn.Module):
    """A head with dropout and a counter of batches."""

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
def test_a_resumed_run_gives_identical_weights(tmp_path, stop):
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
from helpers.small_networks import *
torch.set_num_threads(1)
def slowly(progress):
    print(progress.epoch, progress.batch, flush=True)
    time.sleep(0.01)
for record in train(*fresh(), TrainingImages(signs(), PLAIN), replace(AUGMENTED, epochs=6),
                    checkpoint={path!r}, progress=slowly):
    pass
"""


def test_a_killed_run_resumes_to_identical_weights(tmp_path):
    path = tmp_path / "training.safetensors"
    script = KILLED.format(tests=[str(Path(__file__).parents[1])], path=str(path))
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
    ("other", "message"),
    [
        (
            {"plan": replace(PLAN, learning_rate=0.07)},
            r"plan.learning_rate \(0.05 in the file, 0.07 ",
        ),
        ({"plan": replace(PLAN, epochs=4)}, "plan.epochs"),
        ({"plan": replace(PLAN, augmentation=Augmentation(padding=1))}, "plan.augmentation"),
        ({"data": signs(seed=9)}, "data set"),
        ({"outputs": 5}, "the layer classifier.weight"),
        ({"hooks": Hooks(settings={"task": 2})}, r"settings.task \(none in the file, 2 now"),
        ({"hooks": Hooks(losses={"zero": lambda step: step.logits.sum() * 0})}, "extra losses"),
        ({"hooks": Hooks(heads={"x": torch.nn.Linear(2, 2)})}, "the layer heads.x.weight"),
    ],
)
def test_a_checkpoint_of_another_run_is_rejected_and_unchanged(tmp_path, other, message):
    path = tmp_path / "training.safetensors"
    run(checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=message) as caught:
        run(**other, checkpoint=path)
    assert "another folder, or delete" in str(caught.value)
    assert path.read_bytes() == before


def test_a_checkpoint_from_other_starting_weights_is_rejected(tmp_path):
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
def test_a_damaged_checkpoint_is_rejected(tmp_path, damage):
    path = tmp_path / "training.safetensors"
    run(replace(PLAN, epochs=1), checkpoint=path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TrainingError, match=r"training\.safetensors"):
        run(replace(PLAN, epochs=1), checkpoint=path)


@pytest.mark.parametrize(
    "state",
    ["[]", "nonsense", "{}", '{"identity": {}, "records": [{}]}', "[" * 100_000],
)
def test_a_checkpoint_with_invalid_state_is_rejected(tmp_path, state):
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


@pytest.mark.parametrize("clip", [None, 0.1])
def test_adam_resumes_with_its_moments(tmp_path, clip):
    plan = replace(AUGMENTED, optimizer="adam", learning_rate=0.003, clip=clip)
    whole, path = run(plan), tmp_path / "training.safetensors"
    next(train(*fresh(), TrainingImages(signs(), PLAIN), plan, checkpoint=path))
    names = read_tensors(path, "fecam training 1", TrainingError)[0]
    prefixes = {"network", "classifier", "mean", "square", "step"}
    assert {name.split(".")[0] for name in names} == prefixes
    resumed = run(plan, checkpoint=path)
    assert same(weights(*whole[:2]), weights(*resumed[:2]))
    other = run(replace(plan, clip=0.5 if clip is None else None))
    assert not same(weights(*whole[:2]), weights(*other[:2]))
    with pytest.raises(TrainingError, match=r"plan\.optimizer"):
        run(replace(plan, optimizer="sgd"), checkpoint=path)
