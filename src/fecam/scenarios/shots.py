"""Few-shot: a first task with all samples, then tasks of N classes with K samples each."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios.classes import groups, growing_tasks
from fecam.scenarios.order import Order, read_order
from fecam.scenarios.shot_lists import PathLike, read_shot_lists
from fecam.scenarios.split import (
    Rows,
    check_seed,
    choice_sorted,
    class_name,
    concat_sorted,
    rng_for,
    split,
)
from fecam.scenarios.task import Scenario
from fecam.validation import check_int, check_list, counted, is_int

Given = Mapping[int, Sequence[int]] | Mapping[str, Sequence[int]] | PathLike
Draw = Literal["published", "seed"] | int
PUBLISHED_SEED = 1
"""Of the generator that rebuilds the published lists of CIFAR-100, miniImageNet and CUB-200."""


def few_shot(
    data: Dataset,
    *,
    base: int,
    ways: int,
    shots: int,
    order: Order = None,
    seed: int = 0,
    draw: Draw = "published",
    test_share: float = 0.2,
    given: Given | None = None,
    base_samples: int | None = None,
) -> Scenario:
    """Return a scenario of few-shot learning.

    The first task has all samples of its classes, each later one ``ways`` classes with ``shots``
    samples each. Only labels and the split of the data set are read, never its items.

    Parameters
    ----------
    data : Dataset
        The data set.
    base : int
        Number of classes of the first task.
    ways : int
        Number of classes of each later task.
    shots : int
        Number of samples per class of the later tasks.
    order : int, str, sequence of int or None
        Order of the classes: None for that of the labels, as in the public few-shot splits, a seed
        (as in PyCIL), or the labels. Classes that a list leaves out never come.
    seed : int
        Seed that chooses the test rows, if the data set has none, and the samples if ``draw`` is
        ``"seed"``.
    draw : {"published", "seed"} or int
        Which samples each later class has: those of the published lists, which are the rows
        ``RandomState(1).permutation(n)[:shots]`` of its n training rows in their order; those that
        ``seed`` chooses; or those that another seed chooses, so that runs with several draws can
        share order and network.
    test_share : float
        Share of each class to test on, if the data set has no test rows.
    given : mapping of int or str to sequence of int, or path, optional
        Rows of each new class by label, instead of a draw; or a folder of lists that
        `read_shot_lists` reads.
    base_samples : int, optional
        The most training samples per class of the first task, for runs with little time; by default
        all. They depend neither on ``seed`` nor on ``draw``.

    Returns
    -------
    Scenario
        The tasks.

    Raises
    ------
    SettingsError
        If an option is invalid, or the sizes do not add up to the number of classes.
    DatasetError
        If a class has no training rows, no test rows or too few samples.

    Examples
    --------
    >>> from fecam.data import load
    >>> scenario = few_shot(load("digits"), base=4, ways=2, shots=5)
    >>> [(task.classes, len(task.train)) for task in scenario[1:]]
    [((4, 5), 10), ((6, 7), 10), ((8, 9), 10)]
    """
    seed = check_seed(seed)
    draw = _check_draw(draw)
    labels = read_order(data, order)
    base, ways, shots = check_int("base", base), check_int("ways", ways), check_int("shots", shots)
    sessions = _sessions(len(labels), base, ways)
    train, test = split(data, labels, test_share, seed)
    first, *later = groups(labels, (base, *[ways] * sessions))
    options: dict[str, Any] = {"base": base, "ways": ways, "shots": shots}
    options |= {"order": list(labels), "draw": draw, "test_share": float(test_share)}
    if base_samples is not None:
        options["base_samples"] = check_int("base_samples", base_samples)
        for label in first:
            rng = np.random.RandomState(PUBLISHED_SEED)
            train[label] = choice_sorted(train[label], base_samples, rng)
    new = labels[base:]
    if given is None:
        samples = {label: _drawn(data, label, train[label], shots, draw, seed) for label in new}
    else:
        if isinstance(given, (str, os.PathLike)):
            lists = read_shot_lists(data, given)
            given = {label: lists[label] for label in new if label in lists}
        samples = _read_given(data, given, new, train, shots)
        options["given"] = {str(label): rows.tolist() for label, rows in samples.items()}
    rows = [concat_sorted(train[label] for label in first)]
    rows += [concat_sorted(samples[label] for label in group) for group in later]
    return Scenario("few-shot", growing_tasks(data.labels, labels, rows, test), seed, options)


def _sessions(count: int, base: int, ways: int) -> int:
    if base > count:
        raise SettingsError(f"base={base} is more than the number of classes, {count}.")
    sessions, remainder = divmod(count - base, ways)
    if remainder:
        raise SettingsError(
            f"base={base} and ways={ways} leave {remainder} of {count} classes over. Change them, "
            f"or give an order of {count - remainder} labels."
        )
    return sessions


def _check_draw(draw: Any) -> Draw:
    if draw in ("published", "seed"):
        checked: Draw = draw
        return checked
    if not is_int(draw):
        raise SettingsError(f'draw={draw!r} must be "published", "seed" or a seed of its own.')
    return check_seed(draw, "draw")


def _drawn(data: Dataset, label: int, rows: Rows, shots: int, draw: Draw, seed: int) -> Rows:
    if len(rows) < shots:
        raise DatasetError(
            f"shots={shots}, but {class_name(data, label)} of {data.name!r} has "
            f"{counted(len(rows), 'row')} for training. Remedy: fewer shots, or an order without "
            "this label"
        )
    if draw == "published":  # the same ranks for all classes of one size
        return choice_sorted(rows, shots, np.random.RandomState(PUBLISHED_SEED))
    return choice_sorted(rows, shots, rng_for(seed if draw == "seed" else draw, "shots", label))


def _read_given(
    data: Dataset, given: Any, new: Sequence[int], train: Mapping[int, Rows], shots: int
) -> dict[int, Rows]:
    if not isinstance(given, Mapping):
        raise SettingsError(f"given={given!r} must map labels to rows, as in {{60: [3, 14, 15]}}.")
    # Keys are strings if they come from a file.
    lists = {str(label): rows for label, rows in given.items()}
    unexpected = sorted(lists.keys() - {str(label) for label in new})
    if unexpected:
        raise SettingsError(
            f"given has rows of {unexpected[0]!r}, which is not a label after the first task."
        )
    samples = {}
    for label in new:
        name = class_name(data, label)
        if str(label) not in lists:
            raise SettingsError(f"given has no rows of {name}: give {shots} of them.")
        listed = check_list(f"given[{label}]", lists[str(label)], [3, 14, 15])
        rows = {check_int(f"given[{label}]", row, 0) for row in listed}
        if not len(rows) == len(listed) == shots:
            raise SettingsError(f"given[{label}] must name shots={shots} different rows of {name}.")
        foreign = rows - set(train[label].tolist())
        if foreign:
            raise SettingsError(
                f"given[{label}] names row {min(foreign)}, which is not a training row of {name}."
            )
        samples[label] = np.array(sorted(rows), dtype=np.intp)
    return samples
