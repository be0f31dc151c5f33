"""An experiment as a TOML file: data, encoder, scenario, heads, seeds.

All keys are checked before any work starts; an unknown key is an error that suggests a similar one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fecam import heads
from fecam.bench.learner_spec import (
    NONE,
    LaterTasks,
    LearnerSpec,
    read_later_tasks,
    read_learners,
    read_networks,
)
from fecam.errors import FecamError, SpecError
from fecam.scenarios.catalogue import check_options
from fecam.validation import check_choice, check_int, check_keys, check_number, is_int, suggestion

ANALYSES = ("singular-values", "tsne")
FIRST_TASK_OF_ENCODER = ("epochs", "plan")
"""What a file may say of the first task if the network of its learners is an encoder's."""
FIRST_TASK_CLASSES = ("base", "all")
FIRST_TASK_NETWORKS = ("resnet18", "resnet20", "resnet12")
PAPER_METRICS = ("average", "last", "old", "new", "harmonic")
PAPER_TASKS = "tasks"
"""The key of a list with the accuracy after each task."""
SUFFIX = ".toml"
_SPECS = resources.files("fecam.bench") / "specs"


@dataclass(frozen=True)
class Component:
    """A data set, an encoder or a scenario: its name and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstTask:
    """A network that is trained on the classes of the first task, then frozen."""

    classes: str = "base"
    """``base`` for those of the first task, or ``all``: joint training, the upper bound."""
    width: int = 64
    epochs: int | None = None
    """None for those of the paper."""
    size: int | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the training plan."""
    network: str = "resnet18"


@dataclass(frozen=True)
class HeadSpec:
    """A head of an experiment."""

    name: str
    label: str
    """Its name in tables and curves."""
    options: Mapping[str, Any] = field(default_factory=dict)
    first_task: str = "head"
    """``network``: its own classifier predicts the first task, as in the authors' ResNet code."""
    network: str | None = None
    """The label of one of ``networks``, which computes its features."""


