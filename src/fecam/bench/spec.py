"""An experiment as a small TOML file: data, encoder, scenario, heads, seeds.

Whatever a file leaves out has a default, and whatever it says is checked before any work begins:
an unknown key is an error that suggests the right one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from fecam import heads, scenarios
from fecam.errors import FecamError, SpecError
from fecam.validation import check_choice, check_int, check_keys, check_number, is_int, suggestion

ANALYSES = ("singular-values", "tsne")
FIRST_TASK_CLASSES = ("base", "all")
PAPER_METRICS = ("average", "last", "old", "new")
NONE = "none"
"""TOML has no word for nothing, which some options of heads may be."""
SUFFIX = ".toml"
_SPECS = resources.files("fecam.bench") / "specs"


@dataclass(frozen=True)
class Component:
    """Something that is loaded by name, with options: a data set, or an encoder."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FirstTask:
    """A ResNet-18 that is trained on the classes of the first task, then frozen."""

    classes: str = "base"
    """Those of the first task, or "all": joint training, the upper bound."""
    width: int = 64
    epochs: int | None = None
    """None: as many as the paper."""
    size: int | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What else is changed of the training plan."""


@dataclass(frozen=True)
class HeadSpec:
    """A classifier on features."""

    name: str
    label: str
    """What tables and curves call it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    first_task: str = "head"
    """Who answers after the first task: the head, or, as in the authors' ResNet code, the trained
    network's own classifier ("network")."""


@dataclass(frozen=True)
class Spec:
    """An experiment, complete and checked."""

    name: str
    title: str
    dataset: Component
    scenario: Component
    heads: tuple[HeadSpec, ...]
    encoder: Component | None = None
    first_task: FirstTask | None = None
    seeds: tuple[int, ...] = (1993,)
    analyses: tuple[str, ...] = ()
    paper: Mapping[str, Any] = field(default_factory=dict)
    """What the paper reports: ``source``, ``note``, and ``figures`` by the label of a head."""

    def as_dict(self) -> dict[str, Any]:
        """As a file would say it, with nothing left to defaults."""
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
            chosen = {k: getattr(self.first_task, k) for k in FirstTask.__dataclass_fields__}
            written["first_task"] = {k: v for k, v in chosen.items() if v is not None}
        if self.paper:
            written["paper"] = dict(self.paper)
        written["heads"] = [
            {
                "name": head.name,
                "label": head.label,
                **({} if head.first_task == "head" else {"first_task": head.first_task}),
                **{key: NONE if one is None else one for key, one in head.options.items()},
            }
            for head in self.heads
        ]
        return written

    def as_toml(self) -> str:
        """The experiment as a file."""
        return tomli_w.dumps(_plain(self.as_dict()))

    def select_heads(self, labels: Iterable[str]) -> Spec:
        """The same with some of its heads."""
        wanted = list(labels)
        own = [head.label for head in self.heads]
        check_keys(self.name, wanted, own, kind="head", error=SpecError)
        return replace(self, heads=tuple(one for one in self.heads if one.label in wanted))


def available() -> list[str]:
    """The names of the experiments that come with the package."""
    names = (one.name for one in _SPECS.iterdir())
    return sorted(
        name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and name[0] != "_"
    )


def load(what: str | Path, changes: Mapping[str, Any] | None = None) -> Spec:
    """An experiment by its name, or the file that describes one.

    ``changes`` go over what the file says, by dotted keys: ``{"first_task.epochs": 30}``.

    >>> load("digits").scenario.name
    'class-incremental'

    Raises:
        SpecError: there is no such experiment, or it cannot be run as written.
    """
    name, table = _read(what, ())
    for key, value in (changes or {}).items():
        _change(table, key, value)
    try:
        return _spec(name, table)
    except FecamError as error:
        raise SpecError(f"{what}: {error}") from None


