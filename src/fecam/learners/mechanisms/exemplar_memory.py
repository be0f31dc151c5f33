"""Exemplar memory: some images of each class, as rows of the data of all tasks so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.errors import TrainingError

Budget = Literal["total", "per_class"]
"""Whether the number of exemplars is for all classes together, or for each."""


def exemplars_per_class(exemplars: int, budget: Budget, n_classes: int) -> int:
    """Return the most images that a class may keep; the total never exceeds the budget.

    >>> [exemplars_per_class(2000, "total", n) for n in (50, 60, 100)]
    [40, 33, 20]
    """
    count = exemplars if budget == "per_class" else exemplars // n_classes
    if exemplars and not count:
        raise TrainingError(
            f"exemplars={exemplars} in total is less than one for each of the {n_classes} classes. "
            f'Set exemplars to at least {n_classes}, or budget="per_class".'
        )
    return count


def exemplar_rows(memory: Mapping[str, Tensor]) -> NDArray[np.int64]:
    """Return the rows of all classes, one class after the other."""
    empty = torch.empty(0, dtype=torch.int64)
    rows: NDArray[np.int64] = torch.cat([empty, *memory.values()]).numpy()
    return rows


def check_rows(memory: Mapping[str, Tensor], data: Sequence[Dataset]) -> None:
    """Raise `TrainingError` unless the rows of each class are images of it in the data."""
    labels = np.concatenate([part.labels for part in data]) if data else np.empty(0, np.int64)
    for label, rows in memory.items():
        chosen = rows.numpy()
        if len(chosen) and (chosen.max() >= len(labels) or (labels[chosen] != int(label)).any()):
            raise TrainingError(
                f"the exemplars of label {label} are not in the given data of {len(data)} tasks. "
                "Give load(path, past) the data of all learned tasks, in their order."
            )


def concatenated(parts: Sequence[Dataset]) -> Dataset:
    """Return the items of several data sets that share their label names, in their order."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Dataset(
        name=first.name,
        kind=first.kind,
        items=_Concatenated([part.items for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        label_names=first.label_names,
        fingerprint=fingerprint_of([part.fingerprint for part in parts]),
    )


class _Concatenated(Sequence[Any]):
    """Several sequences one after the other."""

    def __init__(self, parts: Sequence[Sequence[Any] | NDArray[Any]]) -> None:
        self._parts, self._ends = parts, np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part][int(index) - (int(self._ends[part - 1]) if part else 0)]
