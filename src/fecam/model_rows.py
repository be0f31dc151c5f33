"""One class of a ``.fecam`` file as a row and two matrices: packing, checks and checksums.

A row holds everything small: label, counts, means and provenance. The matrices are stored apart, so
that a model can be opened, listed and extended without reading them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from fecam.core.arrays import Array, to_numpy
from fecam.core.calibration_rows import N_COLUMNS
from fecam.core.scatter import Scatter, Storage, diagonal_of
from fecam.core.state import ClassifierState
from fecam.core.statistics import (
    MAX_CALIBRATION_ROWS,
    ClassStatistics,
    ScatterKind,
)
from fecam.errors import ModelFileError

MAX_COUNT = 2**53
MAX_TEXT = 4096
"""Characters of a label, a note or a setting. NumPy pads every label to the longest one."""
HASH_BYTES = 8
"""Bytes per learned sample of the hash by which a duplicate is recognized."""
CALIBRATION_LENGTHS = range(0, 4 * N_COLUMNS * MAX_CALIBRATION_ROWS + 1, 4 * N_COLUMNS)
"""Possible lengths of the measured rows of a class in bytes."""

RESTORE = "Restore the file from a copy, or learn the model again and save it."
LABEL_RULE = (
    f"Labels are booleans, integers of 64 bits or strings of less than {MAX_TEXT} characters."
)
_RESCALE = "Forget it and learn it again, with features of a smaller scale or in float64."

Matrices = tuple[bytes | None, bytes | None]
"""The scatter and the averaged covariance of a class; either may be missing."""


class Provenance(NamedTuple):
    """Origin of a class."""

    learned: str
    """When the class was first learned: UTC, ISO 8601."""
    changed: str
    note: str
    content_hashes: bytes
    """Sorted hashes of the samples; empty for a model that was saved as a whole."""


class Row(NamedTuple):
    """One class, in the column order of the table ``records``."""

    label: str
    n_samples: int
    n_batches: int
    task: int
    distance_count: int
    distance_sum: float
    distance_squares: float
    scatter_bytes: int | None
    averaged_bytes: int | None
    learned: str
    changed: str
    note: str
    matrices: bytes
    """Checksum of the matrices."""
    checksum: bytes
    """Checksum of all other columns."""
    raw_mean: bytes
    mean: bytes
    content_hashes: bytes
    calibration: bytes | None = None
    """Measured rows for the calibration; files of version 3 have none."""

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in the row."""
        arrays = self.raw_mean, self.mean, self.content_hashes, self.calibration or b""
        return sum(map(len, arrays))

    @property
    def matrix_bytes(self) -> int:
        """Size of the two matrices."""
        return (self.scatter_bytes or 0) + (self.averaged_bytes or 0)


