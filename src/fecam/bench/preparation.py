"""From an experiment to features: load the data, encode it, or train the network that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from fecam import encoders
from fecam.bench.spec import Component, FirstTask, Spec
from fecam.data import Dataset, load
from fecam.data.dataset import fingerprint_of
from fecam.data.download import report_downloads
from fecam.data.paths import cache_folder, ensure_writable
from fecam.errors import MissingPackageError, SpecError, TrainingError
from fecam.features import extract
from fecam.scenarios import Scenario, build

Record = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a stage of a run has come."""

    stage: str
    done: int
    total: int | None
    """None where nobody knows."""


Watch = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What all heads of a seed share."""

    features: Dataset
    scenario: Scenario
    encoder: dict[str, Any] | None
    """Its name and fingerprint; None if the data were features already."""
    network_accuracy: float | None = None
    """Of the classifier that was trained with the network, on the test rows of its classes."""

    @property
    def width(self) -> int:
        """How many features a sample has."""
        return int(np.shape(self.features.items)[1])


def load_data(spec: Spec, root: Path | None, download: bool, watch: Watch) -> Dataset:
    """The data set of an experiment, checked to be one that it can be run on."""
    with report_downloads(
        lambda done, total: watch(Progress(f"download of {spec.dataset.name}", done, total))
    ):
        data = load(spec.dataset.name, root=root, download=download, **spec.dataset.options)
    if data.kind == "features" and (spec.encoder or spec.first_task):
        raise SpecError(
            f"{spec.name}: {data.name!r} holds features already. Take encoder and first_task out"
        )
    if data.kind != "features" and not (spec.encoder or spec.first_task):
        raise SpecError(
            f"{spec.name}: {data.name!r} holds {data.kind}. Say in [encoder] or [first_task] what "
            "makes features of them"
        )
    for seed in spec.seeds:  # what cannot be is found out now, not after hours of training
        _check_network(spec, _scenario(spec, data, seed))
    return data


def prepare(
    spec: Spec, data: Dataset, seeds: Iterable[int], device: Any, watch: Watch
) -> Iterator[Record | Prepared]:
    """For each seed the records of the training, if there is one, then what was prepared.

    All seeds share their features, unless each has trained a network of its own.
    """
    if spec.first_task is None:
        features, about = _encoded(spec.encoder, data, device, watch)
        for seed in seeds:
            yield Prepared(features, _scenario(spec, features, seed), about)
        return
    for seed in seeds:
        of = f" of seed {seed}" if len(spec.seeds) > 1 else ""
        named = _renamed(watch, of)
        accuracy, file = None, ""
        for record in _train(spec.first_task, data, _scenario(spec, data, seed), device, named):
            if isinstance(record, Path):
                file = str(record)
            else:
                accuracy = record["test_accuracy"]
                yield record
        features, about = _encoded(Component(f"resnet18:{file}"), data, device, named)
        # Where it lies is nobody's business.
        about = {**(about or {}), "name": f"resnet18, width {spec.first_task.width}, trained here"}
        yield Prepared(features, _scenario(spec, features, seed), about, accuracy)


def _encoded(
    source: Component | None, data: Dataset, device: Any, watch: Watch
) -> tuple[Dataset, dict[str, Any] | None]:
    """The features, and what made them; nothing, if the data are features already."""
    if source is None:
        return data, None
    encoder = encoders.load(source.name, device=device, **source.options)
    features = extract(
        data, encoder, report=lambda now: watch(Progress("features", now.done, now.total))
    )
    return features, {"name": encoder.name, "fingerprint": encoder.fingerprint}


def _renamed(watch: Watch, of: str) -> Watch:
    return lambda now: watch(replace(now, stage=now.stage + of))


def _scenario(spec: Spec, data: Dataset, seed: int) -> Scenario:
    return build(data, spec.scenario.name, seed=seed, **spec.scenario.options)


def _check_network(spec: Spec, scenario: Scenario) -> None:
    """The network can answer after the first task if it was trained for that, and nothing else."""
    asked = [head.label for head in spec.heads if head.first_task == "network"]
    if not asked or spec.first_task is None:
        return
    joint = spec.first_task.classes == "all" and len(scenario) > 1
    if joint or len(scenario[0].parts) > 1:
        why = "it is trained on all classes" if joint else "the test rows are in several parts"
        raise SpecError(
            f"{spec.name}: the head {asked[0]!r} leaves the first task to the network, but {why}. "
            'Take first_task = "network" out'
        )


def _train(
    wanted: FirstTask, data: Dataset, scenario: Scenario, device: Any, watch: Watch
) -> Iterator[Record | Path]:
    """A record an epoch, then the file of the encoder. A network trained before is found again."""
    try:
        from fecam.training import base_training
    except ModuleNotFoundError as error:
        raise MissingPackageError("training a network", error.name or "torch", "images") from None
    everything = wanted.classes == "all"
    classes = sorted(scenario.class_order if everything else scenario.base_classes)
    tasks = scenario[:] if everything else scenario[:1]
    shown = _marked(data, np.concatenate([task.train for task in tasks]), scenario[-1].test)
    plan = base_training.plan_for(data.name, base_training.image_size(data, wanted.size))
    if wanted.epochs is not None and wanted.epochs != plan.epochs:
        plan = base_training.scale_schedule(plan, wanted.epochs)
    try:
        plan = plan.changed({"seed": scenario.seed, **wanted.plan})
    except TrainingError as error:
        raise SpecError(f"first_task.plan: {error}") from None
    what = [shown.fingerprint, classes, plan.as_dict(), wanted.width, wanted.size]
    home = ensure_writable(cache_folder() / "first-tasks")
    name = fingerprint_of(what)
    with _alone(home / f".{name}.lock", watch):
        for record in base_training.train_base_classes(
            shown,
            classes,
            plan,
            folder=home / name,
            width=wanted.width,
            size=wanted.size,
            test_every=0,
            progress=lambda now: watch(
                Progress(
                    "training",
                    (now.epoch - 1) * now.n_batches + now.batch,
                    now.epochs * now.n_batches,
                )
            ),
            device=device,
        ):
            yield {"kind": "training", "seed": scenario.seed, **asdict(record)}
    yield home / name / base_training.ENCODER_FILE


@contextmanager
def _alone(path: Path, watch: Watch) -> Iterator[None]:
    """Two runs that need the same network: one trains it, the other waits and finds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        watch(Progress("waiting for another run that trains this network", 0, None))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _marked(data: Dataset, learnt: Any, test: Any) -> Dataset:
    """The data set with these rows to learn from, and of the others only those to test with."""
    is_test = np.ones(len(data), bool)
    is_test[learnt] = False
    outside = is_test.copy()
    outside[test] = False
    if not outside.any() and np.array_equal(is_test, np.asarray(data.is_test)):
        return data
    rows = np.flatnonzero(~outside)
    chosen = replace(data.subset(rows), is_test=is_test[rows])
    return replace(chosen, fingerprint=fingerprint_of([chosen.fingerprint, is_test[rows]]))
