"""Changes of the training rows: unequal classes, and tasks without sharp boundaries."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.errors import SettingsError
from fecam.scenarios.split import Rows, by_class, choice_sorted, concat_sorted, rng_for
from fecam.validation import check_choice, check_fraction, check_number

RANKS = ("shuffled", "ordered")
_RATIO = ": the size of the largest class divided by that of the smallest"


@dataclass(frozen=True)
class Variants:
    """The options of all kinds but few-shot; each is off by default."""

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
                    f"imbalance={self.imbalance!r} and long_tail={self.long_tail!r} both set the "
                    "number of rows per class: give one of them."
                )
        check_choice("long_tail_ranks", self.long_tail_ranks, RANKS)
        check_fraction("blurry", self.blurry)

    def options(self) -> dict[str, Any]:
        """Return the options that are on, as plain values."""
        chosen = {name: value for name, value in asdict(self).items() if value}
        if self.long_tail is None:
            del chosen["long_tail_ranks"]
        return {k: v if isinstance(v, str) else float(v) for k, v in chosen.items()}

    def apply(
        self, labels: NDArray[np.int64], order: Sequence[int], tasks: Sequence[Rows], seed: int
    ) -> list[Rows]:
        """Return the training rows of each task with these options applied."""
        shares: dict[int, float] = {}
        if self.imbalance is not None:
            shares = imbalanced(order, self.imbalance, seed)
        if self.long_tail is not None:
            shuffled = self.long_tail_ranks == "shuffled"
            shares = long_tailed(order, self.long_tail, seed if shuffled else None)
        if shares:  # of all tasks together, because a class may come in several
            kept = subsample(labels, concat_sorted(tasks), shares, seed)
            tasks = [rows[np.isin(rows, kept)] for rows in tasks]
        return blurred(tasks, self.blurry, seed) if self.blurry else list(tasks)


def imbalanced(order: Sequence[int], ratio: float, seed: int) -> dict[int, float]:
    """Return the share of rows that each class keeps: 1 / ratio for a random half of them."""
    small = set(rng_for(seed, "imbalance").permutation(sorted(order))[: len(order) // 2].tolist())
    return {label: 1 / ratio if label in small else 1.0 for label in order}


def long_tailed(order: Sequence[int], ratio: float, seed: int | None) -> dict[int, float]:
    """Return the share of rows that each class keeps: a geometric sequence from 1 to 1 / ratio.

    The seed shuffles the classes first; None keeps their order.
    """
    ranked = list(order)
    if seed is not None:
        ranked = rng_for(seed, "long tail").permutation(sorted(order)).tolist()
    steps = max(len(order) - 1, 1)
    return {label: ratio ** (-rank / steps) for rank, label in enumerate(ranked)}


def subsample(
    labels: NDArray[np.int64], rows: Rows, shares: Mapping[int, float], seed: int
) -> Rows:
    """Return a random share of the rows of each class, rounded, at least one."""
    return concat_sorted(
        choice_sorted(own, max(1, round(shares[label] * len(own))), rng_for(seed, "thin", label))
        for label, own in by_class(labels, rows).items()
    )


def blurred(tasks: Sequence[Rows], share: float, seed: int) -> list[Rows]:
    """Move a random share of the rows of each task to the other tasks, in turn."""
    count = len(tasks)
    if count < 2:
        raise SettingsError(f"blurry={share!r} needs two tasks at least, not one: use blurry=0.")
    pieces: list[list[Rows]] = [[] for _ in tasks]
    for i, rows in enumerate(tasks):
        mixed = rows[rng_for(seed, "blurry", i).permutation(len(rows))]
        moved = round(share * len(rows))
        pieces[i].append(mixed[moved:])
        for turn in range(count - 1):
            pieces[(i + 1 + turn) % count].append(mixed[:moved][turn :: count - 1])
    return [concat_sorted(own) for own in pieces]
