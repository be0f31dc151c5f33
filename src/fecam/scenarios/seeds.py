"""Chance that can be had again: every use of a seed has a stream of its own.

A choice for one class does not hang on how many classes there are, nor in which order they come.
NumPy promises that the numbers of `RandomState` never change; those of its newer generators may.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from fecam.validation import check_int

HIGHEST = 2**32 - 1


def rng_for(seed: int, purpose: str, *numbers: int) -> np.random.RandomState:
    """The generator of a seed for one purpose, and for one class or task of it.

    >>> first, again = rng_for(0, "shots", 3), rng_for(0, "shots", 3)
    >>> bool((first.permutation(9) == again.permutation(9)).all())
    True
    """
    return np.random.RandomState([check_seed(seed), zlib.crc32(purpose.encode()), *numbers])


def choice_sorted(
    rows: NDArray[np.intp], count: int, source: np.random.RandomState
) -> NDArray[np.intp]:
    """So many of the rows by chance, in the order they had. Asking for more keeps the fewer.

    >>> choice_sorted(np.arange(100, 110), 3, rng_for(0, "an example"))
    array([102, 108, 109])
    """
    return rows[np.sort(source.permutation(len(rows))[:count])]


def check_seed(seed: int, name: str = "seed") -> int:
    """The seed, if it is one."""
    return check_int(name, seed, minimum=0, maximum=HIGHEST)
