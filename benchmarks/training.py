"""Images per second of the training loop, against the bare steps of the same network.

    python benchmarks/training.py [--quick]

The bare steps are forward, loss, backward and update on one batch that is prepared already,
without augmentation, checks and records. The loop trains one epoch from images in memory, with the
augmentation of CIFAR-100; LwF also computes the outputs of its old network for each batch. Rounds
of all cases alternate in one process with one thread. Times are those of the processor, without
those in which other processes had it; the ratio is the median over rounds. Writes
``docs/tables/training.md``.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fecam.data import Dataset
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import ResNet18
from fecam.learners import Recipe, make
from fecam.training import TrainingPlan
from fecam.training.augmentation import AUGMENTATIONS
from fecam.training.classifiers import make_classifier
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from reporting import markdown, options, say, write

SIDE, CLASSES, BATCH = 32, 20, 64
CASES = ("bare steps", "loop", "loop with augmentation", "bare steps with an old network", "LwF")
BASES = {
    "loop": "bare steps",
    "loop with augmentation": "bare steps",
    "LwF": "bare steps with an old network",
}
MEASURES = ("src/fecam/training", "src/fecam/learners", "src/fecam/encoders")


def photographs(count: int, classes: range) -> Dataset:
    """Return images of noise with the size of those of CIFAR-100."""
    rng = np.random.default_rng(0)
    return Dataset(
        name="noise",
        kind="images",
        items=list(rng.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)),
        labels=np.resize(np.array(classes), count),
        label_names=tuple(map(str, range(CLASSES))),
        fingerprint=str(classes),
    )


def bare(width: int, count: int, old: bool) -> Callable[[], object]:
    """Return an epoch of steps on one batch that is prepared."""
    torch.manual_seed(0)
    network = ResNet18(width).to(memory_format=torch.channels_last).train()
    classifier = make_classifier("linear", network.n_features, CLASSES)
    teacher = ResNet18(width).to(memory_format=torch.channels_last).eval()
    images = torch.rand(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(BATCH) % CLASSES
    parameters = [*network.parameters(), *classifier.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)

    def epoch() -> None:
        for _ in range(count // BATCH):
            loss = functional.cross_entropy(classifier(network(images)), labels)
            if old:
                with torch.no_grad():
                    teacher(images)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return epoch


def loop(width: int, count: int, *, augmented: bool) -> Callable[[], object]:
    """Return an epoch of the loop."""
    images = TrainingImages(photographs(count, range(CLASSES)), ImagePreprocessing(SIDE))
    torch.manual_seed(0)
    network: nn.Module = ResNet18(width)
    classifier = make_classifier("linear", 8 * width, CLASSES)
    epoch_plan = plan(augmented=augmented)
    return lambda: list(train(network, classifier, images, epoch_plan, device="cpu"))


def lwf(width: int, count: int) -> Callable[[], object]:
    """Return a second task of LwF of one epoch, as `fecam.learners` trains it."""
    later = plan(augmented=True)
    recipe = Recipe(lambda: ResNet18(width), ImagePreprocessing(SIDE), later, later, "cpu")
    learner = make("lwf").start(recipe)
    for _ in learner.learn(photographs(BATCH, range(CLASSES // 2))):
        pass
    data = photographs(count, range(CLASSES // 2, CLASSES))
    return lambda: list(copy.deepcopy(learner).learn(data))


def plan(*, augmented: bool) -> TrainingPlan:
    """Return the plan of an epoch."""
    base = TrainingPlan(epochs=1, batch_size=BATCH, learning_rate=0.01, classifier="linear")
    return replace(base, augmentation=AUGMENTATIONS["cifar100"]) if augmented else base


def measure(width: int, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the images per second of each case, and its ratio to the bare steps."""
    tasks = dict(
        zip(
            CASES,
            (
                bare(width, count, old=False),
                loop(width, count, augmented=False),
                loop(width, count, augmented=True),
                bare(width, count, old=True),
                lwf(width, count),
            ),
            strict=True,
        )
    )
    for task in tasks.values():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            seconds[name].append(time.process_time() - start)
        say(f"width {width}, round {number + 1} of {rounds}")
    result = {}
    for name, times in seconds.items():
        base = seconds[BASES.get(name, name)]
        ratios = [b / t for b, t in zip(base, times, strict=True)]
        result[name] = {
            "images per second": count / statistics.median(times),
            "ratio": statistics.median(ratios),
        }
    return result


def main() -> None:
    """Measure, and write the table."""
    args = options(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = {16: 2} if args.quick else {16: 5, 32: 2}
    count = 2 * BATCH if args.quick else 4 * BATCH
    results = {width: measure(width, count, rounds) for width, rounds in sizes.items()}
    rows = [
        [f"{width}", name, f"{values['images per second']:.0f}", f"{values['ratio']:.2f}"]
        for width, cases in results.items()
        for name, values in cases.items()
    ]
    header = ["width", "what", "images per second", "share of the bare steps"]
    table = markdown(header, rows)
    write("training", table, {"results": results}, quick=args.quick, measures=MEASURES)
    print(table)


if __name__ == "__main__":
    main()
