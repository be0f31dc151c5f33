"""Few-shot: a first task with all samples, then N classes at a time with K samples each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios.classes import groups, growing
from fecam.scenarios.order import Order, read_order
from fecam.scenarios.seeds import check_seed, choice_sorted, rng_for
from fecam.scenarios.split import Rows, class_name, concat_sorted, split
from fecam.scenarios.task import Scenario
from fecam.validation import check_int, check_list

Given = Mapping[int, Sequence[int]] | Mapping[str, Sequence[int]]


def few_shot(
    data: Dataset,
    *,
    base: int,
    ways: int,
    shots: int,
    order: Order = None,
    seed: int = 0,
    test_share: float = 0.2,
    given: Given | None = None,
) -> Scenario:
    """A first task with all samples, then ``ways`` classes at a time with ``shots`` samples each.

    >>> from fecam.data import load
    >>> stream = few_shot(load("digits"), base=4, ways=2, shots=5)
    >>> [(task.classes, len(task.train)) for task in stream[1:]]
    [((4, 5), 10), ((6, 7), 10), ((8, 9), 10)]

    Args:
        data: Only its labels and marks are looked at, never its items.
        base: How many classes the first task has.
        ways: How many classes each later task has. They must add up.
        shots: How many samples each of these classes has.
        order: The order of the classes: as the labels are (so do the public few-shot splits), a
            seed (PyCIL's rule), or a list of labels, which may leave classes out.
        seed: Decides which samples.
        test_share: The part of each class that is judged on, if the data set marks no test rows.
        given: The rows of each new class, by label, instead of a choice by the seed.

    Raises:
        SettingsError: options that cannot be, or do not add up.
        DatasetError: a class cannot be learnt or judged, or has too few samples.
    """
    seed = check_seed(seed)
    labels = read_order(data, order)
    base, ways, shots = check_int("base", base), check_int("ways", ways), check_int("shots", shots)
    sessions = _sessions(len(labels), base, ways)
    train, test = split(data, labels, test_share, seed)
    first, *later = groups(labels, (base, *[ways] * sessions))
    options: dict[str, Any] = {"base": base, "ways": ways, "shots": shots}
    options |= {"order": list(labels), "test_share": float(test_share)}
    new = labels[base:]
    if given is None:
        few = {label: _sampled(data, label, train[label], shots, seed) for label in new}
    else:
        few = _read_given(data, given, new, train, shots)
        options["given"] = {str(label): rows.tolist() for label, rows in few.items()}
    lessons = [concat_sorted(train[label] for label in first)]
    lessons += [concat_sorted(few[label] for label in group) for group in later]
    return Scenario("few-shot", growing(data.labels, labels, lessons, test), seed, options)


def _sessions(count: int, base: int, ways: int) -> int:
    if base > count:
        raise SettingsError(f"base={base} is more than the {count} classes there are.")
    sessions, rest = divmod(count - base, ways)
    if rest:
        raise SettingsError(
            f"base={base} and ways={ways} leave {rest} of {count} classes over. Change them, or "
            f"give an order of {count - rest} labels."
        )
    return sessions


def _sampled(data: Dataset, label: int, rows: Rows, shots: int, seed: int) -> Rows:
    if len(rows) < shots:
        raise DatasetError(
            f"shots={shots}, but {class_name(data, label)} of {data.name!r} has {len(rows)} rows "
            "for training. Remedy: fewer shots, or an order without this label"
        )
    return choice_sorted(rows, shots, rng_for(seed, "shots", label))


def _read_given(
    data: Dataset, given: Given, new: Sequence[int], train: Mapping[int, Rows], shots: int
) -> dict[int, Rows]:
    if not isinstance(given, Mapping):
        raise SettingsError(f"given={given!r} must map labels to rows, as in {{60: [3, 14, 15]}}.")
    # Keys are strings where they come from a file.
    lists = {str(label): rows for label, rows in given.items()}
    strange = sorted(lists.keys() - {str(label) for label in new})
    if strange:
        raise SettingsError(
            f"given has rows of {strange[0]!r}, which is none of the labels after the first task."
        )
    few = {}
    for label in new:
        who = class_name(data, label)
        if str(label) not in lists:
            raise SettingsError(f"given has no rows of {who}: name {shots} of them.")
        listed = check_list(f"given[{label}]", lists[str(label)], [3, 14, 15])
        rows = {check_int(f"given[{label}]", row, minimum=0) for row in listed}
        if not len(rows) == len(listed) == shots:
            raise SettingsError(f"given[{label}] must name shots={shots} different rows of {who}.")
        foreign = rows - set(train[label].tolist())
        if foreign:
            raise SettingsError(
                f"given[{label}] names row {min(foreign)}, which is no row for training of {who}."
            )
        few[label] = np.array(sorted(rows), dtype=np.intp)
    return few
