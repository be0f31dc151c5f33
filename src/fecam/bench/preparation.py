"""From an experiment to features: load the data, encode it, or train the network that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from fecam import encoders
from fecam.bench.learner_spec import LaterTasks
from fecam.bench.spec import Component, FirstTask, Spec
from fecam.data import Dataset, load
from fecam.data.dataset import fingerprint_of
from fecam.data.download import report_downloads
from fecam.data.paths import cache_folder, ensure_writable
from fecam.errors import MissingPackageError, SpecError, TrainingError
from fecam.features import extract
from fecam.scenarios import Scenario, build

if TYPE_CHECKING:
    from fecam.learners import Recipe
    from fecam.training.plan import TrainingPlan

Record = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """Progress of a stage of a run."""

    stage: str
    done: int
    total: int | None
    """None if it is not known."""
    note: str = ""
    """What else is known, such as the loss."""


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What learners train on, and with which network."""

    data: Dataset
    """All images: the runner hands a learner those of one task at a time."""
    first: Dataset
    """The training images of the first task, as the network of the heads is trained on them."""
    plan: TrainingPlan
    """Of the first task."""
    later: TrainingPlan
    first_task: FirstTask
    encoder: Component | None
    """Whose network is trained; None for a new ResNet-18."""
    checkpoints: Path
    """Where first tasks are kept; see `first_checkpoint`."""
    folder: Path
    """Where the states of learners are kept."""
    device: Any

    def first_checkpoint(self, key: str) -> Path:
        """Return the checkpoint of a first task; the key is empty for plain cross-entropy."""
        from fecam.training.base_training import CHECKPOINT_FILE

        name = f"{self.checkpoints.name}-{key}" if key else self.checkpoints.name
        return self.checkpoints.with_name(name) / CHECKPOINT_FILE

    @contextmanager
    def locked_first_checkpoint(self, key: str, progress: ProgressCallback) -> Iterator[Path]:
        """Return the checkpoint of a first task, which no other run trains meanwhile."""
        checkpoint = self.first_checkpoint(key)
        checkpoint.parent.parent.mkdir(parents=True, exist_ok=True)
        lock = checkpoint.parent.with_name(f".{checkpoint.parent.name}.lock")
        with exclusive(lock, progress):
            yield checkpoint

    @contextmanager
    def locked_later_checkpoint(self, key: str, task: int) -> Iterator[Path]:
        """Return the checkpoint of a later task, which no other learner trains meanwhile."""
        shared = ensure_writable(self.folder / "shared")
        with exclusive(shared / f".{key}.lock", lambda now: None):
            yield shared / key / f"task-{task}.safetensors"

    def recipe(self, changes: LaterTasks) -> Recipe:
        """Return the recipe of a learner with these changes of later tasks."""
        from fecam.learners import recipe_for, transformer_recipe

        later = later_plan(self.later, changes) if changes.as_dict() else self.later
        if self.encoder is not None:
            options = {**self.encoder.options, "device": self.device}
            return transformer_recipe(self.encoder.name, self.plan, later, **options)
        return recipe_for(
            self.first,
            sorted(set(self.first.labels.tolist())),
            self.plan,
            later,
            width=self.first_task.width,
            size=self.first_task.size,
            network_name=self.first_task.network,
            device=self.device,
        )


@dataclass(frozen=True, eq=False)
class PreparedScenario:
    """Features and tasks of one seed, which all heads share."""

    features: Dataset
    scenario: Scenario
    encoder: dict[str, Any] | None
    """Name and fingerprint; None if the data are features."""
    network_accuracy: float | None = None
    """Of the classifier that was trained with the network, on the test rows of its classes."""
    training: TrainingData | None = None
    """For learners."""
    network: str | None = None
    """The label of the network that computed the features, if the experiment has several."""

    @property
    def width(self) -> int:
        """Number of features of a sample."""
        return int(np.shape(self.features.items)[1])


