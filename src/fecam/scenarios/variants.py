"""Streams that are less tidy: unequal classes, and tasks without sharp boundaries.

Only rows for training change; what is judged stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.errors import SettingsError
from fecam.scenarios.seeds import choice_sorted, rng_for
from fecam.scenarios.split import Rows, by_class, concat_sorted
from fecam.validation import check_choice, check_fraction, check_number

RANKS = ("shuffled", "ordered")
_RATIO = ": the size of the largest class divided by that of the smallest"


@dataclass(frozen=True)
class Variants:
    """The options that all kinds but few-shot have; each is off by default."""

    imbalance: float | None = None
    long_tail: float | None = None
    long_tail_ranks: str = RANKS[0]
    blurry: float = 0.0

    def __post_init__(self) -> None:
        if self.imbalance is not None:
            check_number("imbalance", self.imbalance, 1, note=_RATIO)
        if self.long_tail is not None:
            check_number("long_tail", self.long_tail, 1, note=_RATIO)
            if self.imbalance is not None:
                raise SettingsError(
                    f"imbalance={self.imbalance!r} and long_tail={self.long_tail!r} both decide "
                    "how many rows a class keeps: give one of them."
                )
        check_choice("long_tail_ranks", self.long_tail_ranks, RANKS)
        check_fraction("blurry", self.blurry)

    def options(self) -> dict[str, Any]:
        """Those that are on, as plain values."""
        chosen = {name: value for name, value in asdict(self).items() if value}
        if self.long_tail is None:
            del chosen["long_tail_ranks"]
        return {k: v if isinstance(v, str) else float(v) for k, v in chosen.items()}

    def apply(
        self, labels: NDArray[np.int64], order: Sequence[int], lessons: Sequence[Rows], seed: int
    ) -> list[Rows]:
        """The training rows of each task as these options leave them."""
        if self.imbalance is not None:
            lessons = _subsample_tasks(
                labels, lessons, imbalanced(order, self.imbalance, seed), seed
            )
        if self.long_tail is not None:
            shuffled = self.long_tail_ranks == "shuffled"
            shares = long_tailed(order, self.long_tail, seed if shuffled else None)
            lessons = _subsample_tasks(labels, lessons, shares, seed)
        return blurred(lessons, self.blurry, seed) if self.blurry else list(lessons)


def imbalanced(order: Sequence[int], ratio: float, seed: int) -> dict[int, float]:
    """The share of its rows that each class keeps: half of the classes, by chance, keep 1 / ratio.

    >>> sorted(imbalanced(range(4), 10, seed=0).values())
    [0.1, 0.1, 1.0, 1.0]
    """
    poor = set(rng_for(seed, "imbalance").permutation(sorted(order))[: len(order) // 2].tolist())
    return {label: 1 / ratio if label in poor else 1.0 for label in order}


def long_tailed(order: Sequence[int], ratio: float, seed: int | None) -> dict[int, float]:
    """The share of its rows that each class keeps: from 1 to 1 / ratio in even steps of a power.

    The first class keeps all and the last the least, in an order shuffled by the seed; None:
    in the order in which they come.

    >>> long_tailed((7, 5, 6), 100, seed=None)
    {7: 1.0, 5: 0.1, 6: 0.01}
    """
    ranked = list(order)
    if seed is not None:
        ranked = rng_for(seed, "long tail").permutation(sorted(order)).tolist()
    steps = max(len(order) - 1, 1)
    return {label: ratio ** (-rank / steps) for rank, label in enumerate(ranked)}


def subsample(
    labels: NDArray[np.int64], rows: Rows, shares: Mapping[int, float], seed: int
) -> Rows:
    """Of each class its share of the rows, by chance, rounded, but one at least."""
    kept = [
        choice_sorted(own, max(1, round(shares[label] * len(own))), rng_for(seed, "thin", label))
        for label, own in by_class(labels, rows).items()
    ]
    return concat_sorted(kept)


def blurred(lessons: Sequence[Rows], share: float, seed: int) -> list[Rows]:
    """Take this share of every task's rows, by chance, and deal it to the other tasks in turn.

    >>> [len(rows) for rows in blurred([np.arange(10), np.arange(10, 20)], 0.3, seed=0)]
    [10, 10]
    """
    count = len(lessons)
    if count < 2:
        raise SettingsError(f"blurry={share!r} needs two tasks at least, not one: use blurry=0.")
    dealt: list[list[Rows]] = [[] for _ in lessons]
    for at, rows in enumerate(lessons):
        source = rng_for(seed, "blurry", at)
        mixed = rows[source.permutation(len(rows))]
        leaving = round(share * len(rows))
        dealt[at].append(mixed[leaving:])
        for turn in range(count - 1):
            dealt[(at + 1 + turn) % count].append(mixed[:leaving][turn :: count - 1])
    return [concat_sorted(pieces) for pieces in dealt]


def _subsample_tasks(
    labels: NDArray[np.int64], lessons: Sequence[Rows], shares: Mapping[int, float], seed: int
) -> list[Rows]:
    """Thin all tasks as one: a class may come in several."""
    kept = subsample(labels, concat_sorted(lessons), shares, seed)
    return [rows[np.isin(rows, kept)] for rows in lessons]