class Layout(NamedTuple):
    """What a model stores per class; it determines the valid length of every array."""

    scatter_kind: ScatterKind
    n_features: int
    """Of means and scatters; raw means have ``n_features_in``, which are more after compression."""
    dtype: str
    n_features_in: int

    @classmethod
    def of(cls, state: ClassifierState, dtype: str) -> Layout:
        """Return the layout of the classes of a state."""
        return cls(state.scatter_kind, state.n_features, dtype, state.n_features_in)

    @property
    def raw_mean_bytes(self) -> int:
        """Length of a raw mean."""
        return self.n_features_in * np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Length of one row of a matrix."""
        return self.n_features * np.dtype(self.dtype).itemsize

    @property
    def scatter_bytes(self) -> int:
        """Length of a scatter; of a symmetric matrix only the upper triangle is stored."""
        halves = {"full": self.n_features + 1, "diagonal": 2, "none": 0}
        return self.row_bytes * halves[self.scatter_kind] // 2

    @property
    def max_low_rank_bytes(self) -> int:
        """Largest length of a scatter that is stored as R with RᵀR; less than any triangle."""
        return self.row_bytes * (self.n_features // 2) if self.scatter_kind == "full" else 0

    def is_scatter(self, length: Any) -> bool:
        """Return whether a scatter can have this length."""
        if type(length) is not int or self.scatter_kind == "none":
            return False
        is_low_rank = 0 <= length <= self.max_low_rank_bytes and length % self.row_bytes == 0
        return length == self.scatter_bytes or (self.scatter_kind == "full" and is_low_rank)

    def storage_of(self, length: int) -> Storage:
        """Return the shape of a scatter of this length."""
        if self.scatter_kind == "diagonal":
            return "diagonal"
        return "packed" if length == self.scatter_bytes else "low_rank"


def file_error(problem: str, remedy: str = RESTORE) -> ModelFileError:
    """Return an error that names a problem of a file and a remedy."""
    return ModelFileError(f"{problem} {remedy}")


def pack_class(
    label: Hashable, stats: ClassStatistics, task: int, layout: Layout, provenance: Provenance
) -> tuple[Row, Matrices]:
    """Return the row and the matrices of a class, checked as they are when read."""
    matrices = (
        pack_scatter(stats.scatter, layout),
        pack_scatter(stats.domain_mean_covariance, layout),
    )
    numbers = (stats.count, stats.n_batches, task, *stats.distance_moments)
    means = to_bytes(stats.raw_mean, layout.dtype), to_bytes(stats.mean, "float64")
    measured = None if stats.calibration is None else to_bytes(stats.calibration, "float32")
    row = signed_row(json.dumps(label), numbers, provenance, means, matrices, measured)
    check_row(row, layout)
    check_matrices(row, matrices, layout)
    return row, matrices


def signed_row(
    label: str,
    numbers: Iterable[Any],
    provenance: Provenance,
    means: tuple[Any, Any],
    matrices: Matrices,
    calibration: bytes | None,
) -> Row:
    """Return a row with its checksums."""
    lengths = (None if blob is None else len(blob) for blob in matrices)
    learned, changed, note, hashes = provenance
    head = (label, *numbers, *lengths, learned, changed, note)
    row = Row._make((*head, checksum(*matrices), b"", *means, hashes, calibration))
    return row._replace(checksum=row_checksum(row))


def unpack_class(
    row: Row, layout: Layout, read_matrices: Callable[[], Sequence[Scatter | None]]
) -> tuple[int | str, ClassStatistics, int]:
    """Return label, statistics and task of a row; its matrices are read after it was checked."""
    label = check_row(row, layout)
    if row.checksum != row_checksum(row):
        raise file_error(f"class {row.label} is damaged: its checksum does not match.")
    scatter, averaged = read_matrices()
    measured = None
    if row.calibration is not None:
        measured = _from_bytes(row.calibration, "float32").reshape(-1, N_COLUMNS)
    statistics = ClassStatistics(
        count=row.n_samples,
        raw_mean=_from_bytes(row.raw_mean, layout.dtype),
        mean=_from_bytes(row.mean, "float64"),
        scatter=scatter,
        n_batches=row.n_batches,
        distance_moments=(row.distance_count, row.distance_sum, row.distance_squares),
        domain_mean_covariance=averaged,
        calibration=measured,
    )
    return label, statistics, row.task


def check_row(row: Row, layout: Layout) -> int | str:
    """Return the label of a row whose values all have the right type, length and range."""
    label: int | str = parse_json("label", row.label, LABEL_RULE)
    # NumPy drops a trailing null character.
    if type(label) not in (bool, int, str) or str(label).endswith("\0"):
        raise file_error(f"{row.label[:80]} cannot be a label.", LABEL_RULE)
    least = {"count": 1, "visits": 1, "task": 0, "sampled_count": 0}
    for (name, minimum), number in zip(least.items(), row[1:5], strict=True):
        if type(number) is not int or not minimum <= number <= MAX_COUNT:
            raise file_error(f"class {row.label}: its {name} cannot be {str(number)[:80]}.")
    sums = row.distance_sum, row.distance_squares
    if not all(isinstance(number, float) and math.isfinite(number) for number in sums):
        raise file_error(f"class {row.label}: its sampled distances are {sums}.", _RESCALE)
    texts = row.learned, row.changed, row.note
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
        raise file_error(f"class {row.label}: a time or its note is not text, or too long.")
    arrays = row.raw_mean, row.mean, row.content_hashes, row.calibration or b""
    raw_mean, mean, hashes, calibration = (len(x) if isinstance(x, bytes) else -1 for x in arrays)
    is_right = (
        raw_mean == layout.raw_mean_bytes
        and mean == 8 * layout.n_features
        and hashes >= 0
        and hashes % HASH_BYTES == 0
        and calibration in CALIBRATION_LENGTHS
        and (row.scatter_bytes is None) == (layout.scatter_kind == "none")
        and all(n is None or layout.is_scatter(n) for n in (row.scatter_bytes, row.averaged_bytes))
    )
    if not is_right:
        raise file_error(f"class {row.label}: an array is missing or has a wrong length.")
    _check_finite(row, row.raw_mean, layout.dtype)
    _check_finite(row, row.mean, "float64")
    _check_finite(row, row.calibration, "float32")
    return label


def check_matrices(row: Row, matrices: Matrices, layout: Layout) -> list[Scatter | None]:
    """Return the scatter and the averaged covariance of a class if they match its row."""
    if tuple(None if blob is None else len(blob) for blob in matrices) != row[7:9]:
        raise file_error(f"class {row.label}: a matrix is missing or has a wrong length.")
    if checksum(*matrices) != row.matrices:
        raise file_error(
            f"class {row.label} is damaged: the checksum of its matrix does not match."
        )
    scatters = [unpack_scatter(blob, layout) for blob in matrices]
    for blob, scatter in zip(matrices, scatters, strict=True):
        _check_finite(row, blob, layout.dtype)
        with np.errstate(over="ignore"):
            if scatter is not None and not np.all(np.isfinite(diagonal_of(scatter))):
                raise file_error(f"class {row.label} has numbers that are too large.", _RESCALE)
    return scatters


def _check_finite(row: Row, blob: bytes | None, dtype: str) -> None:
    if blob is not None and not np.all(np.isfinite(_view(blob, dtype))):
        raise file_error(f"class {row.label} has a number that is not finite.", _RESCALE)


def parse_json(name: str, text: Any, remedy: str = RESTORE, max_length: float = MAX_TEXT) -> Any:
    """Return the value of a JSON text of limited length."""
    if not isinstance(text, str) or len(text) > max_length:
        raise file_error(f"the {name} is not text, or too long: {str(text)[:80]}.", remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise file_error(f"the {name} is not JSON: {text[:80]}.", remedy) from None


def pack_scatter(scatter: Scatter | None, layout: Layout) -> bytes | None:
    """Return a diagonal, the rows R of a low-rank matrix, or an upper triangle as bytes."""
    return None if scatter is None else to_bytes(scatter.data, layout.dtype)


def unpack_scatter(blob: bytes | None, layout: Layout) -> Scatter | None:
    """Return the scatter that `pack_scatter` packed."""
    if blob is None:
        return None
    numbers, storage = _from_bytes(blob, layout.dtype), layout.storage_of(len(blob))
    if storage == "low_rank":
        numbers = numbers.reshape(-1, layout.n_features)
    return Scatter(numbers, storage, layout.n_features)


def to_bytes(x: Array, dtype: Any = None) -> bytes:
    """Return the little-endian bytes of an array, by default in its own dtype."""
    array = np.asarray(to_numpy(x), dtype)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _view(blob: bytes, dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(blob, np.dtype(dtype).newbyteorder("<"))


def _from_bytes(blob: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Return an array; on little-endian machines a read-only view without a copy."""
    return _view(blob, dtype).astype(dtype, copy=False)


