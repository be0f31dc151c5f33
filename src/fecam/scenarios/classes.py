"""Class-incremental: every task brings new classes and is tested on all classes so far."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import SettingsError
from fecam.scenarios.order import Order, read_order
from fecam.scenarios.split import (
    Rows,
    check_seed,
    choice_sorted,
    concat_sorted,
    rng_for,
    split,
)
from fecam.scenarios.task import Part, Scenario, Task
from fecam.scenarios.variants import RANKS, Variants
from fecam.validation import check_int, check_list


def class_incremental(
    data: Dataset,
    *,
    base: int | None = None,
    increment: int | None = None,
    sizes: Sequence[int] | None = None,
    order: Order = 1993,
    seed: int = 0,
    test_share: float = 0.2,
    samples_per_class: int | None = None,
    imbalance: float | None = None,
    long_tail: float | None = None,
    long_tail_ranks: str = RANKS[0],
    blurry: float = 0.0,
) -> Scenario:
    """Return a scenario in which every task brings new classes.

    Each task is tested on all classes so far. Only labels and the split of the data set are read,
    never its items.

    Parameters
    ----------
    data : Dataset
        The data set.
    base : int, optional
        Number of classes of the first task. Default: ``increment``.
    increment : int, optional
        Number of classes of each later task. The last task has the remainder.
    sizes : sequence of int, optional
        Number of classes of each task, instead of ``base`` and ``increment``.
    order : int, str, sequence of int or None
        Order of the classes: a seed (as in PyCIL), the labels, or ``"natural"``. Classes that a
        list leaves out never come.
    seed : int
        Seed of all other random choices.
    test_share : float
        Share of each class to test on, if the data set has no test rows.
    samples_per_class : int, optional
        The largest number of training rows of a class; the seed selects them. Default: all.
    imbalance : float, optional
        A random half of the classes keeps ``1 / imbalance`` of its rows.
    long_tail : float, optional
        Ratio of the largest class to the smallest; class sizes form a geometric sequence.
    long_tail_ranks : str
        ``"shuffled"``: the seed ranks the classes by size; ``"ordered"``: the first are largest.
    blurry : float
        Share of the rows of each task that moves to the other tasks. A class is new in the task
        with its first row.

    Returns
    -------
    Scenario
        The tasks.

    Raises
    ------
    SettingsError
        If an option is invalid, or the sizes do not add up to the number of classes.
    DatasetError
        If a class has no training rows or no test rows.

    Examples
    --------
    >>> from fecam.data import load
    >>> scenario = class_incremental(load("digits"), base=4, increment=3, order="natural")
    >>> [task.classes for task in scenario]
    [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]
    >>> [name for name, rows in scenario[1].parts]
    ['task 1', 'task 2']
    """
    variants = Variants(imbalance, long_tail, long_tail_ranks, blurry)
    seed = check_seed(seed)
    labels = read_order(data, order)
    counts = _read_sizes(len(labels), base, increment, sizes)
    train, test = split(data, labels, test_share, seed)
    if samples_per_class is not None:
        most = check_int("samples_per_class", samples_per_class)
        for label, own in train.items():
            train[label] = choice_sorted(own, most, rng_for(seed, "samples", label))
    rows = [concat_sorted(train[label] for label in group) for group in groups(labels, counts)]
    rows = variants.apply(data.labels, labels, rows, seed)
    options: dict[str, Any] = {"sizes": list(counts), "order": list(labels)}
    options |= {"test_share": float(test_share)} | variants.options()
    if samples_per_class is not None:
        options["samples_per_class"] = most
    tasks = growing_tasks(data.labels, labels, rows, test)
    return Scenario("class-incremental", tasks, seed, options)


def growing_tasks(
    labels: NDArray[np.int64], order: Sequence[int], train: Sequence[Rows], test: Mapping[int, Rows]
) -> tuple[Task, ...]:
    """Return tasks that are tested on every class so far; one without new classes adds no part."""
    tasks: list[Task] = []
    parts: list[Part] = []
    unseen = list(order)
    for index, rows in enumerate(train):
        name = f"task {index + 1}"
        present = set(np.unique(labels[rows]).tolist())
        new = tuple(label for label in unseen if label in present)
        unseen = [label for label in unseen if label not in present]
        if new:
            parts.append((name, concat_sorted(test[label] for label in new)))
        seen = concat_sorted(piece for _, piece in parts)
        tasks.append(Task(index, name, rows, seen, new, tuple(parts)))
        parts = list(tasks[-1].parts)  # read-only, so later tasks share them
    return tuple(tasks)


def groups(order: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the classes of each task."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _read_sizes(
    count: int, base: int | None, increment: int | None, sizes: Sequence[int] | None
) -> tuple[int, ...]:
    if sizes is not None:
        if base is not None or increment is not None:
            raise SettingsError(
                f"sizes={sizes!r} sets all sizes: leave out base={base!r} and "
                f"increment={increment!r}."
            )
        sizes = check_list("sizes", sizes, [40, 30, 30])
        numbers = tuple(check_int(f"sizes[{i}]", size) for i, size in enumerate(sizes))
        if sum(numbers) != count:
            raise SettingsError(
                f"sizes={list(numbers)} add up to {sum(numbers)}, but there are {count} classes. "
                "Change the sizes, or give an order with that many labels."
            )
        return numbers
    if base is None and increment is None:
        raise SettingsError(
            "the sizes of the tasks are missing. Give base and increment, as in base=50, "
            "increment=10, or sizes, as in sizes=[40, 30, 30]."
        )
    name, value = ("increment", increment) if base is None else ("base", base)
    first = check_int(name, value)
    if first > count:
        raise SettingsError(f"{name}={first} is more than the number of classes, {count}.")
    if increment is None:
        if first < count:
            raise SettingsError(
                f"base={first} leaves {count - first} of {count} classes: give increment, the "
                "number of classes per later task."
            )
        return (first,)
    step = check_int("increment", increment)
    full, remainder = divmod(count - first, step)
    return (first, *[step] * full, *([remainder] if remainder else []))
