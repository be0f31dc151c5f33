"""One class of a ``.fecam`` file: its row and its matrices, packed and checked, and checksums.

The row holds all that is small: label, numbers, means, when and of what it was taught. The matrices
lie apart, so that a model can be opened, listed and taught without reading them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Hashable, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from fecam.core.arrays import Array, to_numpy
from fecam.core.scatter import Scatter, Storage, diagonal_of
from fecam.core.statistics import ClassStatistics, ScatterKind
from fecam.errors import ModelFileError

MAX_COUNT = 2**53
MAX_TEXT = 4096
"""Of a label, a note or a setting as JSON. NumPy gives every label the room of the longest one."""
HASH_BYTES = 8
"""Of each sample that was taught, so that it is not taught twice."""

RESTORE = "Restore the file from a copy, or teach the model again and save it."
LABEL_RULE = f"Labels are whole numbers of 64 bits or strings of less than {MAX_TEXT} characters."
_SMALLER = "Forget it and teach it anew, with features of a smaller scale or in float64."

Matrices = tuple[bytes | None, bytes | None]
"""The scatter and the averaged covariance of a class; either may not be there."""


class Provenance(NamedTuple):
    """Where a class comes from."""

    learned: str
    """When it first came, in UTC, as ISO 8601 writes it."""
    changed: str
    """When it last changed."""
    note: str
    """What was said about it when it was taught."""
    content_hashes: bytes
    """Of the samples taught, sorted; those of models saved as a whole are not known."""


class Row(NamedTuple):
    """One class as the table of records holds it."""

    label: str
    numbers: tuple[Any, ...]
    """Count, visits, task; number, sum and sum of squares of the sampled distances."""
    lengths: tuple[Any, ...]
    """How many bytes the two matrices take; None where there is none."""
    texts: tuple[Any, ...]
    """When it was taught and changed, and a note."""
    arrays: tuple[Any, ...]
    """Raw mean, mean, and marks of samples."""
    matrices: bytes
    """The checksum of the matrices."""
    checksum: bytes
    """Of all the above."""


class Layout(NamedTuple):
    """What is kept of each class of a model: it tells how long every array must be."""

    form: ScatterKind
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

    def is_scatter(self, length: Any) -> bool:
        """Whether a scatter can be that long."""
        return type(length) is int and (
            length == self.scatter_bytes
            or (
                self.form == "full"
                and 0 <= length <= self.most_row_bytes
                and length % self.row_bytes == 0
            )
        )

    def shape_of(self, length: int) -> Storage:
        """The shape of a scatter of that length, which tells a triangle from rows."""
        if self.form == "diagonal":
            return "diagonal"
        return "packed" if length == self.scatter_bytes else "low_rank"


def file_error(what: str, remedy: str = RESTORE) -> ModelFileError:
    """What is wrong with a file, and what to do."""
    return ModelFileError(f"{what} {remedy}")


def pack_class(
    label: Hashable, one: ClassStatistics, task: int, layout: Layout, provenance: Provenance
) -> tuple[Row, Matrices]:
    """The row of one class, and its matrices."""
    text = json.dumps(int(label) if isinstance(label, bool) else label)
    matrices = pack_scatter(one.scatter, layout), pack_scatter(one.domain_mean_covariance, layout)
    unsigned = Row(
        text,
        (one.count, one.n_batches, task, *one.distance_moments),
        tuple(None if some is None else len(some) for some in matrices),
        provenance[:3],
        (
            _packed(one.raw_mean, layout.dtype),
            _packed(one.mean, "float64"),
            provenance.content_hashes,
        ),
        checksum(*matrices),
        b"",
    )
    row = unsigned._replace(checksum=row_checksum(unsigned))
    check_row(row, layout)
    check_matrices(row, matrices, layout)
    return row, matrices


def unpack_class(
    row: Row, layout: Layout, scatter: Scatter | None, averaged: Scatter | None
) -> tuple[int | str, ClassStatistics, int]:
    """The label, the statistics and the task that a row holds; the matrices are given."""
    label = check_row(row, layout)
    if row.checksum != row_checksum(row):
        raise file_error(f"class {row.label} is damaged: its checksum does not match.")
    count, visits, task, *sampled = row.numbers
    raw_mean, mean, _ = row.arrays
    statistics = ClassStatistics(
        count=count,
        raw_mean=_unpacked(raw_mean, layout.dtype),
        mean=_unpacked(mean, "float64"),
        scatter=scatter,
        n_batches=visits,
        distance_moments=(sampled[0], sampled[1], sampled[2]),
        domain_mean_covariance=averaged,
    )
    return label, statistics, task


def check_row(row: Row, layout: Layout) -> int | str:
    """The label of a row in which everything has the right type, length and range."""
    label: int | str = parse_json("label", row.label, LABEL_RULE)
    # True is no whole number here, and NumPy would drop a zero at the end.
    if type(label) not in (int, str) or str(label).endswith("\0"):
        raise file_error(f"{row.label[:80]} cannot be a label.", LABEL_RULE)
    least = {"count": 1, "visits": 1, "task": 0, "sampled_count": 0}
    for name, number in zip(least, row.numbers[:4], strict=True):
        if type(number) is not int or not least[name] <= number <= MAX_COUNT:
            raise file_error(f"class {row.label}: its {name} cannot be {str(number)[:80]}.")
    if not all(isinstance(number, float) and math.isfinite(number) for number in row.numbers[4:]):
        raise file_error(
            f"class {row.label}: its sampled distances are {row.numbers[4:]}.", _SMALLER
        )
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in row.texts):
        raise file_error(f"class {row.label}: a time or its note is not text, or too long.")
    scatter, averaged = row.lengths
    raw_mean, mean, marks = (len(x) if isinstance(x, bytes) else -1 for x in row.arrays)
    is_right = (
        raw_mean == layout.row_bytes
        and mean == 8 * layout.width
        and marks >= 0
        and marks % HASH_BYTES == 0
        and (scatter is None if layout.form == "none" else layout.is_scatter(scatter))
        and (averaged is None or (layout.form != "none" and layout.is_scatter(averaged)))
    )
    if not is_right:
        raise file_error(f"class {row.label}: an array is missing or has a wrong length.")
    _check_finite(row, row.arrays[0], layout.dtype)
    _check_finite(row, row.arrays[1], "float64")
    return label


def check_matrices(row: Row, matrices: Matrices, layout: Layout) -> list[Scatter | None]:
    """The scatter and the averaged covariance of a class, if they are what its row says."""
    lengths = tuple(None if some is None else len(some) for some in matrices)
    if lengths != row.lengths:
        raise file_error(f"class {row.label}: a matrix is missing or has a wrong length.")
    if checksum(*matrices) != row.matrices:
        raise file_error(
            f"class {row.label} is damaged: the checksum of its matrix does not match."
        )
    found = [unpack_scatter(some, layout) for some in matrices]
    for some, scatter in zip(matrices, found, strict=True):
        _check_finite(row, some, layout.dtype)
        with np.errstate(over="ignore"):
            if scatter is not None and not np.all(np.isfinite(diagonal_of(scatter))):
                raise file_error(f"class {row.label} has numbers too large to work with.", _SMALLER)
    return found


def _check_finite(row: Row, blob: bytes | None, dtype: str) -> None:
    if blob is not None and not np.all(np.isfinite(_view(blob, dtype))):
        raise file_error(f"class {row.label} has a number that is not finite.", _SMALLER)


def parse_json(what: str, text: Any, remedy: str = RESTORE, longest: float = MAX_TEXT) -> Any:
    """The value of a text that must be JSON and not too long."""
    if not isinstance(text, str) or len(text) > longest:
        raise file_error(f"the {what} is not text, or too long: {str(text)[:80]}.", remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise file_error(f"the {what} is not JSON: {text[:80]}.", remedy) from None


def pack_scatter(x: Scatter | None, layout: Layout) -> bytes | None:
    """A diagonal, the rows of a matrix of low rank, or an upper triangle row by row."""
    return None if x is None else _packed(x.data, layout.dtype)


def unpack_scatter(blob: bytes | None, layout: Layout) -> Scatter | None:
    """Undoes `pack_scatter`."""
    if blob is None:
        return None
    numbers, shape = _unpacked(blob, layout.dtype), layout.shape_of(len(blob))
    if shape == "low_rank":
        numbers = numbers.reshape(-1, layout.width)
    return Scatter(numbers, shape, layout.width)


def _packed(x: Array, dtype: str) -> bytes:
    return np.ascontiguousarray(to_numpy(x), np.dtype(dtype).newbyteorder("<")).tobytes()


def _view(blob: bytes, dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(blob, np.dtype(dtype).newbyteorder("<"))


def _unpacked(blob: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Without a copy where the machine's order of bytes is ours; then nobody can write to it."""
    return _view(blob, dtype).astype(dtype, copy=False)


def row_checksum(row: Row) -> bytes:
    """A checksum over everything that is stored of a class; its matrices go in by their own."""
    lengths = [-1 if length is None else length for length in row.lengths]
    numbers = struct.pack("<4q2d2q", *row.numbers, *lengths)
    texts = [text.encode() for text in row.texts]
    return checksum(row.label.encode(), numbers, *texts, *row.arrays, row.matrices)


def file_checksum(settings: Mapping[str, str], rows: Iterable[bytes]) -> str:
    """A checksum over all settings and the checksums of all rows, in whatever order they come."""
    texts = [part.encode() for name in sorted(settings) for part in (name, settings[name])]
    limbs = np.frombuffer(b"".join(rows), "<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    total = sum(limb << 32 * at for at, limb in enumerate(limbs.tolist())) % 2**128
    return checksum(*texts, total.to_bytes(16, "little")).hex()


def checksum(*parts: bytes | None) -> bytes:
    """Of each part its length goes in as well, so that nothing can move from one to the next."""
    found = sha256()
    for part in parts:
        found.update(struct.pack("<q", -1 if part is None else len(part)))
        found.update(part or b"")
    return found.digest()[:16]
