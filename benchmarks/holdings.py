"""How many bytes of arrays a value holds: for what a class takes in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def array_bytes(value: Any) -> int:
    """The bytes of every array in nested dataclasses, mappings and sequences, each counted once.

    >>> array_bytes({"a": np.zeros(3), "b": [np.zeros((2, 2), np.float32)]})
    40
    """
    return sum(_arrays(value, {}, set()).values())


def _arrays(value: Any, found: dict[int, int], seen: set[int]) -> dict[int, int]:
    """Sizes of the arrays by identity; a view counts as the array whose memory it keeps alive."""
    if id(value) in seen:
        return found
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        found[id(value)] = value.nbytes
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            _arrays(getattr(value, one.name), found, seen)
    elif isinstance(value, Mapping):
        for one in value.values():
            _arrays(one, found, seen)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _arrays(one, found, seen)
    elif type(value).__module__.startswith("fecam"):
        _arrays(getattr(value, "__dict__", {}), found, seen)
    return found
