"""One loop that trains a network, whatever is built on it.

`train` yields a record an epoch and prints nothing. It is a function of its arguments: the same
plan, data and starting weights give the same weights, to the bit on a CPU, whether or not the run
was killed in between. A learner that trains over many tasks calls it once a task, with other
images, a classifier that has grown and the losses of its own in `Hooks`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders.augmentation import Augmentation
from fecam.encoders.classifiers import ClassifierName
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.encoders.resnet import PathLike, read_tensors, write_tensors
from fecam.encoders.torch_runtime import choose_device, fingerprint_of_tensors
from fecam.errors import ItemError, TrainingError

_FORMAT = "fecam training 1"

# ------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is trained; by default as the paper does with CIFAR-100.

    >>> TrainingPlan(epochs=10, learning_rate=0.05).momentum
    0.9
    """

    epochs: int = 200
    batch_size: int = 128
    """At most: images are dealt out evenly, so that no last batch is left with one of them."""
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    """The paper says 1e-4, its authors' settings 5e-4."""
    warmup_epochs: int = 0
    """The rate climbs from nothing in so many epochs."""
    milestones: tuple[int, ...] = ()
    """Epochs from which on the rate is ``decay`` times lower; without any, it falls as a cosine."""
    decay: float = 0.1
    label_smoothing: float = 0.0
    classifier: ClassifierName = "cosine"
    scale: float = 1.0
    """What the cosine classifier multiplies by at first; it is learnt, which takes epochs."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixed_precision: bool = True
    """Multiply in bfloat16 where there is a GPU that can; elsewhere this changes nothing."""
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.milestones, list):  # as JSON has it
            object.__setattr__(self, "milestones", tuple(self.milestones))
        for name, (fits, wanted) in _PLAN_RULES.items():
            try:
                fit = fits(self)
            except TypeError:  # not even a number
                fit = False
            if not fit:
                raise TrainingError(
                    f"a training plan cannot have {name} = {getattr(self, name)!r}: "
                    f"it must be {wanted}."
                )

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "milestones": list(self.milestones),
            "augmentation": self.augmentation.as_dict(),
        }


def _is_whole(value: object) -> bool:
    return type(value) is int


_PLAN_RULES: dict[str, tuple[Callable[[TrainingPlan], bool], str]] = {
    "epochs": (lambda p: _is_whole(p.epochs) and p.epochs >= 1, "a whole number, 1 or more"),
    "batch_size": (
        lambda p: _is_whole(p.batch_size) and p.batch_size >= 2,
        "a whole number, 2 or more: a batch is normalised by its spread",
    ),
    "learning_rate": (lambda p: 0 < p.learning_rate < math.inf, "above 0"),
    "momentum": (lambda p: 0 <= p.momentum < 1, "0 or more, and below 1"),
    "weight_decay": (lambda p: 0 <= p.weight_decay < math.inf, "0 or more"),
    "warmup_epochs": (
        lambda p: _is_whole(p.warmup_epochs) and 0 <= p.warmup_epochs < p.epochs,
        "a whole number, 0 or more and below epochs",
    ),
    "milestones": (
        lambda p: (
            all(map(_is_whole, p.milestones))
            and all(a < b for a, b in pairwise((0, *p.milestones, p.epochs)))
        ),
        "whole numbers, rising, above 0 and below epochs",
    ),
    "decay": (lambda p: 0 < p.decay <= 1, "above 0, and 1 at most"),
    "label_smoothing": (lambda p: 0 <= p.label_smoothing < 1, "0 or more, and below 1"),
    "classifier": (lambda p: p.classifier in ("cosine", "linear"), "'cosine' or 'linear'"),
    "scale": (lambda p: 0 < p.scale < math.inf, "above 0"),
    "augmentation": (lambda p: isinstance(p.augmentation, Augmentation), "an Augmentation"),
    "mixed_precision": (lambda p: isinstance(p.mixed_precision, bool), "True or False"),
    "seed": (lambda p: _is_whole(p.seed) and p.seed >= 0, "a whole number, 0 or more"),
}


def learning_rate(plan: TrainingPlan, step: int, steps_an_epoch: int) -> float:
    """The rate of one step, counted from 0 over the whole run.

    In the warm-up of ``w`` steps ``r (step + 1) / w``; then ``r (1 + cos(pi t)) / 2`` where ``t``
    is the share of the other steps that is done, or ``r decay^m`` after ``m`` milestones.

    >>> plan = TrainingPlan(epochs=4, learning_rate=1.0, warmup_epochs=2)
    >>> [round(learning_rate(plan, step, 2), 2) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    warmup = plan.warmup_epochs * steps_an_epoch
    if step < warmup:
        return plan.learning_rate * (step + 1) / warmup
    if plan.milestones:
        passed = sum(step >= milestone * steps_an_epoch for milestone in plan.milestones)
        return plan.learning_rate * plan.decay**passed
    share = (step - warmup) / (plan.epochs * steps_an_epoch - warmup)
    return plan.learning_rate * (1 + math.cos(math.pi * share)) / 2


# ----------------------------------------------------------------------------------- the images


class TrainingImages:
    """The images of a data set, 8-bit and of one size: in memory if they fit, else read each time.

    An image that cannot be read is left out, and ``skipped`` says which and why.
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: ImagePreprocessing,
        *,
        memory: int = 2 << 30,
        workers: int | None = None,
    ) -> None:
        if dataset.kind != "images":
            raise TrainingError(
                f"the data set {dataset.name!r} holds {dataset.kind}: a network is trained on "
                "images. Choose a data set of images."
            )
        self.name, self.preprocessing = dataset.name, preprocessing
        self.labels = torch.from_numpy(dataset.labels.copy())
        self.label_names = dataset.label_names
        self._fingerprint = dataset.fingerprint
        self.skipped: dict[int, str] = {}
        self._items = _Decoded(dataset.items, preprocessing)
        # Processes pay where decoding is work; small arrays are read faster than handed over.
        usual = min(4, os.cpu_count() or 1) if preprocessing.resize > 96 else 0
        self._workers = usual if workers is None else workers
        self.rows = torch.arange(len(dataset))
        self._pixels: Tensor | None = None
        if len(dataset) * 3 * preprocessing.resize**2 <= memory:
            self._pixels = self._read_all()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """Changes with the data set and with what is done to its images."""
        return fingerprint_of([self._fingerprint, self.preprocessing.fingerprint])

    def batches(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each chunk of rows: the rows that can be read, and their images (n, 3, h, w)."""
        if self._pixels is None:
            yield from self._read(chunks)
        else:
            for rows in chunks:
                yield rows, self._pixels[rows]

    def plain(self, batch_size: int, device: Any = "cpu") -> Iterator[tuple[Tensor, Tensor]]:
        """All images in order as an encoder sees them, with their rows: nothing left to chance."""
        for rows, images in self.batches(self.rows.split(batch_size)):
            if not len(rows):
                continue
            yield rows, self.normalised(centre(images.to(device), self.preprocessing.size) / 255)

    def normalised(self, images: Tensor) -> Tensor:
        """Images from 0 to 1 with the mean and spread that the network knows."""
        factor, offset = (
            torch.tensor(values, device=images.device)[:, None, None]
            for values in self.preprocessing.affine
        )
        shown = images * (255 * factor) + offset
        return shown.contiguous(memory_format=torch.channels_last)

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            self._items,
            batch_sampler=[rows.tolist() for rows in chunks],
            num_workers=self._workers,
            collate_fn=_collate,
            generator=Generator(),  # else it draws from everybody's
        )
        for rows, images, failures in loader:
            self.skipped.update(failures)
            yield rows, images

    def _read_all(self) -> Tensor:
        side = self.preprocessing.resize
        pixels = torch.empty((len(self.rows), 3, side, side), dtype=torch.uint8)
        for rows, images in self._read(self.rows.split(256)):
            if len(rows):
                pixels[rows] = images
        self.rows = torch.tensor(
            [row for row in self.rows.tolist() if row not in self.skipped], dtype=torch.int64
        )
        return pixels


