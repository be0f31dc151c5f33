"""Rows of ``.parquet`` files and of other tables of Arrow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.table_columns import Columns, Options, Rows, as_features, choose, row_name
from fecam.errors import DatasetError, needs_extra
from fecam.labels import LabelKind


def read_parquet(path: Path, given: Options) -> Rows:
    """Read the columns that are needed."""
    with needs_extra(f"reading {path}", "parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        schema = pq.read_schema(path)
        return rows_of_arrow(path, schema, given, lambda names: pq.read_table(path, columns=names))
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{path} cannot be read as parquet: {error}. Remedy: write the file again"
        ) from error


def rows_of_arrow(
    path: Path | str, schema: Any, given: Options, read: Callable[[list[str]], Any]
) -> Rows:
    """Return the rows of a table of Arrow; ``read`` returns the columns of these names."""
    from pyarrow import types

    kinds = {
        name: kind.value_type if types.is_dictionary(kind) else kind
        for name, kind in zip(schema.names, schema.types, strict=True)
    }
    lists = [n for n, kind in kinds.items() if is_list(kind) and is_number(kind.value_type)]
    numbers = [name for name, kind in kinds.items() if is_number(kind)]
    columns = choose(path, schema.names, given, lists=lists, numbers=numbers)
    _check_types(path, kinds, columns)
    table = read([*columns.values, *columns.about])
    is_vector = columns.kind == "features"
    # A missing value is an empty text.
    texts = {
        name: ["" if value is None else str(value) for value in table.column(name).to_pylist()]
        for name in (columns.about if is_vector else table.column_names)
    }
    features = _features(path, table, columns) if is_vector else None
    return columns.rows(features, texts, row_name, _label_kind(kinds, columns))


def is_list(kind: Any) -> bool:
    """Return whether a type of Arrow is a list."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Return whether a type of Arrow is a number or a bool."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Return whether a type of Arrow is a string."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _label_kind(kinds: dict[str, Any], columns: Columns) -> LabelKind:
    """Return the kind of the labels by the type of their column."""
    from pyarrow import types

    kind = kinds.get(columns.label or "")
    if kind is None or is_text(kind):
        return "strings"
    return "booleans" if types.is_boolean(kind) else "integers"


def _check_types(path: Path | str, kinds: dict[str, Any], columns: Columns) -> None:
    from pyarrow import types

    def is_name(kind: Any) -> bool:
        return bool(is_text(kind) or types.is_integer(kind) or types.is_boolean(kind))

    checks = [(name, is_name, "text, integers or booleans") for name in columns.about]
    if columns.kind != "features":
        checks.append((columns.values[0], is_name, "text"))
    elif not columns.is_list:
        checks += [(name, is_number, "numbers or lists of numbers") for name in columns.values]
    for name, is_valid, wanted in checks:
        if not is_valid(kinds[name]):
            raise DatasetError(
                f"{path}: the column {name!r} is of type {kinds[name]}, not {wanted}. Remedy: "
                "convert it, or name another column"
            )


def _features(path: Path | str, table: Any, columns: Columns) -> NDArray[np.float32]:
    import pyarrow.compute as pc

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
    lengths = pc.list_value_length(arrays[0]).to_numpy(zero_copy_only=False)
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
