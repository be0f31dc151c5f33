"""The rows to learn from and the rows to test on, and the random choices of them.

A choice for one class depends neither on the number of classes nor on their order. NumPy guarantees
that the numbers of `RandomState` do not change; those of its newer generators may.
"""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError
from fecam.validation import check_fraction, check_int

Rows = NDArray[np.intp]
MAX_SEED = 2**32 - 1


def rng_for(seed: int, purpose: str, *numbers: int) -> np.random.RandomState:
    """Return the generator of a seed for one purpose, and for one class or task of it."""
    return np.random.RandomState([check_seed(seed), zlib.crc32(purpose.encode()), *numbers])


def choice_sorted(
    rows: NDArray[np.intp], count: int, rng: np.random.RandomState
) -> NDArray[np.intp]:
    """Return ``count`` random rows in their order; a larger count adds to a smaller one."""
    return rows[np.sort(rng.permutation(len(rows))[:count])]


def check_seed(seed: int, name: str = "seed") -> int:
    """Return the seed as an int, or raise if it is not one."""
    return check_int(name, seed, 0, MAX_SEED)


def split(
    data: Dataset, classes: Sequence[int], test_share: float, seed: int
) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """Return the training and test rows of each class; without test rows, draw ``test_share``."""
    test_share = check_fraction("test_share", test_share)
    is_test = np.asarray(data.is_test)
    if not is_test.any():
        is_test = draw_test_mask(data.labels, np.arange(len(data)), test_share, seed)
    sides = tuple(by_class(data.labels, np.flatnonzero(side)) for side in (~is_test, is_test))
    for rows, purpose in zip(sides, ("training", "testing"), strict=True):
        for label in classes:
            if label not in rows:
                raise no_rows(data, label, purpose, test_share)
    return sides[0], sides[1]


def draw_test_mask(
    labels: NDArray[np.int64], rows: Rows, test_share: float, seed: int, domain: int = 0
) -> NDArray[np.bool_]:
    """Return a mask with ``test_share`` of the rows of each class, at least one of two."""
    is_test = np.zeros(len(labels), bool)
    if test_share:
        for label, own in by_class(labels, rows).items():
            count = min(max(1, round(test_share * len(own))), len(own) - 1)
            is_test[choice_sorted(own, count, rng_for(seed, "test share", label, domain))] = True
    return is_test


def by_class(labels: NDArray[np.int64], rows: Rows) -> dict[int, Rows]:
    """Return the rows of each class that has any, in their order."""
    present, starts = np.unique(np.sort(labels[rows]), return_index=True)
    pieces = np.split(rows[np.argsort(labels[rows], kind="stable")], starts[1:])
    return dict(zip(present.tolist(), pieces, strict=True)) if len(rows) else {}


def concat_sorted(pieces: Iterable[Rows]) -> Rows:
    """Return the rows of all pieces in the order of the data set."""
    return np.sort(np.concatenate([np.zeros(0, np.intp), *pieces]))


def class_name(data: Dataset, label: int) -> str:
    """Return the name of a class for messages."""
    return f"class {data.label_names[label]!r} (label {label})"


def no_rows(data: Dataset, label: int, purpose: str, test_share: float) -> DatasetError:
    """Return the error for a class without training rows or test rows."""
    subject = f"the data set {data.name!r} has no rows for {purpose}"
    drawn = purpose == "testing" and not np.any(data.is_test)
    if drawn and not test_share:
        return DatasetError(f"{subject}. Remedy: mark some, or give a test_share such as 0.2")
    reason, remedy = (
        (": a test_share needs two rows of a class", "add rows, or ") if drawn else ("", "")
    )
    return DatasetError(
        f"{subject} of {class_name(data, label)}{reason}. Remedy: {remedy}give an order without "
        "this label"
    )
