"""The tables of an experiment that concern learners: ``[[learners]]`` and ``[later_tasks]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from fecam import heads, learners
from fecam.errors import SpecError
from fecam.validation import check_int, check_keys

NONE = "none"
"""Stands for None in options: TOML has no null."""


@dataclass(frozen=True)
class LaterTasks:
    """How the network is trained in later tasks: as in the first, unless stated here."""

    epochs: int | None = None
    """None for those of the first task."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the training plan."""

    def as_dict(self) -> dict[str, Any]:
        """Return what is stated."""
        return {
            **({} if self.epochs is None else {"epochs": self.epochs}),
            **({"plan": dict(self.plan)} if self.plan else {}),
        }


@dataclass(frozen=True)
class LearnerSpec:
    """A learner of an experiment."""

    name: str
    label: str
    """Its name in tables and curves."""
    options: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] | None = None
    """The name and options of a head on its features; None for its own rule."""
    later_tasks: LaterTasks = field(default_factory=LaterTasks)
    """What differs from the ``[later_tasks]`` of the experiment."""

    def as_dict(self) -> dict[str, Any]:
        """Return the table of the file."""
        later = self.later_tasks.as_dict()
        return {
            "name": self.name,
            "label": self.label,
            **({} if self.head is None else {"head": _named(self.head)}),
            **({"later_tasks": later} if later else {}),
            **_named(self.options),
        }


def read_later_tasks(table: Any, where: str = "later_tasks") -> LaterTasks:
    """Return the table ``later_tasks`` of an experiment or of a learner, checked."""
    if not isinstance(table, dict):
        raise SpecError(f"{where}={table!r} must be a table: write [{where}]")
    check_keys(where, table, LaterTasks.__dataclass_fields__, kind="key", error=SpecError)
    check_int(f"{where}.epochs", table.get("epochs", 1), error=SpecError)
    if not isinstance(table.get("plan", {}), dict):
        raise SpecError(f"{where}.plan={table['plan']!r} must be a table.")
    return LaterTasks(**table)


def read_learners(tables: list[dict[str, Any]]) -> Iterator[LearnerSpec]:
    """Yield the learners of an experiment, checked."""
    for table in tables:
        options = dict(table)
        name, label, head = (options.pop(key, None) for key in ("name", "label", "head"))
        later = read_later_tasks(options.pop("later_tasks", {}), "later_tasks of a learner")
        if not isinstance(name, str):
            raise SpecError(f"a learner needs a name, as text: {table} has {name!r}")
        options = {key: None if value == NONE else value for key, value in options.items()}
        if find_spec("torch") is None:  # the experiment can be listed, not run
            learners.check_name(name)
        else:
            learners.make(name, **options)  # raises an error for invalid options
        head = _read_head(head)
        default = name if head is None else f"{name}, {head['name']}"
        yield LearnerSpec(name, label or default, options, head, later)


def read_networks(tables: list[dict[str, Any]]) -> Iterator[LearnerSpec]:
    """Yield the learners of ``networks``, of which only the first task counts, checked."""
    labels: list[str] = []
    for network in read_learners(tables):
        if network.head is not None or network.later_tasks.as_dict():
            raise SpecError(
                f"the network {network.label!r} has a head or later_tasks, but only its first task "
                "counts: remove them, or list it under [[learners]]"
            )
        if network.label in labels:
            raise SpecError(f"two networks have the label {network.label!r}: give one another")
        labels.append(network.label)
        yield network


def _read_head(head: Any) -> dict[str, Any] | None:
    if head is None:
        return None
    table = {"name": head} if isinstance(head, str) else head
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise SpecError(
            f'head={head!r} of a learner must be a name, as head = "fecam", or a table, as '
            '{name = "fecam", preset = "paper"}.'
        )
    table = {key: None if value == NONE else value for key, value in table.items()}
    heads.make(**table)
    return table


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: NONE if value is None else value for key, value in options.items()}
