"""The training loop for a network, a classifier and the hooks of a method.

The result is a function of the arguments: the same plan, data and initial weights give the same
weights bit by bit on a CPU with the same number of threads, whether or not the run was interrupted.
A learner over many tasks calls `train` once per task, with the images of the task, an expanded
classifier and its losses in `Hooks`.
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

from fecam.encoders.tensor_files import layer_difference, read_tensors, write_tensors
from fecam.encoders.torch_runtime import choose_device, fingerprint_of_tensors
from fecam.errors import TrainingError
from fecam.files import PathLike
from fecam.training.checkpoints import different_settings, read_state
from fecam.training.hooks import Hooks, Modules, Step
from fecam.training.images import TrainingImages
from fecam.training.plan import TrainingPlan, learning_rate
from fecam.training.records import EpochRecord, Progress, RunningMeans

_FORM = "fecam training 1"
_MOMENTS = {
    "sgd": {"momentum_buffer": "momentum"},
    "adam": {"exp_avg": "mean", "exp_avg_sq": "square", "step": "step"},
}
"""The state of each optimizer per weight, with its names in a checkpoint."""


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
    """Train a network and its classifier in place and yield a record after each epoch.

    Parameters
    ----------
    network : torch.nn.Module
        Images (n, 3, h, w) to features.
    classifier : torch.nn.Module
        Features to logits.
    images : TrainingImages
        The images to train on.
    plan : TrainingPlan
        The settings.
    classes : sequence of int, optional
        The labels in the order of the classifier's outputs; by default all labels, sorted.
    hooks : Hooks, optional
        Losses, heads and callbacks of a method.
    test : TrainingImages, optional
        Images for the test accuracy.
    test_every : int, default=1
        Epochs between tests; the last epoch is always tested, and 0 tests only that one.
    checkpoint : path, optional
        A file that each epoch replaces. If it exists, its records come first and training resumes.
    progress : callable, optional
        Called with a `Progress` after each batch.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.

    Returns
    -------
    iterator of EpochRecord
        Training happens while it is consumed.

    Raises
    ------
    TrainingError
        If the arguments do not fit each other, the checkpoint belongs to another run or cannot be
        written, or the loss becomes infinite or NaN.

    Examples
    --------
    >>> from fecam.data import load
    >>> from fecam.encoders.preprocessing import ImagePreprocessing
    >>> from fecam.encoders.resnet import ResNet18
    >>> from fecam.training.classifiers import make_classifier
    >>> images = TrainingImages(load("digits"), ImagePreprocessing(size=8))
    >>> network, plan = ResNet18(width=2), TrainingPlan(epochs=1)
    >>> records = train(network, make_classifier("linear", 16, 10), images, plan)
    >>> [record.images for record in records]
    [1797]
    """
    run = _Run(network, classifier, images, plan, classes, hooks or Hooks(), choose_device(device))
    path = None if checkpoint is None else Path(checkpoint)
    restored = [] if path is None else run.load_checkpoint(path)
    if path is not None and not restored:
        run.save_checkpoint(path, [])  # fails now, not after an epoch, if it cannot be written
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
    run_start = time.perf_counter()
    for epoch in range(len(restored), run.plan.epochs):
        epoch_start = time.perf_counter()
        record = run.epoch(epoch, progress)
        left = run.plan.epochs - epoch - 1
        due = not left or (test_every > 0 and (epoch + 1) % test_every == 0)
        if test is not None and due:
            accuracy = evaluate(run.network, run.classifier, test, run.classes, run.device)
            record = replace(record, test_accuracy=accuracy)
        now = time.perf_counter()
        pace = (now - run_start) / (epoch + 1 - len(restored))
        records.append(replace(record, seconds=now - epoch_start, remaining=pace * left))
        if checkpoint is not None:
            run.save_checkpoint(checkpoint, records)
        yield records[-1]


def evaluate(
    network: nn.Module,
    classifier: nn.Module,
    images: TrainingImages,
    classes: Sequence[int],
    device: Any = None,
    batch_size: int = 256,
) -> float:
    """Return the accuracy on images without augmentation.

    Parameters
    ----------
    network, classifier : torch.nn.Module
        The modules that `train` trained.
    images : TrainingImages
        The test images.
    classes : sequence of int
        The labels in the order of the classifier's outputs.
    device : {"cpu", "cuda", "mps"}, optional
        By default a GPU if there is one.
    batch_size : int, default=256
        Images per batch.

    Returns
    -------
    float
        The share of readable images that are classified correctly.

    Raises
    ------
    TrainingError
        If no image is readable, or an image belongs to none of the classes.
    """
    positions = _label_positions(classes, images)
    correct = total = 0
    network.eval()
    classifier.eval()
    with torch.inference_mode():
        for rows, batch in images.eval_batches(batch_size, choose_device(device)):
            predicted = classifier(network(batch))[:, : len(classes)].argmax(1).cpu()
            correct += int((predicted == positions[images.labels[rows]]).sum())
            total += len(rows)
    if not total:
        raise TrainingError(f"none of the {len(images)} images of {images.name!r} can be read.")
    return correct / total


def _label_positions(classes: Sequence[int], images: TrainingImages) -> Tensor:
    """Return the output index of each label of a data set, or -1 for labels without an output."""
    outputs = torch.tensor([int(label) for label in classes])
    n_labels = len(images.label_names)
    in_range = ((outputs >= 0) & (outputs < n_labels)).all()
    if len(set(outputs.tolist())) < len(outputs) or not in_range:
        raise TrainingError(
            f"classes={outputs.tolist()} must be different labels of {images.name!r}, from 0 to "
            f"{n_labels - 1}."
        )
    positions = torch.full((n_labels,), -1)
    positions[outputs] = torch.arange(len(outputs))
    missing = sorted({int(label) for label in images.labels[positions[images.labels] < 0]})
    if missing:
        raise TrainingError(
            f"{images.name!r} has images of {images.label_names[missing[0]]!r} (label "
            f"{missing[0]}; {len(missing)} such classes), which is not among the {len(outputs)} "
            "classes to train. Add it to classes, or remove its rows with Dataset.subset."
        )
    return positions


class _Run:
    """The arguments of a run, checked, with its optimizer and checkpoints."""

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
                f"{len(images.labels)}; training needs at least two."
            )
        self.images, self.plan, self.hooks, self.device = images, plan, hooks, device
        present = sorted(set(images.labels.tolist()))
        self.classes = present if classes is None else [int(label) for label in classes]
        self.positions = _label_positions(self.classes, images)
        self.network = network.to(device, memory_format=torch.channels_last)
        self.classifier = classifier.to(device)
        self.heads = {name: head.to(device) for name, head in hooks.heads.items()}
        heads = {f"heads.{name}": head for name, head in self.heads.items()}
        self.modules = {"network": self.network, "classifier": self.classifier, **heads}
        self.parameters = {
            f"{prefix}.{name}": parameter
            for prefix, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not self.parameters:
            raise TrainingError(
                "no weight is to be trained: all are frozen. Unfreeze the classifier at least."
            )
        self.moments = _MOMENTS[plan.optimizer]
        self.optimizer = _optimizer(plan, list(self.parameters.values()))
        if "total" in hooks.losses:
            raise TrainingError("an extra loss cannot be named 'total': choose another name.")
        try:  # to JSON and back, for the comparison with a file
            self.identity = json.loads(json.dumps(self._identity()))
        except TypeError as error:
            raise TrainingError(
                f"settings={dict(hooks.settings)} of the hooks cannot be written to a checkpoint "
                f"({error}). Give numbers, strings, lists."
            ) from None

    def _weights(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": tensor
            for prefix, module in self.modules.items()
            for name, tensor in module.state_dict().items()
        }

    def _identity(self) -> dict[str, Any]:
        """Return all that determines the result. Checkpoints contain these names."""
        return {
            **{f"plan.{name}": value for name, value in self.plan.as_dict().items()},
            **{f"settings.{name}": value for name, value in self.hooks.settings.items()},
            "data set": f"{self.images.name} {self.images.fingerprint}",
            "classes": self.classes,
            "extra losses": sorted(self.hooks.losses),
            "starting weights": fingerprint_of_tensors(self._weights()),
        }

    def epoch(self, epoch: int, progress: Callable[[Progress], None] | None) -> EpochRecord:
        """Train for one epoch and return its record."""
        start = time.perf_counter()
        modules = Modules(self.network, self.classifier, self.heads, epoch)
        # One seed per epoch: a resumed run needs no generator state.
        seed = int(np.random.SeedSequence([self.plan.seed, epoch]).generate_state(1, np.uint64)[0])
        generator = Generator().manual_seed(seed >> 1)
        rows = self.images.rows
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        chunks = shuffled.tensor_split(math.ceil(len(rows) / self.plan.batch_size))
        means, rate, loss = RunningMeans(), 0.0, 0.0
        with _seeded(seed >> 1, self.device):
            for module in self.modules.values():
                module.train()
            for hook in self.hooks.epoch_start:
                hook(modules)
            for done, (readable, pixels) in enumerate(self.images.batches(chunks), start=1):
                if len(readable) > 1:  # batch normalization needs two images
                    rate = learning_rate(self.plan, epoch * len(chunks) + done - 1, len(chunks))
                    means.add(*self._step(epoch, rate, readable, pixels, generator))
                if done % 10 == 1 or done == len(chunks):
                    loss, accuracy = means.mean("loss total"), means.mean("correct")
                    self._check_finite(loss, epoch)
                if progress is not None:
                    seconds = time.perf_counter() - start
                    left = (self.plan.epochs - epoch) * len(chunks) - done
                    progress(
                        Progress(
                            epoch=epoch + 1,
                            epochs=self.plan.epochs,
                            batch=done,
                            n_batches=len(chunks),
                            loss=loss,
                            accuracy=accuracy,
                            seconds=seconds,
                            remaining=seconds / done * left,
                        )
                    )
            for hook in self.hooks.epoch_end:
                hook(modules)
        if not means.images:
            reason = next(iter(self.images.skipped.values()), "it is empty")
            raise TrainingError(f"no image of {self.images.name!r} can be read: {reason}")
        if not all(bool(value.isfinite().all()) for value in self.parameters.values()):
            self._check_finite(math.nan, epoch)
        return EpochRecord(
            epoch=epoch + 1,
            epochs=self.plan.epochs,
            loss=loss,
            accuracy=accuracy,
            learning_rate=rate,
            seconds=time.perf_counter() - start,
            remaining=0.0,
            images=means.images,
            skipped=len(self.images.skipped),
            losses={name: means.mean(f"loss {name}") for name in self.hooks.losses},
        )

    def _step(
        self, epoch: int, rate: float, rows: Tensor, pixels: Tensor, generator: Generator
    ) -> tuple[Step, dict[str, Tensor]]:
        """Update the weights once and return the step with its losses."""
        labels = self.positions[self.images.labels[rows]].to(self.device)
        size = self.images.preprocessing.size
        pixels, views = pixels.to(self.device), self.hooks.views
        augmented = [self.plan.augmentation(pixels, size, generator) for _ in range(views)]
        images = self.images.normalize(torch.cat(augmented) if views > 1 else augmented[0])
        rows, labels = rows.repeat(views), labels.repeat(views)
        if self.hooks.batch is not None:
            images, labels = self.hooks.batch(images, labels, generator)
        with _mixed_precision(self.plan, self.device):
            features = self.network(images)
            logits = self.classifier(features)
            if logits.shape[1] < len(self.classes):
                raise TrainingError(
                    f"the classifier has {logits.shape[1]} outputs for {len(self.classes)} "
                    "classes. Create a larger one, or use expand_classifier()."
                )
            step = Step(
                self.network, self.classifier, self.heads, epoch,
                images, labels, rows, features, logits, generator,
            )  # fmt: skip
            main = self._cross_entropy(step) if self.hooks.loss is None else self.hooks.loss(step)
            extra = {name: loss(step) for name, loss in self.hooks.losses.items()}
        total = sum(extra.values(), start=main)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        for hook in self.hooks.backward:
            hook(step)
        if self.plan.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters.values(), self.plan.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        for hook in self.hooks.updated:
            hook(step)
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
                f"rate of {self.plan.learning_rate}. Lower the learning rate (to a tenth, say), or "
                "warm up over more epochs."
            )

    def save_checkpoint(self, path: Path, records: Sequence[EpochRecord]) -> None:
        """Replace the checkpoint."""
        moments = {
            f"{self.moments[key]}.{name}": self.optimizer.state[parameter][key]
            for name, parameter in self.parameters.items()
            for key in self.moments
            if self.optimizer.state[parameter].get(key) is not None
        }
        state = {"identity": self.identity, "records": [asdict(record) for record in records]}
        tensors = {**self._weights(), **moments}
        write_tensors(path, tensors, {"state": json.dumps(state)}, _FORM, TrainingError)

    def load_checkpoint(self, path: Path) -> list[EpochRecord]:
        """Restore the state of a checkpoint, if it exists, and return its records."""
        if not path.exists():
            return []
        tensors, metadata = read_tensors(path, _FORM, TrainingError)
        identity, records = read_state(path, metadata)
        weights = self._weights()
        moments = {
            f"{prefix}.{name}": (parameter, key)
            for name, parameter in self.parameters.items()
            for key, prefix in self.moments.items()
        }
        optional = {
            name: torch.zeros(()) if key == "step" else parameter
            for name, (parameter, key) in moments.items()
        }
        layer = layer_difference(tensors, weights, optional)
        different = [*([layer] if layer else []), *different_settings(identity, self.identity)]
        if different:
            raise TrainingError(
                f"{path} is the checkpoint of another run. Differences: {'; '.join(different)}. "
                "Train into another folder, or delete the file to start again."
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name in weights:
                    weights[name].copy_(tensor)
                else:
                    parameter, key = moments[name]
                    # The layout of the parameter; Adam keeps its number of steps on the CPU.
                    like = tensor if key == "step" else parameter
                    buffer = torch.empty_like(like).copy_(tensor)
                    self.optimizer.state[parameter][key] = buffer
        return records


def _optimizer(plan: TrainingPlan, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a plan."""
    rate, decay = plan.learning_rate, plan.weight_decay
    if plan.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=rate, momentum=plan.momentum, weight_decay=decay)


@contextmanager
def _seeded(seed: int, device: Any) -> Iterator[None]:
    """Seed torch's global generators, for dropout and the like, and restore them afterwards."""
    on_gpu = device.type == "cuda"
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if on_gpu else []))
        if on_gpu:  # the fastest algorithms of cuDNN differ from run to run
            stack.enter_context(
                torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
            )
        torch.manual_seed(seed)
        yield


def _mixed_precision(plan: TrainingPlan, device: Any) -> AbstractContextManager[object]:
    """Return a context of bfloat16, if any; its range is that of float32: nothing is scaled."""
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if plan.mixed_precision == "everywhere" or (plan.mixed_precision and on_gpu):
        context: AbstractContextManager[object] = torch.autocast(device.type, dtype=torch.bfloat16)
        return context
    return nullcontext()
