"""Data sets of labeled image files: labels, test split, fingerprint."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fecam.data._listing import File, sorted_names
from fecam.data.dataset import Dataset, fingerprint_of
from fecam.data.images import ImageFiles
from fecam.errors import DatasetError
from fecam.validation import check_fraction


def positions(values: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the index of each value in the names."""
    index = {name: i for i, name in enumerate(names)}
    return np.fromiter((index[value] for value in values), np.int64, len(values))


def enumerated(values: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the values as indices, and the distinct names in natural order."""
    names = sorted_names(values)
    return positions(values, names), names


def readable(name: str) -> str:
    """Return the name of a folder as text, even if it is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def listed(names: Collection[object], limit: int = 8) -> str:
    """Return names for a message, shortened."""
    shown = ", ".join(map(str, list(names)[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def split_off(
    groups: Sequence[str], keys: Sequence[str], share: float, seed: int
) -> NDArray[np.bool_]:
    """Return a mask with a share of each group for testing.

    The items of a group are ranked by a hash of the seed, the group and their key, so the choice
    depends neither on their order nor on the other groups. At least one of two items is on either
    side; a single item is for training.
    """
    check_fraction("test_share", share, error=DatasetError)
    is_test = np.zeros(len(groups), bool)
    rows: dict[str, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        rows[group].append(row)
    for group, members in rows.items():
        count = min(max(round(share * len(members)), 1), len(members) - 1) if share else 0
        texts = {row: os.fsencode("\0".join((str(seed), group, keys[row]))) for row in members}
        ranked = sorted(members, key=lambda row: hashlib.sha256(texts[row]).digest())
        is_test[ranked[:count]] = True
    return is_test


def files_dataset(
    name: str,
    root: Path,
    files: Sequence[File],
    labels: NDArray[np.int64],
    label_names: Sequence[str],
    *,
    is_test: NDArray[np.bool_],
    domains: NDArray[np.int64] | None = None,
    domain_names: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> Dataset:
    """Return a data set of image files, identified by their names, sizes and times."""
    stamps = (
        os.fsencode(os.path.relpath(file.path, root)) + f"\0{file.size}\0{file.modified}".encode()
        for file in files
    )
    about = [*label_names, labels, is_test, *domain_names, *([] if domains is None else [domains])]
    return Dataset(
        name,
        "images",
        ImageFiles(file.path for file in files),
        labels,
        tuple(label_names),
        fingerprint_of([*stamps, *about]),
        is_test,
        domains,
        tuple(domain_names),
        tuple(notes),
    )