def load_data(spec: Spec, root: Path | None, download: bool, progress: ProgressCallback) -> Dataset:
    """Return the data set of an experiment; raise an error if the experiment cannot use it."""
    with report_downloads(
        lambda done, total: progress(Progress(f"download of {spec.dataset.name}", done, total))
    ):
        data = load(spec.dataset.name, root=root, download=download, **spec.dataset.options)
    if data.kind == "features" and (spec.encoder or spec.first_task):
        raise SpecError(
            f"{spec.name}: {data.name!r} holds features. Remove encoder and first_task."
        )
    if data.kind != "features" and not (spec.encoder or spec.first_task):
        raise SpecError(
            f"{spec.name}: {data.name!r} holds {data.kind}. Say in [encoder] or [first_task] how "
            "to compute their features."
        )
    for seed in spec.seeds:  # check all seeds before hours of training
        _check_network(spec, _scenario(spec, data, seed))
    if spec.first_task is not None and (spec.learners or spec.networks):
        first = first_plan(spec.first_task, data, spec.seeds[0])
        for table in (spec.later_tasks, *(learner.later_tasks for learner in spec.learners)):
            later_plan(first, table)
        counts = [len(task.classes) for task in _scenario(spec, data, spec.seeds[0])]
        _check_learners(spec, spec.first_task, first, counts)
    return data


def prepare(
    spec: Spec,
    data: Dataset,
    seeds: Iterable[int],
    device: Any,
    progress: ProgressCallback,
    folder: Path,
) -> Iterator[Record | PreparedScenario]:
    """Yield per seed the records of its training, if any, then its features and tasks.

    ``folder`` is where learners keep their states.
    """
    spec = _with_rows(spec, data)
    if spec.networks:
        yield from _prepare_networks(spec, data, seeds, device, progress, folder)
        return
    if spec.first_task is None or spec.encoder is not None:
        features, encoder = _encode(spec.encoder, data, device, progress)
        for seed in seeds:
            scenario = _scenario(spec, features, seed)
            training = None
            if spec.first_task is not None and encoder is not None:
                plan = first_plan(spec.first_task, data, seed)
                first = _base_rows(data, scenario)
                key = fingerprint_of([first.fingerprint, plan.as_dict(), encoder["fingerprint"]])
                checkpoints = ensure_writable(cache_folder() / "first-tasks") / key
                training = _training_data(spec, data, first, plan, checkpoints, folder, device)
            yield PreparedScenario(features, scenario, encoder, training=training)
        return
    for seed in seeds:
        suffix = f" of seed {seed}" if len(spec.seeds) > 1 else ""

        def seed_progress(now: Progress, suffix: str = suffix) -> None:
            progress(replace(now, stage=now.stage + suffix))

        accuracy, file = None, Path()
        scenario = _scenario(spec, data, seed)
        for record in _train(spec.first_task, data, scenario, device, seed_progress):
            if isinstance(record, Path):
                file = record
            else:
                accuracy = record["test_accuracy"]
                yield record
        features, encoder = _encode(Component(f"resnet18:{file}"), data, device, seed_progress)
        encoder = {**(encoder or {}), "name": _trained_name(spec.first_task)}
        training = None
        if spec.learners:
            plan = first_plan(spec.first_task, data, seed)
            first = _base_rows(data, scenario)
            training = _training_data(spec, data, first, plan, file.parent, folder, device)
        yield PreparedScenario(
            features, _scenario(spec, features, seed), encoder, accuracy, training
        )


def _prepare_networks(
    spec: Spec,
    data: Dataset,
    seeds: Iterable[int],
    device: Any,
    progress: ProgressCallback,
    folder: Path,
) -> Iterator[Record | PreparedScenario]:
    """Yield per seed and network the records of its training, then its features and tasks."""
    from fecam.bench.networks import train_network

    trained: set[Path] = set()  # seeds with equal plans share a network
    first_task = spec.first_task or FirstTask()
    for seed in seeds:
        scenario = _scenario(spec, data, seed)
        classes, split = _split(first_task, data, scenario)
        plan = first_plan(first_task, data, seed)
        checkpoints = _first_task_folder(first_task, split, classes, plan)
        first = _base_rows(data, scenario)
        training = _training_data(spec, data, first, plan, checkpoints, folder, device)
        for network in spec.networks:
            file = Path()
            for record in train_network(training, network, trained, progress):
                if isinstance(record, Path):
                    file = record
                else:
                    yield record
            trained.add(file)
            features, encoder = _encode(Component(f"resnet18:{file}"), data, device, progress)
            encoder = {**(encoder or {}), "name": _trained_name(first_task)}
            yield PreparedScenario(
                features, _scenario(spec, features, seed), encoder, None, training, network.label
            )


