"""Rows of ``.parquet`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.table_columns import Columns, Options, Rows, as_features, choose, row_name
from fecam.errors import DatasetError, MissingPackageError
from fecam.labels import LabelKind


def read_parquet(path: Path, given: Options) -> Rows:
    """Read the columns that are needed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPackageError(f"reading {path}", "pyarrow", "parquet") from None
    try:
        schema = pq.read_schema(path)
        columns = choose(
            path,
            schema.names,
            given,
            lists={field.name for field in schema if _is_list(pa, field.type)},
            numbers={field.name for field in schema if _is_number(pa, field.type)},
        )
        _check_types(pa, path, schema, columns)
        about = [name for name in (columns.label, columns.split, columns.domain) if name]
        table = pq.read_table(path, columns=[*columns.values, *about])
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path} cannot be read as parquet: {error}. Remedy: write the file again"
        ) from error
    # A missing value is an empty text.
    texts = {
        name: ["" if value is None else str(value) for value in table.column(name).to_pylist()]
        for name in (about if columns.kind == "features" else table.column_names)
    }
    features = _features(pa, path, table, columns) if columns.kind == "features" else None
    return columns.rows(features, texts, row_name, _label_kind(pa, schema, columns))


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


def _label_kind(pa: Any, schema: Any, columns: Columns) -> LabelKind:
    kind = schema.field(columns.label).type if columns.label else pa.string()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(kind):
        return "booleans"
    return "integers" if pa.types.is_integer(kind) else "strings"


def _check_types(pa: Any, path: Path, schema: Any, columns: Columns) -> None:
    def check(name: str, is_valid: bool, wanted: str) -> None:
        if not is_valid:
            raise DatasetError(
                f"{path}: the column {name!r} is of type {schema.field(name).type}, not {wanted}. "
                "Remedy: convert it, or name another column"
            )

    for name in (columns.label, columns.split, columns.domain):
        if name is not None:
            check(name, _is_name(pa, schema.field(name).type), "text, integers or booleans")
    for name in columns.values:
        kind = schema.field(name).type
        if columns.kind != "features":
            check(name, _is_name(pa, kind), "text")
        elif not columns.is_list:
            check(name, _is_number(pa, kind), "numbers or lists of numbers")


def _features(pa: Any, path: Path, table: Any, columns: Columns) -> NDArray[np.float32]:
    arrays = [table.column(name).combine_chunks() for name in columns.values]
    for name, array in zip(columns.values, arrays, strict=True):
        if array.null_count:
            row = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
            raise DatasetError(
                f"{path}, {row_name(row)}: no value in {name!r}. Remedy: correct or remove this row"
            )
    if not columns.is_list:
        numbers = [array.to_numpy(zero_copy_only=False) for array in arrays]
        return as_features(path, [np.stack(numbers, axis=1)], row_name)
    if pa.types.is_fixed_size_list(arrays[0].type):
        lengths = np.full(len(arrays[0]), arrays[0].type.list_size)
    else:
        lengths = np.diff(arrays[0].offsets.to_numpy())
    width = int(lengths[0]) if len(lengths) else 0
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        raise DatasetError(
            f"{path}, {row_name(wrong[0])}: {lengths[wrong[0]]} features where the first row has "
            f"{width}. Remedy: make all rows as long"
        )
    # A missing number becomes NaN, which is rejected.
    values = arrays[0].flatten().to_numpy(zero_copy_only=False)
    return as_features(path, [values.reshape(len(arrays[0]), width)], row_name)
