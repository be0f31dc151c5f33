"""Memory that a head needs between tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fecam.core.arrays import is_array


def state_nbytes(head: Any) -> int:
    """Return the bytes of all arrays that a head stores between tasks; 0 if it is not fitted.

    Derived values do not count: factors, inverses, a random projection that follows from its seed.
    For estimators of other libraries, all arrays among the attributes count.

    Parameters
    ----------
    head : estimator
        A head, or any estimator.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> from fecam.heads import make
    >>> state_nbytes(make("ncm").fit([[0.0, 1.0], [2.0, 1.0]], ["a", "b"]))
    56
    """
    if not hasattr(head, "__sklearn_is_fitted__"):
        return array_nbytes(vars(head))
    return array_nbytes(head.state_) if head.__sklearn_is_fitted__() else 0


def array_nbytes(value: Any) -> int:
    """Return the bytes of the distinct arrays in nested dataclasses, mappings and sequences.

    >>> array_nbytes({"a": np.zeros(3), "b": [np.zeros((2, 2), np.float32)]})
    40
    """
    return sum({id(array): array.nbytes for array in _arrays(value)}.values())


def _arrays(value: Any) -> Iterator[Any]:
    """Yield all arrays; a view yields the array that owns its memory."""
    if isinstance(value, np.ndarray) or is_array(value):
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        yield value
        return
    children: Any = ()
    if is_dataclass(value) and not isinstance(value, type):
        children = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        children = value.values()
    elif isinstance(value, (list, tuple)):
        children = value
    for child in children:
        yield from _arrays(child)