def _trained_name(spec: FirstTask) -> str:
    """Return the name of an encoder without its path, which is of this machine."""
    return f"{spec.network}, width {spec.width}, trained here"


def _training_data(
    spec: Spec,
    data: Dataset,
    first: Dataset,
    plan: TrainingPlan,
    checkpoints: Path,
    folder: Path,
    device: Any,
) -> TrainingData:
    """Return what the learners of an experiment train on."""
    return TrainingData(
        data,
        first,
        plan,
        later_plan(plan, spec.later_tasks),
        spec.first_task or FirstTask(),
        spec.encoder,
        checkpoints,
        folder,
        device,
    )


def _encode(
    component: Component | None, data: Dataset, device: Any, progress: ProgressCallback
) -> tuple[Dataset, dict[str, Any] | None]:
    """Return the features, and the encoder; None if the data are features."""
    if component is None:
        return data, None
    encoder = encoders.load(component.name, device=device, **component.options)
    features = extract(
        data, encoder, report=lambda now: progress(Progress("features", now.done, now.total))
    )
    return features, {"name": encoder.name, "fingerprint": encoder.fingerprint}


def _scenario(spec: Spec, data: Dataset, seed: int) -> Scenario:
    return build(data, spec.scenario.name, seed=seed, **spec.scenario.options)


def _with_rows(spec: Spec, data: Dataset) -> Spec:
    """Return the experiment with rows instead of published lists: features have no file names."""
    given = spec.scenario.options.get("given")
    if not isinstance(given, (str, Path)):
        return spec
    options = _scenario(spec, data, spec.seeds[0]).options
    rows = {**spec.scenario.options, "given": options["given"]}
    return replace(spec, scenario=replace(spec.scenario, options=rows))


def _check_network(spec: Spec, scenario: Scenario) -> None:
    """Raise if the network cannot predict the first task because it was trained for another."""
    labels = [head.label for head in spec.heads if head.first_task == "network"]
    if not labels or spec.first_task is None:
        return
    joint = spec.first_task.classes == "all" and len(scenario) > 1
    if joint or len(scenario[0].parts) > 1:
        reason = "it is trained on all classes" if joint else "the test rows are in several parts"
        raise SpecError(
            f"{spec.name}: the head {labels[0]!r} leaves the first task to the network, but "
            f'{reason}. Remove first_task = "network".'
        )


def _check_learners(
    spec: Spec, first_task: FirstTask, plan: TrainingPlan, counts: Sequence[int]
) -> None:
    """Raise if a learner cannot train the network, before anything is trained.

    ``counts`` are the new classes of each task.
    """
    from fecam import learners
    from fecam.encoders.resnet import make_network

    name, width = first_task.network, first_task.width
    network: Callable[[], Any] = partial(make_network, name, width, "small")
    if spec.encoder is not None:
        recipe = learners.transformer_recipe(spec.encoder.name, plan, **spec.encoder.options)
        network = recipe.network
    for learner in (*spec.networks, *spec.learners):
        try:
            made = learners.make(learner.name, **learner.options)
            made.check_network(network())
            made.check_classes(counts)
        except TrainingError as error:
            raise SpecError(f"the learner {learner.label!r}: {error}") from None


