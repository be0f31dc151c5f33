"""The order in which classes come."""

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from fecam.data.dataset import Dataset
from fecam.errors import SettingsError
from fecam.scenarios.split import check_seed
from fecam.validation import check_int, check_list

NATURAL = "natural"

Order = int | str | Sequence[int] | None
"""A seed, the labels themselves, or ``None`` or ``"natural"``: 0, 1, 2, ..."""


def class_order(classes: int, seed: int | None = 1993) -> tuple[int, ...]:
    """Return all labels, shuffled as in PyCIL.

    Parameters
    ----------
    classes : int
        Number of classes.
    seed : int or None
        Seed of the permutation. None keeps the order 0, 1, 2, ...

    Returns
    -------
    tuple of int
        The labels.

    Examples
    --------
    >>> class_order(100, 1993)[:10]
    (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    """
    check_int("classes", classes)
    if seed is None:
        return tuple(range(classes))
    return tuple(np.random.RandomState(check_seed(seed)).permutation(classes).tolist())


def read_order(data: Dataset, order: Order) -> tuple[int, ...]:
    """Return the labels in the given order; classes that a list leaves out never come."""
    if order is None or isinstance(order, str | Integral):
        if isinstance(order, str) and order != NATURAL:
            raise SettingsError(
                f"order={order!r} must be a seed, a list of labels, or {NATURAL!r}."
            )
        seed = None if order is None or isinstance(order, str) else check_seed(order, "order")
        return class_order(len(data.label_names), seed)
    seen: dict[int, None] = {}
    for i, label in enumerate(check_list("order", order, [2, 0, 1])):
        label = check_int(f"order[{i}]", label, 0, len(data.label_names) - 1)
        if label in seen:
            raise SettingsError(
                f"order names label {label} ({data.label_names[label]!r}) twice, the second time "
                f"at order[{i}]: name each label once."
            )
        seen[label] = None
    return tuple(seen)