def _read(what: str | Path, above: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The table of a file, with those that it extends below it."""
    text, name = str(what), Path(what).stem
    if text in above:
        raise SpecError(f"{' extends '.join((*above, text))}: that goes round in a circle")
    inside = _SPECS / f"{text}{SUFFIX}"
    if text.endswith(SUFFIX) or "/" in text:
        content = _text(Path(what))
    elif inside.is_file():
        content = inside.read_text("utf-8")
    else:
        raise SpecError(
            f"there is no experiment {text!r}.{suggestion(text, available())} `fecam bench --list` "
            f"lists them; a file of your own ends in {SUFFIX}"
        )
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{text} is not TOML: {error}") from None
    bases, more = table.pop("extends", []), table.pop("extra_heads", [])
    merged: dict[str, Any] = {}
    for base in _bases(text, bases):
        near = Path(what).parent / base
        found = near if str(base).endswith(SUFFIX) and not inside.is_file() else base
        _, below = _read(found, (*above, text))
        merged = _merged(merged, below)
    merged = _merged(merged, table)
    if more:  # a list is replaced as a whole: to add to one needs a word of its own
        for key, tables in (("heads", merged.get("heads", [])), ("extra_heads", more)):
            _check_tables(key, tables, f"{text}: ")
        merged["heads"] = [*merged.get("heads", []), *more]
    return name, merged


def _bases(text: str, bases: Any) -> list[str]:
    found = [bases] if isinstance(bases, str) else bases
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SpecError(f"{text}: extends = {bases!r} must name an experiment, or list some")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"the experiment {path} cannot be read: {reason}") from None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced. False takes a table away."""
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
    for one in tables:
        table = table.setdefault(one, {})
        if not isinstance(table, dict):
            raise SpecError(f"{key}: {one} is a value, it holds no {last}")
    table[last] = value


# ------------------------------------------------------------------------- what a table may say

# Of these, extends and extra_heads are gone once a file is read.
_KEYS = (
    "name", "title", "seeds", "analyses", "dataset", "encoder", "first_task", "scenario", "heads",
    "extra_heads", "paper", "extends",
)  # fmt: skip


def _spec(name: str, table: dict[str, Any]) -> Spec:
    if "more_heads" in table:
        raise SpecError("more_heads is the former name of extra_heads: write extra_heads.")
    check_keys("the experiment", table, _KEYS, kind="key", error=SpecError)
    for key in ("dataset", "scenario", "heads"):
        if key not in table:
            raise SpecError(f"it says nothing of {key!r}, without which there is no experiment")
    first = table.get("first_task")
    if first is not None and "encoder" in table:
        raise SpecError(
            "it has both an encoder and a first_task: which of them makes the features?"
        )
    analyses = _typed(table, "analyses", list, [])
    for analysis in analyses:
        check_choice("analyses", analysis, ANALYSES, error=SpecError)
    spec = Spec(
        name=_typed(table, "name", str, name),
        title=_typed(table, "title", str, name),
        dataset=_source(table, "dataset", "name"),
        scenario=_source(table, "scenario", "kind"),
        encoder=_source(table, "encoder", "name") if "encoder" in table else None,
        first_task=None if first is None else _first_task(first),
        heads=tuple(_heads(table["heads"])),
        seeds=_seeds(_typed(table, "seeds", list, [1993])),
        analyses=tuple(analyses),
        paper=_paper(_typed(table, "paper", dict, {})),
    )
    scenarios.check_options(spec.scenario.name, spec.scenario.options)
    labels = [head.label for head in spec.heads]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise SpecError(f"two heads are called {twice[0]!r}: give one of them another label")
    if spec.first_task is None and any(head.first_task == "network" for head in spec.heads):
        raise SpecError("a head leaves the first task to the network, but none is trained")
    return spec


def _source(table: Mapping[str, Any], key: str, naming: str) -> Component:
    options = dict(_typed(table, key, dict, {}))
    name = options.pop(naming, None)
    if not isinstance(name, str):
        raise SpecError(f"[{key}] needs a {naming}, as text; it has {name!r}")
    return Component(name, options)


def _first_task(table: Any) -> FirstTask:
    if not isinstance(table, dict):
        raise SpecError(f"first_task = {table!r} is no table; write [first_task]")
    keys = FirstTask.__dataclass_fields__
    check_keys("first_task", table, keys, kind="key", error=SpecError)
    classes = table.get("classes", "base")
    check_choice("first_task.classes", classes, FIRST_TASK_CLASSES, error=SpecError)
    for key in ("width", "epochs", "size"):
        check_int(f"first_task.{key}", table.get(key, 1), error=SpecError)
    return FirstTask(**table)


def _heads(tables: Any) -> Iterable[HeadSpec]:
    _check_tables("heads", tables)
    if not tables:
        raise SpecError("it has no heads: write [[heads]] and the name of one")
    for table in tables:
        options = dict(table)
        name, label = options.pop("name", None), options.pop("label", None)
        first_task, vary = options.pop("first_task", "head"), options.pop("vary", {})
        if not isinstance(name, str):
            raise SpecError(f"a head needs a name, as text; {table} has {name!r}")
        check_choice("first_task of a head", first_task, ("head", "network"), error=SpecError)
        for more, suffix in _variants(vary):
            chosen = {
                key: None if value == NONE else value for key, value in {**options, **more}.items()
            }
            heads.make(name, **chosen)  # what it does not take is found out now
            yield HeadSpec(name, f"{label or name}{suffix}", chosen, first_task)


def _check_tables(key: str, tables: Any, where: str = "") -> None:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise SpecError(f"{where}{key} must be a list of tables: write [[{key}]] above each")


def _variants(vary: Any) -> Iterable[tuple[dict[str, Any], str]]:
    """One head a value: ``vary = {shrinkage = [[0, 0], [1, 1]]}``."""
    if not vary:
        yield {}, ""
        return
    pairs = [*vary.items()] if isinstance(vary, dict) else []
    if len(pairs) != 1 or not isinstance(pairs[0][1], list):
        raise SpecError(f"vary = {vary!r}: name one option and list its values")
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
            raise SpecError(f"{where} = {figures!r}: write {{average = 70.9}}")
        check_keys(where, figures, PAPER_METRICS, kind="key", error=SpecError)
        for name, figure in figures.items():
            check_number(f"{where}.{name}", figure, note=" in percent", error=SpecError)
    return table


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str = "") -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        names: dict[type, str] = {str: "text", list: "a list", dict: "a table"}
        raise SpecError(f"{where}{key}={value!r} must be {names[kind]}.")
    return value


def _plain(value: Any) -> Any:
    """As TOML can hold it: tuples become lists, what is None is left out."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
