"""Class-incremental: every task brings new classes and is judged on all classes seen so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import SettingsError
from fecam.scenarios.order import Order, read_order
from fecam.scenarios.seeds import check_seed
from fecam.scenarios.split import Rows, concat_sorted, split
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
    imbalance: float | None = None,
    long_tail: float | None = None,
    long_tail_ranks: str = RANKS[0],
    blurry: float = 0.0,
) -> Scenario:
    """Some classes first, then a few more at each task.

    >>> from fecam.data import load
    >>> stream = class_incremental(load("digits"), base=4, increment=3, order="natural")
    >>> [task.classes for task in stream]
    [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]
    >>> [name for name, rows in stream[1].parts]
    ['task 1', 'task 2']

    Args:
        data: Only its labels and marks are looked at, never its items.
        base: How many classes the first task has; as many as the others if not given.
        increment: How many classes each later task has. The last has fewer if they do not add up.
        sizes: Instead of both: how many classes each task has. They must add up.
        order: The order of the classes: a seed (PyCIL's rule), the labels, or ``"natural"``. A list
            may leave classes out.
        seed: Decides all else that is left to chance.
        test_share: The part of each class that is judged on, if the data set marks no test rows.
        imbalance: Half of the classes, picked by the seed, keep one in so many of their rows.
        long_tail: The largest class has so many times the rows of the smallest, and the others lie
            between them, in even steps of a power.
        long_tail_ranks: ``"shuffled"``: the seed decides which classes are large; ``"ordered"``:
            those that come first.
        blurry: This share of each task's rows comes in other tasks instead, dealt out evenly. A
            class is then new in the task that has its first row.

    Raises:
        SettingsError: options that cannot be, or do not add up.
        DatasetError: a class cannot be learnt or judged.
    """
    variants = Variants(imbalance, long_tail, long_tail_ranks, blurry)
    seed = check_seed(seed)
    labels = read_order(data, order)
    counts = _read_sizes(len(labels), base, increment, sizes)
    train, test = split(data, labels, test_share, seed)
    lessons = [concat_sorted(train[label] for label in group) for group in groups(labels, counts)]
    lessons = variants.apply(data.labels, labels, lessons, seed)
    options: dict[str, Any] = {"sizes": list(counts), "order": list(labels)}
    options |= {"test_share": float(test_share)} | variants.options()
    tasks = growing(data.labels, labels, lessons, test)
    return Scenario("class-incremental", tasks, seed, options)


def growing(
    labels: NDArray[np.int64],
    order: Sequence[int],
    lessons: Sequence[Rows],
    test: Mapping[int, Rows],
) -> tuple[Task, ...]:
    """Tasks that learn these rows and are judged on every class of which one row was seen.

    A task without new classes adds no part.
    """
    tasks: list[Task] = []
    parts: list[Part] = []
    waiting = list(order)
    for index, rows in enumerate(lessons):
        name = f"task {index + 1}"
        here = set(np.unique(labels[rows]).tolist())
        new = tuple(label for label in waiting if label in here)
        waiting = [label for label in waiting if label not in here]
        if new:
            parts.append((name, concat_sorted(test[label] for label in new)))
        judged = concat_sorted(piece for _, piece in parts)
        tasks.append(Task(index, name, rows, judged, new, tuple(parts)))
        parts = list(tasks[-1].parts)  # those that cannot be written: later tasks share them
    return tuple(tasks)


def groups(order: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The classes of each task.

    >>> groups((3, 1, 2), (1, 2))
    [(3,), (1, 2)]
    """
    ends = np.cumsum(sizes).tolist()
    return [tuple(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _read_sizes(
    count: int, base: int | None, increment: int | None, sizes: Sequence[int] | None
) -> tuple[int, ...]:
    if sizes is not None:
        if base is not None or increment is not None:
            raise SettingsError(
                f"sizes={sizes!r} says all: leave base={base!r} and increment={increment!r} out."
            )
        return _added_up(count, sizes)
    if base is None and increment is None:
        raise SettingsError(
            "how many classes has each task? Give base and increment, as in base=50, increment=10, "
            "or sizes, as in sizes=[40, 30, 30]."
        )
    name, value = ("increment", increment) if base is None else ("base", base)
    first = check_int(name, value)
    if first > count:
        raise SettingsError(f"{name}={first} is more than the {count} classes there are.")
    if increment is None:
        if first < count:
            raise SettingsError(
                f"base={first} leaves {count - first} of {count} classes: say how many come at a "
                "time with increment."
            )
        return (first,)
    step = check_int("increment", increment)
    full, rest = divmod(count - first, step)
    return (first, *[step] * full, *([rest] if rest else []))


def _added_up(count: int, sizes: Sequence[int]) -> tuple[int, ...]:
    sizes = check_list("sizes", sizes, [40, 30, 30])
    numbers = tuple(check_int(f"sizes[{at}]", size) for at, size in enumerate(sizes))
    if sum(numbers) != count:
        raise SettingsError(
            f"sizes={list(numbers)} add up to {sum(numbers)}, but there are {count} classes. "
            "Change the sizes, or give an order with that many labels."
        )
    return numbers