def centre(images: Tensor, size: int) -> Tensor:
    """The middle of each image, ``size`` by ``size`` pixels."""
    top, left = ((side - size) // 2 for side in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


class _Decoded:
    """Items by row as 8-bit tensors (3, h, w), or why one cannot be read; in a worker's process."""

    def __init__(self, items: Any, preprocessing: ImagePreprocessing) -> None:
        self._items = items
        # The margin around the centre is kept: augmentation may cut elsewhere.
        self._steps = replace(preprocessing, size=preprocessing.resize)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> tuple[int, Tensor | str]:
        try:
            return row, torch.from_numpy(np.array(self._steps.pixels(self._items[row])))
        except ItemError as error:
            return row, str(error)


def _collate(
    read: Sequence[tuple[int, Tensor | str]],
) -> tuple[Tensor, Tensor, dict[int, str]]:
    good = [(row, image) for row, image in read if not isinstance(image, str)]
    bad = {row: image for row, image in read if isinstance(image, str)}
    rows = torch.tensor([row for row, _ in good], dtype=torch.int64)
    return rows, torch.stack([image for _, image in good]) if good else torch.empty(0), bad


# ------------------------------------------------------------------------------------ the hooks


@dataclass(frozen=True, eq=False)
class Step:
    """One batch on its way through the network, as a hook sees it."""

    images: Tensor
    """As they went in: augmented, normalised."""
    labels: Tensor
    """The position of each image's class among the classifier's outputs."""
    rows: Tensor
    """Where in the data set each image is."""
    features: Tensor
    logits: Tensor
    network: nn.Module
    classifier: nn.Module
    heads: Mapping[str, nn.Module]
    epoch: int
    """From 0."""
    generator: Generator
    """The one to draw from: a run resumed then draws the same."""


@dataclass(frozen=True, eq=False)
class Modules:
    """What is trained, as a hook sees it between epochs."""

    network: nn.Module
    classifier: nn.Module
    heads: Mapping[str, nn.Module]
    epoch: int
    """From 0: the one to come, or the one just done."""


Loss = Callable[[Step], Tensor]


@dataclass(frozen=True, eq=False)
class Hooks:
    """What a learner adds to the loop. Every part may be left out.

    State that has to survive a kill belongs in a buffer of a head: heads go into the checkpoint.
    """

    loss: Loss | None = None
    """In place of the cross-entropy."""
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """Added to it, weighted already; a record tells the mean of each by its name."""
    heads: Mapping[str, nn.Module] = field(default_factory=dict)
    """More layers to train: they join the optimiser and the checkpoint."""
    outputs: range | None = None
    """The outputs that the cross-entropy is taken over: all images are of these, and the others
    are not touched."""
    batch: Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]] | None = None
    """Replaces images and labels of a batch before the network sees them: mixes, turns, repeats."""
    epoch_start: Sequence[Callable[[Modules], None]] = ()
    epoch_end: Sequence[Callable[[Modules], None]] = ()
    """After the last step, before the checkpoint is written."""
    backward: Sequence[Callable[[Step], None]] = ()
    """Between the gradient and the update: to look at gradients, or to change them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else decides the result, for JSON: a checkpoint made with others is refused."""


