"""One loop that trains a network, whatever is built on it.

`train` yields a record an epoch and prints nothing. It is a function of its arguments: the same
plan, data and starting weights give the same weights, to the bit on a CPU with as many threads,
whether or not the run was killed in between. A learner that trains over many tasks calls it once a
task, with other images, a classifier that has grown and the losses of its own in `Hooks`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fecam.encoders.files import PathLike
from fecam.encoders.tensor_files import read_tensors, write_tensors
from fecam.encoders.torch_runtime import choose_device, fingerprint_of_tensors
from fecam.errors import TrainingError
from fecam.training.checkpoints import different_layers, different_values, read_state
from fecam.training.hooks import Hooks, Modules, Step
from fecam.training.images import TrainingImages
from fecam.training.plan import TrainingPlan, learning_rate
from fecam.training.records import EpochRecord, Progress, Tally

_FORMAT = "fecam training 1"


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
        tally, rate, loss = Tally(), 0.0, 0.0
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
        identity, records = read_state(path, metadata)
        weights = self._weights()
        momenta = {f"momentum.{name}": value for name, value in self.parameters.items()}
        different = [
            *different_layers(tensors, weights, momenta),
            *different_values(identity, self.identity),
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
