"""A task is rows to learn from and rows to be judged on; a scenario is a sequence of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fecam.errors import SettingsError

Part = tuple[str, NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Task:
    """One step of a stream. Rows are those of the data set, in its order; they cannot be written.

    >>> task = Task(0, "task 1", [0, 1], [4, 5], (7,), (("task 1", [4, 5]),))
    >>> task.train, task.classes
    (array([0, 1]), (7,))
    """

    index: int
    """The first task has 0."""
    name: str
    """``"task 1"`` and so on, or the name of a domain."""
    train: NDArray[np.intp]
    """The rows to learn from now."""
    test: NDArray[np.intp]
    """The rows to be judged on after it."""
    classes: tuple[int, ...]
    """The labels of which this task brings the first samples."""
    parts: tuple[Part, ...]
    """``test`` in pieces with names, one a column of the accuracy matrix; none is empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", _fixed(self.train))
        object.__setattr__(self, "test", _fixed(self.test))
        parts = tuple((name, _fixed(rows)) for name, rows in self.parts)
        object.__setattr__(self, "parts", parts)

    def __repr__(self) -> str:
        return (
            f"Task({self.index}, {self.name!r}, {len(self.classes)} new classes, "
            f"{len(self.train)} rows to learn, {len(self.test)} to be judged on)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Scenario(Sequence[Task]):
    """Tasks in the order they come: ``len``, an index, a slice (a tuple of tasks), loops.

    Loops do not know of each other, so one may stand inside another.
    """

    kind: str
    """``"class-incremental"``, ``"few-shot"`` or ``"domain-incremental"``."""
    tasks: tuple[Task, ...]
    seed: int
    options: Mapping[str, Any]
    """With ``build(data, kind, seed=seed, **options)`` the same scenario is made again."""

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, at: int) -> Task: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, at: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[at]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def class_order(self) -> tuple[int, ...]:
        """All labels in the order in which they come."""
        return tuple(label for task in self.tasks for label in task.classes)

    @property
    def base_classes(self) -> tuple[int, ...]:
        """The labels of the first task."""
        return self.tasks[0].classes

    def position(self, label: int) -> int:
        """The place of a label in `class_order`, from 0."""
        try:
            return self.class_order.index(label)
        except ValueError:
            raise SettingsError(
                f"label {label!r} never comes in this scenario: see class_order for those that do."
            ) from None

    def describe(self) -> dict[str, Any]:
        """All that is needed to make it again, and its sizes, as plain JSON."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "options": deepcopy(dict(self.options)),
            "class_order": list(self.class_order),
            "tasks": [
                {
                    "name": task.name,
                    "classes": len(task.classes),
                    "train": len(task.train),
                    "test": len(task.test),
                }
                for task in self.tasks
            ],
        }

    def __repr__(self) -> str:
        return f"Scenario({self.kind!r}, {len(self)} tasks, {len(self.class_order)} classes)"


def _fixed(rows: ArrayLike) -> NDArray[np.intp]:
    """The rows as an array that nobody can write to; copied unless it is one already."""
    if isinstance(rows, np.ndarray) and rows.dtype == np.intp and not rows.flags.writeable:
        return rows
    copy = np.array(rows, dtype=np.intp)
    copy.flags.writeable = False
    return copy
