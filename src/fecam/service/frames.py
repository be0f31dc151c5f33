"""Messages between a service and its prediction workers: a length, then a pickle."""

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
"""Number of rows, top and reject of each query; the rows."""

LENGTH = struct.Struct("!Q")
"""Header of a frame. Pickle is safe here: both ends of the socket are this program."""


def encode_batch(queries: Sequence[Query]) -> Batch:
    """Return the queries with their rows concatenated if the widths agree: one array is faster.

    >>> options, rows = encode_batch([Query(np.zeros((1, 3))), Query(np.ones((2, 3)), 2)])
    >>> options, [array.shape for array in rows]
    ([(1, 1, None), (2, 2, None)], [(3, 3)])
    """
    rows = [query.rows for query in queries]
    if len({array.shape[1] for array in rows}) == 1:
        rows = [np.concatenate(rows)]
    return [(len(query.rows), query.top, query.reject) for query in queries], rows


def decode_batch(batch: Batch) -> list[Query]:
    """Return the queries that `encode_batch` encoded.

    >>> for widths in ((3, 3), (3, 4)):
    ...     batch = encode_batch([Query(np.zeros((2, width))) for width in widths])
    ...     [query.rows.shape for query in decode_batch(batch)]
    [(2, 3), (2, 3)]
    [(2, 3), (2, 4)]
    """
    options, arrays = batch
    if len(arrays) < len(options):
        ends = np.cumsum([count for count, _, _ in options])
        arrays = np.split(arrays[0], ends[:-1])
    return [
        Query(rows, top, reject) for rows, (_, top, reject) in zip(arrays, options, strict=True)
    ]


def write_frame(write: Callable[[bytes], Any], message: Any) -> None:
    """Write a message."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    write(LENGTH.pack(len(content)))
    write(content)


def read_frame(file: BinaryIO) -> Any:
    """Return the next message; None at the end."""
    try:
        length = file.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        size = LENGTH.unpack(length)[0]
        content = file.read(size)
    except OSError:
        return None
    return pickle.loads(content) if len(content) == size else None
