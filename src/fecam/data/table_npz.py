"""Rows of ``.npz`` files, whose arrays may declare any size: checked before memory is asked for."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.table_columns import Options, Rows, empty_features, fill_features, not_finite
from fecam.errors import DatasetError

_BLOCK = 1 << 22
_HEADER = 1 << 14
# No byte of a deflated stream can stand for more than this many.
_MOST_PACKED = 1040

_REMEDY = "Remedy: np.savez(path, X=features, y=labels), one row of X and one entry of y an item"


def read_npz(path: Path, given: Options) -> Rows:
    """Read ``X`` and ``y``, and ``X_test``, ``y_test``, ``is_test``, ``domains``, ``label_names``.

    ``X`` holds vectors, texts or 8-bit images.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _rows(path, archive, given)
    except DatasetError:
        raise
    # What hostile or damaged archives make zipfile raise.
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DatasetError(
            f"{path} cannot be read as npz: {error}. Remedy: write the file again"
        ) from error


@dataclass(frozen=True)
class _Array:
    """An array inside an archive: what its header declares, checked against what is there."""

    path: Path
    archive: zipfile.ZipFile
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    begins: int

    @classmethod
    def of(cls, path: Path, archive: zipfile.ZipFile, name: str) -> _Array:
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as file:
            head = BytesIO(file.read(_HEADER))
        try:
            version = npy.read_magic(head)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, is_fortran, dtype = read(head)
        except (ValueError, SyntaxError, TokenError, UserWarning) as error:
            raise DatasetError(f"{path}: the array {name!r} has no good header: {error}") from None
        if dtype.hasobject or dtype.names or dtype.subdtype or not dtype.itemsize:
            raise DatasetError(
                f"{path}: the array {name!r} is of type {dtype}, which is not read, for it may "
                "hold foreign code. Remedy: save numbers, or texts as np.array(texts, dtype=str)"
            )
        size = math.prod(shape) * dtype.itemsize
        stored = info.file_size - head.tell()
        most = info.compress_size * (
            1 if info.compress_type == zipfile.ZIP_STORED else _MOST_PACKED
        )
        if min(shape, default=0) < 0 or size != stored or info.file_size > most:
            raise DatasetError(
                f"{path}: the array {name!r} declares {size} bytes, shape {shape}, but "
                f"{min(stored, most)} are there. Remedy: write the file again"
            )
        return cls(path, archive, name, shape, dtype, is_fortran, head.tell())

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the array some rows at a time; of a transposed one, some columns at a time."""
        shape = self.shape[::-1] if self.is_fortran else self.shape
        width = math.prod(shape[1:]) * self.dtype.itemsize
        rows = max(_BLOCK // max(width, 1), 1)
        with self.archive.open(f"{self.name}.npy") as file:
            file.read(self.begins)
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                content = file.read(count * width)
                if len(content) < count * width:
                    raise DatasetError(f"{self.path}: the array {self.name!r} ends early")
                yield np.frombuffer(content, self.dtype).reshape(count, *shape[1:])

    def whole(self) -> NDArray[Any]:
        """Return all of it."""
        blocks = list(self.blocks())
        array = np.concatenate(blocks) if blocks else np.empty(self.shape, self.dtype)
        return array.T if self.is_fortran else array


def _rows(path: Path, archive: zipfile.ZipFile, given: Options) -> Rows:
    names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
    found = f"{path} holds the arrays {listed(names, 20)}"
    items = given.features if isinstance(given.features, str) else given.text or given.image
    first = _named(found, names, items, "X", "features=")
    labels = _named(found, names, given.label, "y", "label=") if given.labelled else None
    tested = [_beside(name) for name in (first, labels) if name is not None]
    there = [name for name in tested if name in names]
    if 0 < len(there) < len(tested):
        raise DatasetError(f"{found}: {there[0]!r} alone. Remedy: give both X_test and y_test")
    parts = [_Array.of(path, archive, name) for name in (first, *there[:1])]
    if not all(part.shape for part in parts):
        raise DatasetError(f"{path}: {first!r} is a single value. {_REMEDY}")
    targets = [_Array.of(path, archive, name) for name in (labels, *there[1:]) if name is not None]
    for x, y in zip(parts, targets, strict=given.labelled):
        if len(y.shape) != 1 or x.shape[0] != y.shape[0]:
            raise DatasetError(
                f"{path}: {x.name!r} has the shape {x.shape} and {y.name!r} {y.shape}. {_REMEDY}"
            )

    def values(name: str) -> NDArray[Any] | None:
        if name not in names:
            return None
        array = np.concatenate(
            [
                _Array.of(path, archive, one).whole()
                for one in (name, f"{name}_test")
                if one in names
            ]
        )
        total = sum(part.shape[0] for part in parts)
        if array.shape != (total,):
            raise DatasetError(f"{path}: {name!r} has the shape {array.shape}, not ({total},)")
        return array

    domains = values(given.domain or "domains")
    label_names = _label_names(path, archive, names)
    return Rows(
        *_items(parts),
        None if labels is None else _labels(path, labels, targets, label_names),
        lambda row: f"row {row + 1}",
        _splits(path, parts, values("is_test")),
        None if domains is None else _texts(path, "domains", domains),
        label_names,
    )


def _named(found: str, names: list[str], given: str | None, usual: str, option: str) -> str:
    candidates = [usual, f"{usual}_train", usual.lower(), f"{usual.lower()}_train"]
    for name in candidates if given is None else [given]:
        if name in names:
            return name
    wanted = usual if given is None else given
    raise DatasetError(f"{found}, but no {wanted!r}. {_REMEDY}, or name them with {option}")


def _beside(name: str) -> str:
    return name.removesuffix("_train") + "_test"


def _items(parts: list[_Array]) -> tuple[Any, Any]:
    """Return the kind of the items and the items, as the first array of the two has them."""
    path, first = parts[0].path, parts[0]
    if any(part.shape[1:] != first.shape[1:] for part in parts):
        shapes = " and ".join(str(part.shape) for part in parts)
        raise DatasetError(f"{path}: X and X_test differ in width: {shapes}")
    if first.dtype.kind == "U" and len(first.shape) == 1:
        return "texts", [text for part in parts for text in _texts(path, part.name, part.whole())]
    is_image = len(first.shape) == 3 or (len(first.shape) == 4 and first.shape[3] in {1, 3, 4})
    if first.dtype == np.uint8 and is_image:
        if any(part.dtype != np.uint8 for part in parts):
            raise DatasetError(f"{path}: X and X_test differ in type")
        return "images", np.concatenate([part.whole() for part in parts])
    if any(part.dtype.kind not in "fiub" or len(part.shape) != 2 for part in parts):
        raise DatasetError(
            f"{path}: {first.name!r} is of type {first.dtype}, shape {first.shape}. Remedy: give "
            "numbers (count, features), texts (count,) or 8-bit images (count, h, w, 3)"
        )
    return "features", _features(path, parts)


def _features(path: Path, parts: list[_Array]) -> NDArray[np.float32]:
    """Read all vectors into one float32 array, block by block."""
    target = empty_features(path, sum(part.shape[0] for part in parts), parts[0].shape[1])
    start = 0
    for part in parts:
        room = target[start : start + part.shape[0]]
        room = room.T if part.is_fortran else room
        at = 0
        for block in part.blocks():
            wrong = fill_features(room, block, at)
            if wrong is not None:
                bad = ~np.isfinite(room[at : at + len(block)])
                row = int(np.argwhere(bad)[:, 1].min()) if part.is_fortran else wrong
                raise not_finite(path, f"row {row + 1} of {part.name!r}")
            at += len(block)
        start += part.shape[0]
    return target


def _label_names(path: Path, archive: zipfile.ZipFile, names: list[str]) -> tuple[str, ...] | None:
    if "label_names" not in names:
        return None
    label_names = tuple(
        _texts(path, "label_names", _Array.of(path, archive, "label_names").whole().reshape(-1))
    )
    if len(set(label_names)) < len(label_names):
        raise DatasetError(f"{path}: 'label_names' has a name twice. Remedy: make them distinct")
    return label_names


def _labels(
    path: Path, name: str, targets: list[_Array], label_names: tuple[str, ...] | None
) -> Sequence[str]:
    codes = np.concatenate([target.whole() for target in targets])
    texts = _texts(path, name, codes)
    if label_names is None or codes.dtype.kind not in "fiub":
        return texts
    wrong = np.flatnonzero((codes < 0) | (codes >= len(label_names)))
    if len(wrong):
        raise DatasetError(
            f"{path}, row {int(wrong[0]) + 1}: the label {codes[wrong[0]]} numbers none of the "
            f"{len(label_names)} label_names, which count from 0"
        )
    return [label_names[int(text)] for text in texts]


def _splits(path: Path, parts: list[_Array], is_test: NDArray[Any] | None) -> Sequence[str] | None:
    if len(parts) == 1 and is_test is None:
        return None
    if is_test is None:
        return [
            name
            for part, name in zip(parts, ("train", "test"), strict=True)
            for _ in range(part.shape[0])
        ]
    if len(parts) > 1:
        raise DatasetError(f"{path} has both 'is_test' and 'X_test'. Remedy: give one of them")
    if is_test.dtype.kind not in "biu" or not np.isin(is_test, (0, 1)).all():
        raise DatasetError(f"{path}: 'is_test' is not made of True and False. Remedy: a bool array")
    return ["test" if flag else "train" for flag in is_test]


def _texts(path: Path, name: str, values: NDArray[Any]) -> list[str]:
    """Return names as strings, be they text or whole numbers."""
    if values.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(values) | (values != np.round(values)))
        if len(wrong):
            raise DatasetError(
                f"{path}, row {int(wrong[0]) + 1}: {values[wrong[0]]} in {name!r} is not a whole "
                "number. Remedy: give whole numbers or texts"
            )
        values = values.astype(np.int64)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind not in "iuU":
        raise DatasetError(
            f"{path}: {name!r} is of type {values.dtype}. Remedy: give whole numbers or texts"
        )
    return [str(value) for value in values]
