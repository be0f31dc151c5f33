"""One class of a ``.fecam`` file: its row, packed and checked, and the checksums over it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from fecam.core.arrays import Array, to_numpy
from fecam.core.scatter import Scatter, variances_of
from fecam.core.statistics import ClassStatistics, Form
from fecam.errors import ModelFileError

LARGEST_COUNT = 2**53
LONGEST_TEXT = 4096
"""Of a label or a setting as JSON. NumPy gives every label the room of the longest one."""

RESTORE = "Restore the file from a copy, or teach the model again and save it."
LABELS = f"Labels are whole numbers of 64 bits or strings of less than {LONGEST_TEXT} characters."
_SMALLER = "Forget it and teach it anew, with features of a smaller scale or in float64."


class Row(NamedTuple):
    """One class as the table holds it."""

    label: str
    numbers: tuple[Any, ...]
    """Count, visits, task; number, sum and sum of squares of the sampled distances."""
    checksum: bytes
    arrays: tuple[Any, ...]
    """Raw mean, mean, scatter and averaged covariance; the last two may be None."""


class Layout(NamedTuple):
    """What is kept of each class of a model: it tells how long every array must be."""

    form: Form
    width: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """How long one row of a matrix is."""
        return self.width * np.dtype(self.dtype).itemsize

    @property
    def scatter_bytes(self) -> int:
        """How long a scatter is; of a symmetric matrix only the upper triangle is stored."""
        halves = {"full": self.width + 1, "diagonal": 2, "none": 0}
        return self.row_bytes * halves[self.form] // 2

    @property
    def most_row_bytes(self) -> int:
        """How long the rows of a matrix of low rank may be: shorter than any triangle."""
        return self.row_bytes * (self.width // 2) if self.form == "full" else 0

    def is_scatter(self, length: int) -> bool:
        """Whether a scatter can be that long; it tells a triangle from rows."""
        return length == self.scatter_bytes or (
            self.form == "full" and length <= self.most_row_bytes and length % self.row_bytes == 0
        )


def flaw(what: str, remedy: str = RESTORE) -> ModelFileError:
    """What is wrong with a file, and what to do."""
    return ModelFileError(f"{what} {remedy}")


def pack_class(label: Hashable, one: ClassStatistics, task: int, layout: Layout) -> Row:
    """The row of one class."""
    text = json.dumps(int(label) if isinstance(label, bool) else label)
    numbers = (one.count, one.visits, task, *one.sampled)
    arrays = (
        _packed(one.raw_mean, layout.dtype),
        _packed(one.mean, "float64"),
        pack_scatter(one.scatter, layout),
        pack_scatter(one.averaged, layout),
    )
    row = Row(text, numbers, class_checksum(text, numbers, arrays), arrays)
    check_row(row, layout)
    return row


def unpack_class(row: Row, layout: Layout) -> tuple[int | str, ClassStatistics, int]:
    """The label, the statistics and the task that a row holds."""
    label = check_row(row, layout)
    if row.checksum != class_checksum(row.label, row.numbers, row.arrays):
        raise flaw(f"class {row.label} is damaged: its checksum does not match.")
    count, visits, task, *sampled = row.numbers
    with np.errstate(over="ignore"):
        statistics = _statistics(row, layout, count, visits, sampled)
        numbers = [statistics.raw_mean, *map(_variances, (statistics.scatter, statistics.averaged))]
    if not all(np.all(np.isfinite(some)) for some in numbers):
        raise flaw(f"class {row.label} has numbers too large to work with.", _SMALLER)
    return label, statistics, task


def _variances(scatter: Scatter | None) -> Any:
    return 0.0 if scatter is None else variances_of(scatter)


def _statistics(
    row: Row, layout: Layout, count: int, visits: int, sampled: list[Any]
) -> ClassStatistics:
    raw_mean, mean, scatter, averaged = row.arrays
    return ClassStatistics(
        count=count,
        raw_mean=_unpacked(raw_mean, _raw_dtype(raw_mean, layout)).astype(layout.dtype),
        mean=_unpacked(mean, "float64"),
        scatter=unpack_scatter(scatter, layout),
        visits=visits,
        sampled=(sampled[0], sampled[1], sampled[2]),
        averaged=unpack_scatter(averaged, layout),
    )


def check_row(row: Row, layout: Layout) -> int | str:
    """The label of a row in which everything has the right type, length and range."""
    label: int | str = parsed("label", row.label, LABELS)
    # True is no whole number here, and NumPy would drop a zero at the end.
    if type(label) not in (int, str) or str(label).endswith("\0"):
        raise flaw(f"{row.label[:80]} cannot be a label.", LABELS)
    least = {"count": 1, "visits": 1, "task": 0, "sampled_count": 0}
    for name, number in zip(least, row.numbers[:4], strict=True):
        if type(number) is not int or not least[name] <= number <= LARGEST_COUNT:
            raise flaw(f"class {row.label}: its {name} cannot be {str(number)[:80]}.")
    raw_mean, mean, scatter, averaged = (None if x is None else len(x) for x in row.arrays)
    is_right = (
        raw_mean in (layout.row_bytes, 8 * layout.width)
        and mean == 8 * layout.width
        and (scatter is None if layout.form == "none" else _fits(scatter, layout))
        and (averaged is None or (layout.form != "none" and _fits(averaged, layout)))
    )
    if not is_right:
        raise flaw(f"class {row.label}: an array is missing or has a wrong length.")
    if not all(isinstance(number, float) and math.isfinite(number) for number in row.numbers[4:]):
        raise flaw(f"class {row.label}: its sampled distances are {row.numbers[4:]}.", _SMALLER)
    dtypes = (_raw_dtype(row.arrays[0], layout), "float64", layout.dtype, layout.dtype)
    for array, dtype in zip(row.arrays, dtypes, strict=True):
        if array is not None and not np.all(np.isfinite(_unpacked(array, dtype))):
            raise flaw(f"class {row.label} has a number that is not finite.", _SMALLER)
    return label


def parsed(what: str, text: Any, remedy: str = RESTORE, longest: float = LONGEST_TEXT) -> Any:
    """The value of a text that must be JSON and not too long."""
    if not isinstance(text, str) or len(text) > longest:
        raise flaw(f"the {what} is not text, or too long: {str(text)[:80]}.", remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise flaw(f"the {what} is not JSON: {text[:80]}.", remedy) from None


def pack_scatter(x: Scatter | None, layout: Layout) -> bytes | None:
    """A diagonal, the rows of a matrix of low rank, or an upper triangle row by row."""
    return None if x is None else _packed(x.numbers, layout.dtype)


def unpack_scatter(blob: bytes | None, layout: Layout) -> Scatter | None:
    """Undoes `pack_scatter`."""
    if blob is None:
        return None
    numbers, width = _unpacked(blob, layout.dtype), layout.width
    if layout.form == "diagonal":
        return Scatter(numbers, "diagonal", width)
    if len(blob) == layout.scatter_bytes:
        return Scatter(numbers, "triangle", width)
    return Scatter(numbers.reshape(-1, width), "rows", width)


def _fits(length: int | None, layout: Layout) -> bool:
    return length is not None and layout.is_scatter(length)


def _raw_dtype(blob: bytes, layout: Layout) -> str:
    """Version 1 of the format kept the raw mean in double precision."""
    return layout.dtype if len(blob) == layout.row_bytes else "float64"


def _packed(x: Array, dtype: str) -> bytes:
    return np.ascontiguousarray(to_numpy(x), np.dtype(dtype).newbyteorder("<")).tobytes()


def _unpacked(blob: bytes, dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(blob, np.dtype(dtype).newbyteorder("<")).astype(dtype)


def class_checksum(text: str, numbers: tuple[Any, ...], arrays: tuple[Any, ...]) -> bytes:
    """A checksum over everything that is stored of a class."""
    return _checksum(text.encode(), struct.pack("<4q2d", *numbers), *arrays)


def file_checksum(settings: Mapping[str, str], rows: Mapping[str, bytes]) -> str:
    """A checksum over all settings and the checksums of all rows, by the text of their labels."""
    texts = [part for name in sorted(settings) for part in (name, settings[name])]
    checksums = [part for text in sorted(rows) for part in (text.encode(), rows[text])]
    return _checksum(*(text.encode() for text in texts), *checksums).hex()


def _checksum(*parts: bytes | None) -> bytes:
    """Of each part its length goes in as well, so that nothing can move from one to the next."""
    checksum = blake2b(digest_size=16)
    for part in parts:
        checksum.update(struct.pack("<q", -1 if part is None else len(part)))
        checksum.update(part or b"")
    return checksum.digest()
