"""Rows of ``.parquet`` files; pyarrow is imported here and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fecam.data.table_columns import (
    Columns,
    Options,
    Rows,
    choose,
    empty_features,
    fill_features,
    not_finite,
)
from fecam.errors import DatasetError, MissingPackageError


def read_parquet(path: Path, given: Options) -> Rows:
    """Read the columns that are needed, a batch of rows at a time."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPackageError(f"reading {path}", "pyarrow", "parquet") from None
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            columns = choose(
                path,
                schema.names,
                given,
                lists={field.name for field in schema if _is_list(pa, field.type)},
                numbers={field.name for field in schema if _is_number(pa, field.type)},
            )
            _refuse_types(pa, path, schema, columns)
            return _rows(pa, path, file, columns)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path} cannot be read as parquet: {error}. Remedy: write the file again"
        ) from error


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ) and _is_number(pa, kind.value_type)


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )


def _is_name(pa: Any, kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(texts or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _refuse_types(pa: Any, path: Path, schema: Any, columns: Columns) -> None:
    def refuse(name: str, wanted: str) -> None:
        raise DatasetError(
            f"{path}: the column {name!r} is of type {schema.field(name).type}, not {wanted}. "
            "Remedy: convert it, or name another column"
        )

    for name in (columns.label, columns.split, columns.domain):
        if name is not None and not _is_name(pa, schema.field(name).type):
            refuse(name, "text or whole numbers")
    for name in columns.values:
        kind = schema.field(name).type
        if columns.kind == "features" and not columns.is_list and not _is_number(pa, kind):
            refuse(name, "numbers or lists of numbers")
        if columns.kind != "features" and not _is_name(pa, kind):
            refuse(name, "text")


def _rows(pa: Any, path: Path, file: Any, columns: Columns) -> Rows:
    about = (columns.label, columns.split, columns.domain)
    names = [*columns.values, *(name for name in about if name is not None)]
    kept: dict[str, list[str]] = {name: [] for name in names}
    target: np.ndarray[Any, np.dtype[np.float32]] | None = None
    start = 0
    for batch in file.iter_batches(columns=names):
        for name in about:
            if name is not None:
                kept[name] += _names(batch.column(name))
        if columns.kind == "features":
            block = (
                _vectors(pa, path, batch.column(columns.values[0]), target, start)
                if columns.is_list
                else _matrix(path, batch, columns, start)
            )
            if target is None:
                target = empty_features(path, file.metadata.num_rows, block.shape[1])
            if start + len(block) > len(target):
                raise DatasetError(f"{path} holds more than the {len(target)} rows it declares")
            wrong = fill_features(target, block, start)
            if wrong is not None:
                raise not_finite(path, f"row {wrong + 1}")
        else:
            kept[columns.values[0]] += _names(batch.column(columns.values[0]))
        start += batch.num_rows
    if target is not None and start < len(target):
        raise DatasetError(f"{path} holds {start} rows but declares {len(target)}")
    items = np.empty((0, 0), np.float32) if target is None else target
    return Rows(
        columns.kind,
        items if columns.kind == "features" else kept[columns.values[0]],
        kept[columns.label] if columns.label is not None else None,
        lambda row: f"row {row + 1}",
        kept[columns.split] if columns.split is not None else None,
        kept[columns.domain] if columns.domain is not None else None,
        notes=columns.notes(),
    )


def _names(column: Any) -> list[str]:
    """Return a column as strings; a missing value is an empty one."""
    return ["" if value is None else str(value) for value in column.to_pylist()]


def _matrix(path: Path, batch: Any, columns: Columns, start: int) -> np.ndarray[Any, Any]:
    for name in columns.values:
        _refuse_missing(path, batch.column(name), name, start)
    return np.stack(
        [batch.column(name).to_numpy(zero_copy_only=False) for name in columns.values], axis=1
    )


def _vectors(
    pa: Any, path: Path, column: Any, target: np.ndarray[Any, Any] | None, start: int
) -> np.ndarray[Any, Any]:
    """Return a column of lists as a matrix, if they are all of one length."""
    _refuse_missing(path, column, "the list", start)
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(column.offsets.to_numpy())
    values = column.flatten()
    width = int(lengths[0]) if target is None else target.shape[1]
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        raise DatasetError(
            f"{path}, row {start + int(wrong[0]) + 1}: {lengths[wrong[0]]} features where the "
            f"first row has {width}. Remedy: make all rows as long"
        )
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // width
        raise not_finite(path, f"row {start + row + 1}")
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(column), width)


def _refuse_missing(path: Path, column: Any, name: str, start: int) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DatasetError(
            f"{path}, row {start + row + 1}: no value in {name!r}. "
            "Remedy: correct or leave out this row"
        )
