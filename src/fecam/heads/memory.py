"""How much a head keeps between tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fecam.core.arrays import is_array


def state_nbytes(head: Any) -> int:
    """The bytes of all arrays that a head must keep between tasks; 0 before it has learnt.

    What is derived from them, and can be derived again, does not count: FeCAM's factors, the
    inverse of a matrix, a random projection that follows from its seed. Of an estimator that is
    not ours, all arrays among its attributes count.

    >>> from fecam.heads import make
    >>> state_nbytes(make("ncm").fit([[0.0, 1.0], [2.0, 1.0]], ["a", "b"]))
    56
    """
    if not hasattr(head, "__sklearn_is_fitted__"):
        return array_nbytes(vars(head))
    return array_nbytes(head.state_) if head.__sklearn_is_fitted__() else 0


def array_nbytes(value: Any) -> int:
    """The bytes of every array in nested dataclasses, mappings and sequences, each counted once.

    >>> array_nbytes({"a": np.zeros(3), "b": [np.zeros((2, 2), np.float32)]})
    40
    """
    return sum(_sizes(value, {}).values())


def _sizes(value: Any, found: dict[int, int]) -> dict[int, int]:
    """Sizes by identity; a view counts as the array whose memory it keeps alive."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        found[id(value)] = value.nbytes
    elif is_array(value):
        found[id(value)] = value.nbytes
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            _sizes(getattr(value, one.name), found)
    elif isinstance(value, Mapping):
        for one in value.values():
            _sizes(one, found)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _sizes(one, found)
    return found