def row_checksum(row: Row) -> bytes:
    """Return the checksum over all columns of a row; the matrices enter by their checksum."""
    lengths = [-1 if length is None else length for length in row[7:9]]
    numbers = struct.pack("<4q2d2q", *row[1:7], *lengths)
    texts = [text.encode() for text in row[9:12]]
    parts = [row.raw_mean, row.mean, row.content_hashes, row.matrices]
    if row.calibration is not None:  # rows without it have the checksum of version 3
        parts.append(row.calibration)
    return checksum(row.label.encode(), numbers, *texts, *parts)


def file_checksum(settings: Mapping[str, str], rows: Iterable[bytes]) -> str:
    """Return the checksum over all settings and the checksums of all rows, in any order."""
    texts = [part.encode() for name in sorted(settings) for part in (name, settings[name])]
    limbs = np.frombuffer(b"".join(rows), "<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    total = sum(limb << 32 * i for i, limb in enumerate(limbs.tolist())) % 2**128
    return checksum(*texts, total.to_bytes(16, "little")).hex()


def checksum(*parts: bytes | None, algorithm: Callable[[], Any] = sha256) -> bytes:
    """Return 16 bytes over all parts, each with its length, so that no byte can change parts."""
    digest = algorithm()
    for part in parts:
        digest.update(struct.pack("<q", -1 if part is None else len(part)))
        digest.update(part or b"")
    return bytes(digest.digest()[:16])
