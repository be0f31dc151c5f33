"""Items and labels in the columns of a block, which is an Arrow table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.table_parquet import is_list, is_number, is_text
from fecam.errors import InputError

USUAL_ITEMS = ("bytes", "image", "text", "embedding", "features", "item", "path")
"""Default names of the column of items; the first that exists is used."""


def item_columns(table: Any, label: str | None, item: str | Sequence[str] | None) -> list[str]:
    """Return the columns of an item: one, or all that hold numbers."""
    names = [name for name in table.column_names if name != label]
    if item is not None:
        chosen = [item] if isinstance(item, str) else list(item)
        for name in chosen:
            _check_exists(table, name, "item")
        return chosen
    usual = [name for name in USUAL_ITEMS if name in names]
    if usual:
        return usual[:1]
    if len(names) == 1:
        return names
    numbers = [name for name in names if is_number(table.schema.field(name).type)]
    if not numbers:
        raise InputError(
            f"none of the columns {names} has one of the names {', '.join(USUAL_ITEMS)}. Name the "
            "one that holds the items: item='...'"
        )
    return numbers


def labels_of(table: Any, label: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the labels of a block in their type, and a mask of the rows with one."""
    import pyarrow as pa

    _check_exists(table, label, "label")
    column = table.column(label)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = column.drop_null().to_numpy(zero_copy_only=False)
        return np.asarray(values, bool if pa.types.is_boolean(kind) else np.int64), valid
    if is_text(kind):
        return np.asarray(column.drop_null().to_pylist(), dtype=str), valid
    raise InputError(
        f"the column {label!r} holds {kind}. Labels are booleans, integers or strings."
    )


def items_of(table: Any, columns: Sequence[str]) -> Any:
    """Return the items: a matrix of numbers, or a list of texts, paths, bytes or arrays."""
    import pyarrow as pa

    if len(columns) > 1 or is_number(table.schema.field(columns[0]).type):
        parts = [table.column(name).to_numpy(zero_copy_only=False) for name in columns]
        return np.stack(parts, axis=1)
    column = table.column(columns[0])
    kind = column.type
    if is_list(kind):
        # Arrays of arrays are most likely images.
        nested = pa.types.is_nested(kind.value_type)
        return column.to_pylist() if nested else _matrix(column, columns[0])
    if isinstance(kind, pa.BaseExtensionType):
        return _concatenate(column)
    return column.to_pylist()


def _matrix(column: Any, name: str) -> Any:
    """Return a column of lists as a matrix, without a copy if it has one chunk."""
    import pyarrow.compute as pc

    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if None in lengths:
        raise InputError(f"the column {name!r} has rows without a list. Remove them.")
    if len(lengths) > 1:
        raise InputError(
            f"the column {name!r} holds lists of {min(lengths)} and of {max(lengths)} numbers. "
            "Give all the same length."
        )
    return _concatenate(pc.list_flatten(column)).reshape(len(column), lengths[0])


def _concatenate(column: Any) -> Any:
    arrays = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks if len(chunk)]
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _check_exists(table: Any, name: str, option: str) -> None:
    if name not in table.column_names:
        raise InputError(
            f"there is no column {name!r}, only {', '.join(table.column_names)}. Name the right "
            f"one: {option}='...'"
        )