# ---------------------------------------------------------------------------------- the records


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch came to."""

    epoch: int
    """From 1."""
    epochs: int
    loss: float
    """Mean over the images, everything added."""
    accuracy: float
    """Share of the augmented images named rightly while the network still changed."""
    learning_rate: float
    """Of the last step."""
    seconds: float
    remaining: float
    """Seconds until the plan is done, at the pace so far."""
    images: int
    skipped: int = 0
    """Images that could not be read so far; `TrainingImages.skipped` says which and why."""
    losses: Mapping[str, float] = field(default_factory=dict)
    test_accuracy: float | None = None
    restored: bool = False
    """Done by an earlier process, and read from its checkpoint."""


@dataclass(frozen=True)
class Progress:
    """How far an epoch is."""

    epoch: int
    """From 1."""
    epochs: int
    batches: int
    """Done."""
    of: int
    loss: float
    """Mean so far in this epoch; looked at every few batches only, as a GPU has to wait for it."""
    accuracy: float
    seconds: float
    """In this epoch."""
    remaining: float
    """Seconds until the plan is done, at the pace of this epoch."""


class _Tally:
    """Sums over an epoch, kept where they are computed until somebody looks."""

    def __init__(self) -> None:
        self.images = 0
        self._sums: dict[str, Any] = {}

    def add(self, step: Step, losses: Mapping[str, Tensor]) -> None:
        count = len(step.labels)
        right = (step.logits.detach().argmax(1) == step.labels).sum()
        means = {f"loss {name}": count * loss.detach() for name, loss in losses.items()}
        for name, value in {"right": right, **means}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.images += count

    def mean(self, name: str) -> float:
        return float(self._sums.get(name, 0.0)) / max(1, self.images)


# --------------------------------------------------------------------------------------- a run


def train(
    network: nn.Module,
    classifier: nn.Module,
    images: TrainingImages,
    plan: TrainingPlan,
    *,
    classes: Sequence[int] | None = None,
    hooks: Hooks | None = None,
    test: TrainingImages | None = None,
    test_every: int = 1,
    checkpoint: PathLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: Any = None,
) -> Iterator[EpochRecord]:
    """Train a network and its classifier in place; a record after each epoch.

    ``classes`` are the labels in the order of the classifier's outputs; by default all that occur,
    in order. ``test`` is looked at every ``test_every`` epochs and after the last (0: only then).
    ``checkpoint`` is a file, replaced after each epoch; if it is there the run goes on from it, its
    records first, and a file of another run is refused.

    Raises:
        TrainingError: arguments that do not fit each other, a checkpoint that cannot be used or
            written, or, in the middle of a run, a loss that is not finite any more.
    """
    run = _Run(network, classifier, images, plan, classes, hooks or Hooks(), choose_device(device))
    path = None if checkpoint is None else Path(checkpoint)
    restored = [] if path is None else run.restore(path)
    if path is not None and not restored:
        run.keep(path, [])  # a folder that cannot be written to shows now, not in an hour
    return _epochs(run, restored, test, test_every, path, progress)


def _epochs(
    run: _Run,
    restored: Sequence[EpochRecord],
    test: TrainingImages | None,
    test_every: int,
    checkpoint: Path | None,
    progress: Callable[[Progress], None] | None,
) -> Iterator[EpochRecord]:
    yield from restored
    records = list(restored)
    begun = time.perf_counter()
    for epoch in range(len(restored), run.plan.epochs):
        started = time.perf_counter()
        record = run.epoch(epoch, progress)
        left = run.plan.epochs - epoch - 1
        due = not left or (test_every > 0 and (epoch + 1) % test_every == 0)
        if test is not None and due:
            accuracy = evaluate(run.network, run.classifier, test, run.classes, run.device)
            record = replace(record, test_accuracy=accuracy)
        now = time.perf_counter()
        pace = (now - begun) / (epoch + 1 - len(restored))
        records.append(replace(record, seconds=now - started, remaining=pace * left))
        if checkpoint is not None:
            run.keep(checkpoint, records)
        yield records[-1]


def evaluate(
    network: nn.Module,
    classifier: nn.Module,
    images: TrainingImages,
    classes: Sequence[int],
    device: Any = None,
    batch_size: int = 256,
) -> float:
    """The share of images, as an encoder sees them, that network and classifier name rightly."""
    positions = _positions(classes, images)
    right = seen = 0
    network.eval()
    classifier.eval()
    with torch.inference_mode():
        for rows, batch in images.plain(batch_size, choose_device(device)):
            named = classifier(network(batch))[:, : len(classes)].argmax(1).cpu()
            right += int((named == positions[images.labels[rows]]).sum())
            seen += len(rows)
    if not seen:
        raise TrainingError(f"none of the {len(images)} images of {images.name!r} can be read.")
    return right / seen


def _positions(classes: Sequence[int], images: TrainingImages) -> Tensor:
    """For each label of a data set its position among the outputs; -1 for one that has none."""
    listed = torch.tensor([int(label) for label in classes])
    names = len(images.label_names)
    if len(set(listed.tolist())) < len(listed) or not ((listed >= 0) & (listed < names)).all():
        raise TrainingError(
            f"classes = {listed.tolist()} must be different labels of {images.name!r}, "
            f"from 0 to {names - 1}."
        )
    positions = torch.full((names,), -1)
    positions[listed] = torch.arange(len(listed))
    stray = sorted({int(label) for label in images.labels[positions[images.labels] < 0]})
    if stray:
        raise TrainingError(
            f"{images.name!r} has images of {images.label_names[stray[0]]!r} (label {stray[0]}; "
            f"{len(stray)} such classes), which is not among the {len(listed)} classes to train. "
            "Add it to classes, or leave its rows out with Dataset.subset."
        )
    return positions


class _Run:
    """What stays the same from epoch to epoch, and the modules that change."""

    def __init__(
        self,
        network: nn.Module,
        classifier: nn.Module,
        images: TrainingImages,
        plan: TrainingPlan,
        classes: Sequence[int] | None,
        hooks: Hooks,
        device: Any,
    ) -> None:
        if len(images) < 2:
            raise TrainingError(
                f"{images.name!r} has {len(images)} images that can be read, of "
                f"{len(images.labels)}; training needs two at least."
            )
        self.images, self.plan, self.hooks, self.device = images, plan, hooks, device
        present = sorted(set(images.labels.tolist()))
        self.classes = present if classes is None else [int(label) for label in classes]
        self.positions = _positions(self.classes, images)
        self.network = network.to(device, memory_format=torch.channels_last)
        self.classifier = classifier.to(device)
        self.heads = {name: head.to(device) for name, head in hooks.heads.items()}
        self.parameters = {
            f"{place}.{name}": parameter
            for place, module in self._places().items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.optimizer = torch.optim.SGD(
            self.parameters.values(),
            lr=plan.learning_rate,
            momentum=plan.momentum,
            weight_decay=plan.weight_decay,
        )
        if "total" in hooks.losses:
            raise TrainingError("an extra loss cannot be named 'total': choose another name.")
        try:  # through JSON and back, so that it can be compared with what a file says
            self.identity = json.loads(json.dumps(self._identity()))
        except TypeError as error:
            raise TrainingError(
                f"the hooks' settings {dict(hooks.settings)} cannot be written to a checkpoint "
                f"({error}). Give numbers, strings, lists."
            ) from None

    def _places(self) -> dict[str, nn.Module]:
        heads = {f"heads.{name}": head for name, head in self.heads.items()}
        return {"network": self.network, "classifier": self.classifier, **heads}

    def _weights(self) -> dict[str, Tensor]:
        return {
            f"{place}.{name}": tensor
            for place, module in self._places().items()
            for name, tensor in module.state_dict().items()
        }

    def _identity(self) -> dict[str, Any]:
        """All that decides the result, by the name a person would give it."""
        plan = {f"plan.{name}": value for name, value in self.plan.as_dict().items()}
        settings = {f"settings.{name}": value for name, value in self.hooks.settings.items()}
        return {
            **plan,
            **settings,
            "data set": f"{self.images.name} {self.images.fingerprint}",
            "classes": self.classes,
            "extra losses": sorted(self.hooks.losses),
            "starting weights": fingerprint_of_tensors(self._weights()),
        }

    def epoch(self, epoch: int, progress: Callable[[Progress], None] | None) -> EpochRecord:
        """One pass over the images."""
        started = time.perf_counter()
        modules = Modules(self.network, self.classifier, self.heads, epoch)
        # A seed of its own for each epoch: it can be repeated without those before it, and there
        # is no state of a generator to keep.
        seed = int(np.random.SeedSequence([self.plan.seed, epoch]).generate_state(1, np.uint64)[0])
        generator = Generator().manual_seed(seed >> 1)
        rows = self.images.rows
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        chunks = shuffled.tensor_split(math.ceil(len(rows) / self.plan.batch_size))
        tally, rate, loss = _Tally(), 0.0, 0.0
        with _own_randomness(seed >> 1, self.device):
            for module in self._places().values():
                module.train()
            for start in self.hooks.epoch_start:
                start(modules)
            for done, (chosen, pixels) in enumerate(self.images.batches(chunks), start=1):
                if len(chosen) > 1:  # else nearly all of the batch could not be read
                    rate = learning_rate(self.plan, epoch * len(chunks) + done - 1, len(chunks))
                    tally.add(*self._step(epoch, rate, chosen, pixels, generator))
                if done % 10 == 1 or done == len(chunks):
                    loss, accuracy = tally.mean("loss total"), tally.mean("right")
                    self._check_finite(loss, epoch)
                if progress is not None:
                    spent = time.perf_counter() - started
                    left = spent / done * ((self.plan.epochs - epoch) * len(chunks) - done)
                    progress(
                        Progress(
                            epoch=epoch + 1,
                            epochs=self.plan.epochs,
                            batches=done,
                            of=len(chunks),
                            loss=loss,
                            accuracy=accuracy,
                            seconds=spent,
                            remaining=left,
                        )
                    )
            for end in self.hooks.epoch_end:
                end(modules)
        if not tally.images:
            why = next(iter(self.images.skipped.values()), "it is empty")
            raise TrainingError(f"no image of {self.images.name!r} can be read: {why}")
        if not all(bool(value.isfinite().all()) for value in self.parameters.values()):
            self._check_finite(math.nan, epoch)
        return EpochRecord(
            epoch=epoch + 1,
            epochs=self.plan.epochs,
            loss=loss,
            accuracy=accuracy,
            learning_rate=rate,
            seconds=time.perf_counter() - started,
            remaining=0.0,
            images=tally.images,
            skipped=len(self.images.skipped),
            losses={name: tally.mean(f"loss {name}") for name in self.hooks.losses},
        )

    def _step(
        self, epoch: int, rate: float, rows: Tensor, pixels: Tensor, generator: Generator
    ) -> tuple[Step, dict[str, Tensor]]:
        """One update; the step, and the loss with its parts."""
        size = self.images.preprocessing.size
        labels = self.positions[self.images.labels[rows]].to(self.device)
        images = self.plan.augmentation(pixels.to(self.device), size, generator)
        images = self.images.normalised(images)
        if self.hooks.batch is not None:
            images, labels = self.hooks.batch(images, labels, generator)
        with _mixed_precision(self.plan, self.device):
            features = self.network(images)
            logits = self.classifier(features)
            if logits.shape[1] < len(self.classes):
                raise TrainingError(
                    f"the classifier has {logits.shape[1]} outputs for {len(self.classes)} "
                    "classes. Make a larger one, or let it grow with grown()."
                )
            step = Step(
                images, labels, rows, features, logits,
                self.network, self.classifier, self.heads, epoch, generator,
            )  # fmt: skip
            main = self._cross_entropy(step) if self.hooks.loss is None else self.hooks.loss(step)
            extra = {name: loss(step) for name, loss in self.hooks.losses.items()}
        total = sum(extra.values(), start=main)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        for look in self.hooks.backward:
            look(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return step, {**extra, "total": total}

    def _cross_entropy(self, step: Step) -> Tensor:
        outputs = self.hooks.outputs or range(step.logits.shape[1])
        return functional.cross_entropy(
            step.logits[:, outputs.start : outputs.stop].float(),
            step.labels - outputs.start,
            label_smoothing=self.plan.label_smoothing,
        )

    def _check_finite(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss became {loss} in epoch {epoch + 1} of {self.plan.epochs}, at a learning "
                f"rate of {self.plan.learning_rate}. Lower the learning rate (a tenth, say), or "
                "warm up over more epochs."
            )

    def keep(self, path: Path, records: Sequence[EpochRecord]) -> None:
        """Write a checkpoint in place of the last one."""
        momentum = {
            f"momentum.{name}": self.optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self.parameters.items()
            if self.optimizer.state[parameter].get("momentum_buffer") is not None
        }
        state = {"identity": self.identity, "records": [asdict(record) for record in records]}
        tensors = {**self._weights(), **momentum}
        write_tensors(path, tensors, {"state": json.dumps(state)}, _FORMAT, TrainingError)

    def restore(self, path: Path) -> list[EpochRecord]:
        """Go on from a checkpoint, if there is one; nothing is changed if it does not fit."""
        if not path.exists():
            return []
        tensors, metadata = read_tensors(path, _FORMAT, TrainingError)
        identity, records = _read_state(path, metadata)
        weights = self._weights()
        momenta = {f"momentum.{name}": value for name, value in self.parameters.items()}
        different = [
            *_different_layers(tensors, weights, momenta),
            *_different_values(identity, self.identity),
        ]
        if different:
            raise TrainingError(
                f"{path} is the checkpoint of another run. What differs: {'; '.join(different)}. "
                "Train into another folder, or delete the file to start again."
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in weights:
                    weights[name].copy_(tensor)
                else:
                    parameter = momenta[name]
                    buffer = torch.empty_like(parameter).copy_(tensor)
                    self.optimizer.state[parameter]["momentum_buffer"] = buffer
        return records


def _read_state(
    path: Path, metadata: Mapping[str, str]
) -> tuple[dict[str, Any], list[EpochRecord]]:
    try:
        state = json.loads(metadata["state"])
        identity = dict(state["identity"])
        records = [EpochRecord(**{**each, "restored": True}) for each in state["records"]]
        if [record.epoch for record in records] != list(range(1, len(records) + 1)):
            raise ValueError("its epochs are not in order")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrainingError(
            f"{path} does not say what run it is of ({error!r}). Delete it to start again."
        ) from None
    return identity, records


def _different_layers(
    theirs: Mapping[str, Tensor], weights: Mapping[str, Tensor], momenta: Mapping[str, Tensor]
) -> Iterator[str]:
    """The first layer that is not the same, in words."""
    ours = {**weights, **momenta}
    for name in (*weights, *(theirs.keys() - weights.keys())):
        there, here = (
            f"{_kind(tensors[name])}" if name in tensors else "none" for tensors in (theirs, ours)
        )
        if there != here:
            yield f"the layer {name} ({there} there, {here} here)"
            return


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _different_values(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs or ours[name] != theirs[name]:
            there, here = (_short(values.get(name, "none")) for values in (theirs, ours))
            yield f"{name} ({there} there, {here} here)"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def _own_randomness(seed: int, device: Any) -> Iterator[None]:
    """Layers that draw at random, dropout say, do so from the seed; nobody else's draws change."""
    on_gpu = device.type == "cuda"
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if on_gpu else []))
        if on_gpu:  # cuDNN's fastest choices differ from run to run
            stack.enter_context(
                torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
            )
        torch.manual_seed(seed)
        yield


def _mixed_precision(plan: TrainingPlan, device: Any) -> AbstractContextManager[object]:
    """Bfloat16 has the range of float32, so there is no scale of gradients to keep."""
    if plan.mixed_precision and device.type == "cuda" and torch.cuda.is_bf16_supported():
        context: AbstractContextManager[object] = torch.autocast("cuda", dtype=torch.bfloat16)
        return context
    return nullcontext()