def _train(
    spec: FirstTask, data: Dataset, scenario: Scenario, device: Any, progress: ProgressCallback
) -> Iterator[Record | Path]:
    """Yield a record per epoch, then the encoder's file. A network is trained once and cached."""
    try:
        from fecam.training import base_training
    except ModuleNotFoundError as error:
        raise MissingPackageError("training a network", error.name or "torch", "images") from None
    classes, split = _split(spec, data, scenario)
    plan = first_plan(spec, data, scenario.seed)
    folder = _first_task_folder(spec, split, classes, plan)
    with exclusive(folder.with_name(f".{folder.name}.lock"), progress):
        for record in base_training.train_base_classes(
            split,
            classes,
            plan,
            folder=folder,
            width=spec.width,
            size=spec.size,
            network_name=spec.network,
            test_every=0,
            progress=lambda now: progress(
                Progress(
                    "training",
                    (now.epoch - 1) * now.n_batches + now.batch,
                    now.epochs * now.n_batches,
                )
            ),
            device=device,
        ):
            yield {"kind": "training", "seed": scenario.seed, **asdict(record)}
    yield folder / base_training.ENCODER_FILE


def _first_task_folder(
    spec: FirstTask, split: Dataset, classes: list[int], plan: TrainingPlan
) -> Path:
    """Return the folder of the network that is trained with plain cross-entropy."""
    parts = [split.fingerprint, classes, plan.as_dict(), spec.width, spec.size]
    if spec.network != "resnet18":
        parts.append(spec.network)
    return ensure_writable(cache_folder() / "first-tasks") / fingerprint_of(parts)


def first_plan(spec: FirstTask, data: Dataset, seed: int) -> TrainingPlan:
    """Return the plan of the first task; raise `SpecError` if it is invalid."""
    from fecam.training import base_training

    plan = base_training.plan_for(data.name, base_training.image_size(data, spec.size))
    if spec.epochs is not None and spec.epochs != plan.epochs:
        plan = base_training.scale_schedule(plan, spec.epochs)
    try:
        return plan.changed({"seed": seed, **spec.plan})
    except TrainingError as error:
        raise SpecError(f"first_task.plan: {error}") from None


def later_plan(first: TrainingPlan, spec: LaterTasks) -> TrainingPlan:
    """Return the plan of later tasks: that of the first with the changes of a table."""
    from fecam.training import base_training

    plan = first
    if spec.epochs is not None and spec.epochs != plan.epochs:
        scaled = base_training.scale_schedule(plan, spec.epochs)
        plan = replace(scaled, scale=plan.scale)
    try:
        return plan.changed(spec.plan)
    except TrainingError as error:
        raise SpecError(f"later_tasks.plan: {error}") from None


def _split(spec: FirstTask, data: Dataset, scenario: Scenario) -> tuple[list[int], Dataset]:
    """Return the classes to train the network on, and the data set with their training rows."""
    joint = spec.classes == "all"
    classes = sorted(scenario.class_order if joint else scenario.base_classes)
    train = np.concatenate([task.train for task in (scenario[:] if joint else scenario[:1])])
    return classes, _with_split(data, train, scenario[-1].test)


def _base_rows(data: Dataset, scenario: Scenario) -> Dataset:
    """Return the training rows of the first task, with the fingerprint that its network has."""
    from fecam.training import base_training

    classes, split = _split(FirstTask(), data, scenario)
    return base_training.base_rows(split, classes)


@contextmanager
def exclusive(path: Path, progress: ProgressCallback) -> Iterator[None]:
    """Let one of several runs train a network; the others wait, and read it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(Progress("waiting for another run that trains this network", 0, None))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _with_split(data: Dataset, train: Any, test: Any) -> Dataset:
    """Return the data set with these training rows, and of the others only the test rows."""
    is_test = np.ones(len(data), bool)
    is_test[train] = False
    dropped = is_test.copy()
    dropped[test] = False
    if not dropped.any() and np.array_equal(is_test, np.asarray(data.is_test)):
        return data
    rows = np.flatnonzero(~dropped)
    split = replace(data.subset(rows), is_test=is_test[rows])
    return replace(split, fingerprint=fingerprint_of([split.fingerprint, is_test[rows]]))
