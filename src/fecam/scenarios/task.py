"""A task is a set of rows to learn from and rows to test on; a scenario is a sequence of tasks."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fecam.errors import SettingsError
from fecam.validation import counted

Part = tuple[str, NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Task:
    """One step of a scenario. Its arrays are read-only indices of rows, in the data set's order.

    Parameters
    ----------
    index : int
        Position of the task, from 0.
    name : str
        ``"task 1"`` and so on, or the name of a domain.
    train : array of int
        Rows to learn from.
    test : array of int
        Rows to test on afterwards.
    classes : tuple of int
        Labels whose first samples come in this task.
    parts : tuple of (str, array)
        ``test`` in named pieces, one per column of the accuracy matrix; none is empty.

    Examples
    --------
    >>> task = Task(0, "task 1", [0, 1], [4, 5], (7,), (("task 1", [4, 5]),))
    >>> task.train, task.classes
    (array([0, 1]), (7,))
    """

    index: int
    name: str
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    classes: tuple[int, ...]
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", _read_only(self.train))
        object.__setattr__(self, "test", _read_only(self.test))
        parts = tuple((name, _read_only(rows)) for name, rows in self.parts)
        object.__setattr__(self, "parts", parts)

    def __repr__(self) -> str:
        return (
            f"Task({self.index}, {self.name!r}, {counted(len(self.classes), 'new class')}, "
            f"{counted(len(self.train), 'row')} to learn, {len(self.test)} to test on)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Scenario(Sequence[Task]):
    """A sequence of tasks with ``len``, indices, slices and independent loops.

    Parameters
    ----------
    kind : str
        ``"class-incremental"``, ``"few-shot"`` or ``"domain-incremental"``.
    tasks : tuple of Task
        The tasks in their order.
    seed : int
        Seed of the random choices.
    options : Mapping[str, Any]
        ``build(data, kind, seed=seed, **options)`` builds the same scenario.

    Examples
    --------
    >>> from fecam.data import load
    >>> from fecam.scenarios import class_incremental
    >>> scenario = class_incremental(load("digits"), base=4, increment=3)
    >>> len(scenario), scenario[0].index, len(scenario.base_classes)
    (3, 0, 4)
    """

    kind: str
    tasks: tuple[Task, ...]
    seed: int
    options: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[index]

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
        """Return the position of a label in `class_order`.

        Parameters
        ----------
        label : int
            A label.

        Returns
        -------
        int
            Its position, from 0.

        Raises
        ------
        SettingsError
            If the label never comes.
        """
        try:
            return self.class_order.index(label)
        except ValueError:
            raise SettingsError(
                f"label {label!r} never comes in this scenario: see class_order for those that do."
            ) from None

    def describe(self) -> dict[str, Any]:
        """Return the options and sizes of the scenario as plain JSON.

        Returns
        -------
        dict
            Kind, seed, options, class order, and the sizes of each task.
        """
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
        return (
            f"Scenario({self.kind!r}, {counted(len(self), 'task')}, "
            f"{counted(len(self.class_order), 'class')})"
        )


def _read_only(rows: ArrayLike) -> NDArray[np.intp]:
    """Return the rows as a read-only array, copied unless they are one."""
    if isinstance(rows, np.ndarray) and rows.dtype == np.intp and not rows.flags.writeable:
        return rows
    copy = np.array(rows, dtype=np.intp)
    copy.flags.writeable = False
    return copy
