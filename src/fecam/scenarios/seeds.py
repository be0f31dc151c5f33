"""Reproducible random choices: each use of a seed has its own generator.

A choice for one class depends neither on the number of classes nor on their order. NumPy guarantees
that the numbers of `RandomState` do not change; those of its newer generators may.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from fecam.validation import check_int

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
