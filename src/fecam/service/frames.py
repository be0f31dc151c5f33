"""What is said between a service and the processes that judge for it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fecam.service.served_model import EncodedAnswers, Query

Outcomes = Sequence[EncodedAnswers | Exception]
Batch = tuple[list[tuple[int, int, float | None]], list[NDArray[Any]]]

LENGTH = struct.Struct("!Q")
"""What stands before a message. Pickle will do: only this program writes to these lines."""


def encode_batch(queries: Sequence[Query]) -> Batch:
    """Queries with their rows in one piece where they fit, which is sent faster than many.

    >>> asked, rows = encode_batch([Query(np.zeros((1, 3))), Query(np.ones((2, 3)), 2)])
    >>> asked, [some.shape for some in rows]
    ([(1, 1, None), (2, 2, None)], [(3, 3)])
    """
    rows = [query.rows for query in queries]
    if len({one.shape[1] for one in rows}) == 1:
        rows = [np.concatenate(rows)]
    return [(len(query.rows), query.top, query.reject) for query in queries], rows


def decode_batch(message: Batch) -> list[Query]:
    """What was encoded.

    >>> for widths in ((3, 3), (3, 4)):
    ...     again = decode_batch(encode_batch([Query(np.zeros((2, width))) for width in widths]))
    ...     [query.rows.shape for query in again]
    [(2, 3), (2, 3)]
    [(2, 3), (2, 4)]
    """
    asked, parts = message
    if len(parts) < len(asked):
        ends = np.cumsum([count for count, _, _ in asked])
        parts = np.split(parts[0], ends[:-1])
    return [Query(rows, top, reject) for rows, (_, top, reject) in zip(parts, asked, strict=True)]


def put(write: Callable[[bytes], Any], message: Any) -> None:
    """Write a message."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    write(LENGTH.pack(len(content)))
    write(content)


def got(file: BinaryIO) -> Any:
    """The next message; None if there is none any more."""
    try:
        length = file.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        size = LENGTH.unpack(length)[0]
        content = file.read(size)
    except OSError:
        return None
    return pickle.loads(content) if len(content) == size else None