@dataclass(frozen=True)
class Spec:
    """An experiment with all defaults, checked.

    Parameters
    ----------
    name, title : str
        The name of its folder, and of its report.
    dataset, scenario : Component
        Where samples come from, and how they are split into tasks.
    heads : tuple of HeadSpec
        The classifiers to compare.
    learners : tuple of LearnerSpec
        The methods that train the network of ``first_task`` in each task.
    later_tasks : LaterTasks
        How they train it after the first.
    encoder : Component or None
        Computes the features.
    first_task : FirstTask or None
        The network to train instead of an encoder; or how learners train that of the encoder.
    networks : tuple of LearnerSpec
        Learners that train the network of ``first_task``, each its own. Every head is run on the
        features of each.
    seeds : tuple of int
        One run per seed.
    analyses : tuple of str
        Some of `ANALYSES`.
    paper : mapping
        What the paper reports: ``source``, ``note``, and ``figures`` by the label of a head.
    """

    name: str
    title: str
    dataset: Component
    scenario: Component
    heads: tuple[HeadSpec, ...]
    learners: tuple[LearnerSpec, ...] = ()
    later_tasks: LaterTasks = field(default_factory=LaterTasks)
    encoder: Component | None = None
    first_task: FirstTask | None = None
    networks: tuple[LearnerSpec, ...] = ()
    seeds: tuple[int, ...] = (1993,)
    analyses: tuple[str, ...] = ()
    paper: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the tables of the file, with all defaults.

        Returns
        -------
        dict
            The tables and values by key.
        """
        written: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "seeds": list(self.seeds),
            "analyses": list(self.analyses),
            "dataset": {"name": self.dataset.name, **self.dataset.options},
            "scenario": {"kind": self.scenario.name, **self.scenario.options},
        }
        if self.encoder is not None:
            written["encoder"] = {"name": self.encoder.name, **self.encoder.options}
        if self.first_task is not None:
            names = FIRST_TASK_OF_ENCODER if self.encoder is not None else vars(self.first_task)
            values = {name: getattr(self.first_task, name) for name in names}
            written["first_task"] = {
                key: x
                for key, x in values.items()
                if x is not None and (key, x) != ("network", "resnet18")  # as before it was a key
            }
        if later := self.later_tasks.as_dict():
            written["later_tasks"] = later
        if self.networks:
            written["networks"] = [network.as_dict() for network in self.networks]
        if self.paper:
            written["paper"] = dict(self.paper)
        tables = [
            {
                "name": head.name,
                "label": head.label,
                **({} if head.first_task == "head" else {"first_task": head.first_task}),
                **({} if head.network is None else {"network": head.network}),
                **{key: NONE if x is None else x for key, x in head.options.items()},
            }
            for head in self.heads
        ]
        if tables:
            written["heads"] = tables
        if self.learners:
            written["learners"] = [learner.as_dict() for learner in self.learners]
        return written

    def as_toml(self) -> str:
        """Return the text of the file.

        Returns
        -------
        str
            TOML that `load` reads as the same experiment.
        """
        return tomli_w.dumps(_plain(self.as_dict()))

    def select_heads(self, labels: Iterable[str]) -> Spec:
        """Return the experiment with some of its heads and learners.

        Parameters
        ----------
        labels : iterable of str
            The labels of heads and learners.

        Returns
        -------
        Spec
            The experiment with these alone.
        """
        selected = list(labels)
        own = [method.label for method in self.methods]
        check_keys(self.name, selected, own, kind="head", error=SpecError)
        heads = tuple(head for head in self.heads if head.label in selected)
        learners = tuple(learner for learner in self.learners if learner.label in selected)
        used = {head.network for head in heads}
        trained = bool(learners) or self.encoder is None
        return replace(
            self,
            heads=heads,
            learners=learners,
            networks=tuple(network for network in self.networks if network.label in used),
            first_task=self.first_task if trained else None,
        )

    @property
    def methods(self) -> tuple[HeadSpec | LearnerSpec, ...]:
        """The heads, then the learners."""
        return (*self.heads, *self.learners)


def available() -> list[str]:
    """Return the names of the experiments in the package.

    Returns
    -------
    list of str
        The names, sorted.

    Examples
    --------
    >>> "digits" in available()
    True
    """
    names = (file.name for file in _SPECS.iterdir())
    return sorted(
        name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and name[0] != "_"
    )


def load(what: str | Path, changes: Mapping[str, Any] | None = None) -> Spec:
    """Load an experiment.

    Parameters
    ----------
    what : str or path
        Its name in `available`, or a ``.toml`` file.
    changes : mapping, optional
        Other values by dotted keys: ``{"first_task.epochs": 30}``.

    Returns
    -------
    Spec
        The checked experiment.

    Raises
    ------
    SpecError
        If there is no such experiment, or it is invalid.

    Examples
    --------
    >>> load("digits").scenario.name
    'class-incremental'
    """
    name, table = _read(what, ())
    for key, value in (changes or {}).items():
        _change(table, key, value)
    try:
        return _spec(name, table)
    except FecamError as error:
        raise SpecError(f"{what}: {error}") from None


def _read(what: str | Path, above: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the name of a file and its table, merged over the files that it extends."""
    text, name = str(what), Path(what).stem
    if text in above:
        raise SpecError(f"{' extends '.join((*above, text))}: files extend each other in a circle")
    bundled = _SPECS / f"{text}{SUFFIX}"
    is_file = text.endswith(SUFFIX) or "/" in text
    if not is_file and not bundled.is_file():
        raise SpecError(
            f"there is no experiment {text!r}.{suggestion(text, available())} `fecam bench --list` "
            f"lists them; the name of a file ends in {SUFFIX}"
        )
    try:
        table = tomllib.loads((Path(what) if is_file else bundled).read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{text} is not TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"the experiment {text} cannot be read: {reason}") from None
    extends = table.pop("extends", [])
    added = {key: table.pop(f"extra_{key}", []) for key in ("heads", "learners")}
    bases = [extends] if isinstance(extends, str) else extends
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise SpecError(f"{text}: extends={extends!r} must name an experiment, or list some.")
    merged: dict[str, Any] = {}
    for base in bases:
        beside = base.endswith(SUFFIX) and not bundled.is_file()
        _, below = _read(Path(what).parent / base if beside else base, (*above, text))
        merged = _merged(merged, below)
    merged = _merged(merged, table)
    for kind, extra in added.items():  # the key alone would replace the whole list
        if extra:
            for key, tables in ((kind, merged.get(kind, [])), (f"extra_{kind}", extra)):
                _check_tables(key, tables, f"{text}: ")
            merged[kind] = [*merged.get(kind, []), *extra]
    return name, merged


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables merged by key; other values are replaced, and False removes a table."""
    merged = dict(below)
    for key, value in above.items():
        if value is False and isinstance(merged.get(key), dict):
            del merged[key]
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def _change(table: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise SpecError(f"{key}: {name} is a value, not a table with the key {last}")
    table[last] = value


# `_read` removes extends, extra_heads and extra_learners.
_KEYS = (
    "name", "title", "seeds", "analyses", "dataset", "encoder", "first_task", "later_tasks",
    "networks", "scenario", "heads", "extra_heads", "learners", "extra_learners", "paper",
    "extends",
)  # fmt: skip


def _spec(name: str, table: dict[str, Any]) -> Spec:
    if "more_heads" in table:
        raise SpecError("more_heads is the former name of extra_heads: write extra_heads.")
    check_keys("the experiment", table, _KEYS, kind="key", error=SpecError)
    required = ("dataset", "scenario", *(() if table.get("learners") else ("heads",)))
    for key in required:
        if key not in table:
            raise SpecError(f"{key!r} is missing: an experiment needs it")
    _check_tables("learners", table.get("learners", []))
    _check_tables("networks", table.get("networks", []))
    first = table.get("first_task")
    if first is not None and "encoder" in table:
        if not table.get("learners"):
            raise SpecError(
                "encoder and first_task exclude each other: remove one of them, or add learners "
                "that train the network of the encoder"
            )
        check_keys(
            "first_task beside an encoder", first, FIRST_TASK_OF_ENCODER, kind="key",
            error=SpecError,
        )  # fmt: skip
    analyses = _typed(table, "analyses", list, [])
    for analysis in analyses:
        check_choice("analyses", analysis, ANALYSES, error=SpecError)
    networks = tuple(read_networks(table.get("networks", [])))
    spec = Spec(
        name=_typed(table, "name", str, name),
        title=_typed(table, "title", str, name),
        dataset=_component(table, "dataset", "name"),
        scenario=_component(table, "scenario", "kind"),
        encoder=_component(table, "encoder", "name") if "encoder" in table else None,
        first_task=None if first is None else _first_task(first),
        networks=networks,
        heads=tuple(_on_networks(_heads(table["heads"]), networks)) if "heads" in table else (),
        learners=tuple(read_learners(table.get("learners", []))),
        later_tasks=read_later_tasks(table.get("later_tasks", {})),
        seeds=_seeds(_typed(table, "seeds", list, [1993])),
        analyses=tuple(analyses),
        paper=_paper(_typed(table, "paper", dict, {})),
    )
    check_options(spec.scenario.name, spec.scenario.options)
    labels = [method.label for method in spec.methods]
    if repeated := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise SpecError(f"two heads have the label {repeated[0]!r}: give one of them another")
    if spec.learners:
        _check_learners(spec)
    if spec.networks:
        _check_networks(spec)
    trained = spec.first_task is not None and spec.encoder is None
    if not trained and any(head.first_task == "network" for head in spec.heads):
        raise SpecError("a head leaves the first task to the network, but none is trained")
    return spec


def _check_learners(spec: Spec) -> None:
    """Raise if the experiment does not say which network its learners train, and on what."""
    if spec.first_task is None:
        raise SpecError(
            "learners are trained as [first_task] says, which is missing: write it, with epochs, "
            "and with width unless there is an [encoder]"
        )
    if spec.first_task.classes != "base":
        raise SpecError(
            'first_task.classes = "all" leaves learners nothing to learn: remove it; the learner '
            "'joint' trains on all classes"
        )
    if spec.scenario.name == "domain-incremental" or spec.scenario.options.get("blurry"):
        raise SpecError(
            "learners are told each class once: choose the scenario class-incremental or few-shot, "
            "with blurry = 0"
        )


def _check_networks(spec: Spec) -> None:
    """Raise if networks cannot be trained, or a head needs the classifier of one."""
    if spec.first_task is None or spec.encoder is not None or spec.first_task.classes != "base":
        raise SpecError(
            "[[networks]] are trained on the classes of the first task as [first_task] says: write "
            'it, without classes = "all" and without [encoder]'
        )
    if labels := [head.label for head in spec.heads if head.first_task == "network"]:
        raise SpecError(
            f"the head {labels[0]!r} leaves the first task to the network, but networks have no "
            'classifier here: remove first_task = "network" or [[networks]]'
        )


def _on_networks(heads: Iterable[HeadSpec], networks: Iterable[LearnerSpec]) -> Iterable[HeadSpec]:
    """Yield each head once per network, unless it names one; without networks as it is."""
    own, labels = list(heads), [network.label for network in networks]
    for head in own:
        if head.network is not None:
            check_choice("network of a head", head.network, labels, error=SpecError)
    yield from (head for head in own if head.network is not None or not labels)
    for label in labels:
        for head in own:
            if head.network is None:
                yield replace(head, label=f"{label}, {head.label}", network=label)


def _component(table: Mapping[str, Any], key: str, naming: str) -> Component:
    options = dict(_typed(table, key, dict, {}))
    name = options.pop(naming, None)
    if not isinstance(name, str):
        raise SpecError(f"[{key}] needs a {naming}, as text, not {name!r}")
    return Component(name, options)


def _first_task(table: Any) -> FirstTask:
    if not isinstance(table, dict):
        raise SpecError(f"first_task={table!r} must be a table: write [first_task]")
    keys = FirstTask.__dataclass_fields__
    check_keys("first_task", table, keys, kind="key", error=SpecError)
    classes = table.get("classes", "base")
    check_choice("first_task.classes", classes, FIRST_TASK_CLASSES, error=SpecError)
    network = table.get("network", "resnet18")
    check_choice("first_task.network", network, FIRST_TASK_NETWORKS, error=SpecError)
    for key in ("width", "epochs", "size"):
        check_int(f"first_task.{key}", table.get(key, 1), error=SpecError)
    return FirstTask(**table)


def _heads(tables: Any) -> Iterable[HeadSpec]:
    _check_tables("heads", tables)
    if not tables:
        raise SpecError("there are no heads: write [[heads]] and the name of one")
    for table in tables:
        options = dict(table)
        name, label = options.pop("name", None), options.pop("label", None)
        first_task, vary = options.pop("first_task", "head"), options.pop("vary", {})
        network = options.pop("network", None)
        if not isinstance(name, str):
            raise SpecError(f"a head needs a name, as text: {table} has {name!r}")
        check_choice("first_task of a head", first_task, ("head", "network"), error=SpecError)
        for varied, suffix in _variants(vary):
            values = {
                key: None if value == NONE else value
                for key, value in {**options, **varied}.items()
            }
            heads.make(name, **values)  # raises an error for invalid options
            yield HeadSpec(name, f"{label or name}{suffix}", values, first_task, network)


def _check_tables(key: str, tables: Any, where: str = "") -> None:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SpecError(f"{where}{key} must be a list of tables: write [[{key}]] above each")


def _variants(vary: Any) -> Iterable[tuple[dict[str, Any], str]]:
    """Yield one head per value: ``vary = {shrinkage = [[0, 0], [1, 1]]}``."""
    if not vary:
        yield {}, ""
        return
    pairs = [*vary.items()] if isinstance(vary, dict) else []
    if len(pairs) != 1 or not isinstance(pairs[0][1], list):
        raise SpecError(f"vary={vary!r} must name one option and list its values.")
    ((option, values),) = pairs
    for value in values:
        text = ", ".join(f"{x:g}" for x in value) if isinstance(value, list) else str(value)
        yield {option: value}, f", {option} {text}"


def _seeds(seeds: list[Any]) -> tuple[int, ...]:
    if not seeds or not all(is_int(seed) and 0 <= seed < 2**32 for seed in seeds):
        raise SpecError(f"seeds={seeds!r} must be a list of integers >= 0.")
    if len(set(seeds)) < len(seeds):
        raise SpecError(f"seeds={seeds!r} names a seed twice: remove one of them.")
    return tuple(seeds)


def _paper(table: dict[str, Any]) -> dict[str, Any]:
    check_keys("paper", table, ("source", "note", "figures"), kind="key", error=SpecError)
    for key, kind in (("source", str), ("note", str), ("figures", dict)):
        _typed(table, key, kind, kind(), "paper.")
    for label, figures in table.get("figures", {}).items():
        where = f"paper.figures.{label}"
        if not isinstance(figures, dict):
            raise SpecError(f"{where}={figures!r} must be a table, as {{average = 70.9}}.")
        check_keys(where, figures, (*PAPER_METRICS, PAPER_TASKS), kind="key", error=SpecError)
        for name, figure in figures.items():
            values = figure if name == PAPER_TASKS and isinstance(figure, list) else [figure]
            for value in values:
                check_number(f"{where}.{name}", value, note=" in percent", error=SpecError)
    return table


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str = "") -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        names: dict[type, str] = {str: "text", list: "a list", dict: "a table"}
        raise SpecError(f"{where}{key}={value!r} must be {names[kind]}.")
    return value


def _plain(value: Any) -> Any:
    """Return a value as TOML can hold it: tuples become lists, and None is left out."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
