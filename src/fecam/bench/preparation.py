"""From an experiment to features: load the data, encode it, or train the network that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fecam import encoders
from fecam.bench.spec import FirstTask, Spec
from fecam.data import Dataset, load
from fecam.data.dataset import fingerprint_of
from fecam.data.places import cache_folder
from fecam.errors import MissingPackageError, SpecError
from fecam.features import extract
from fecam.scenarios import Scenario, build

Record = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a stage of a run has come."""

    stage: str
    done: int
    total: int


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


def load_data(spec: Spec, root: Path | None, download: bool) -> Dataset:
    """The data set of an experiment."""
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
    return data


def prepare(
    spec: Spec, data: Dataset, seed: int, device: Any, watch: Watch
) -> Iterator[Record | Prepared]:
    """Records of the training, if there is one, then what was prepared."""
    if data.kind == "features":
        yield Prepared(data, _scenario(spec, data, seed), None)
        return
    accuracy = None
    if spec.first_task is not None:
        scenario = _scenario(spec, data, seed)
        folder = None
        for record in _train(spec.first_task, data, scenario, seed, device, watch):
            if isinstance(record, Path):
                folder = record
            else:
                accuracy = record["test_accuracy"]
                yield record
        encoder = encoders.load(f"resnet18:{folder}", device=device)
    else:
        assert spec.encoder is not None
        encoder = encoders.load(spec.encoder.name, device=device, **spec.encoder.options)
    features = extract(
        data, encoder, report=lambda now: watch(Progress("features", now.done, now.total))
    )
    about = {"name": encoder.name, "fingerprint": encoder.fingerprint}
    if spec.first_task is not None:  # where it lies is nobody's business
        about["name"] = f"resnet18, width {spec.first_task.width}, trained here"
    yield Prepared(features, _scenario(spec, features, seed), about, accuracy)


def _scenario(spec: Spec, data: Dataset, seed: int) -> Scenario:
    return build(data, spec.scenario.name, seed=seed, **spec.scenario.options)


def _train(
    wanted: FirstTask, data: Dataset, scenario: Scenario, seed: int, device: Any, watch: Watch
) -> Iterator[Record | Path]:
    """A record an epoch, then the file of the encoder. A network trained before is found again."""
    try:
        from fecam.encoders import first_task
    except ModuleNotFoundError as error:
        raise MissingPackageError("training a network", error.name or "torch", "images") from None
    everything = wanted.classes == "all"
    classes = sorted(scenario.class_order if everything else scenario.base_classes)
    tasks = scenario[:] if everything else scenario[:1]
    shown = _marked(data, np.concatenate([task.train for task in tasks]), scenario[-1].test)
    plan = first_task.plan_for(data.name, wanted.size or 32)
    if wanted.epochs is not None and wanted.epochs != plan.epochs:
        plan = first_task.short_plan(plan, wanted.epochs)
    try:
        plan = replace(plan, **{"seed": seed, **wanted.plan})
    except TypeError as error:
        raise SpecError(f"first_task.plan: {error}") from None
    what = [shown.fingerprint, classes, plan.as_dict(), wanted.width, wanted.size]
    folder = cache_folder() / "first-tasks" / fingerprint_of(what)
    for record in first_task.train_first_task(
        shown,
        classes,
        plan,
        folder=folder,
        width=wanted.width,
        size=wanted.size,
        test_every=0,
        progress=lambda now: watch(
            Progress("training", (now.epoch - 1) * now.of + now.batches, now.epochs * now.of)
        ),
        device=device,
    ):
        yield {"kind": "training", "seed": seed, **asdict(record)}
    yield folder / first_task.ENCODER_FILE


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
