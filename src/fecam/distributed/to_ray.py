"""Data sets of Ray from Parquet files, or from items of this process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fecam.distributed.cluster import require_ray
from fecam.errors import InputError
from fecam.labels import LabelKind

BLOCK_ROWS = 4096


def read_parquet(paths: Sequence[str]) -> Any:
    """Return the data set of Parquet files, folders of them, or addresses of either."""
    return require_ray().data.read_parquet([_absolute(path) for path in paths])


def _absolute(path: str) -> str:
    """Return a path that is valid in another process."""
    if "://" in path:
        return path
    if not (local := Path(path).expanduser()).exists():
        raise InputError(f"{path} does not exist. Remedy: give the path of a file or folder")
    return str(local.resolve())


def count_parquet(paths: Sequence[str]) -> int | None:
    """Return the number of rows in Parquet files; None if their metadata cannot be read."""
    import pyarrow as pa
    from pyarrow import dataset

    try:
        tables = [dataset.dataset(_absolute(path), format="parquet") for path in paths]
        return sum(int(table.count_rows()) for table in tables)
    except (OSError, pa.ArrowException):  # reading them gives a better message
        return None


def with_labels(dataset: Any, label: str, kind: LabelKind | None) -> Any:
    """Return the data set with labels cast to the kind of the model's; booleans stay as they are.

    Without the column, or for a new model (None), the data set is returned as it is.
    """
    if kind in ("booleans", None):
        return dataset

    def cast(table: Any) -> Any:
        import pyarrow as pa

        if label not in table.column_names:
            return table
        index, column = table.column_names.index(label), table.column(label)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            if not pa.types.is_boolean(column.type):  # a label, True is not 1
                column = column.cast(pa.int64() if kind == "integers" else pa.string())
        except pa.ArrowException:
            return table  # reading the labels raises an error that names them
        return table.set_column(index, label, column)

    return dataset.map_batches(cast, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)


def as_dataset(items: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return the data set with a column ``item`` (of files, their paths) and further columns."""
    import pyarrow as pa

    if not items:
        raise InputError("there is no item. Give paths that hold some.")
    tables = []
    for start in range(0, len(items), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        others = {name: pa.array(list(values[rows])) for name, values in columns.items()}
        tables.append(pa.table({"item": _column(items[rows]), **others}))
    return require_ray().data.from_arrow(tables)


def _column(items: Sequence[Any]) -> Any:
    import pyarrow as pa

    if isinstance(items[0], Path):
        return pa.array([str(path.resolve()) for path in items])
    if isinstance(items[0], np.ndarray):
        if items[0].ndim != 1:
            raise InputError(
                "images that are arrays cannot be sent to a cluster. Use image files, or a Parquet "
                "table with their bytes."
            )
        rows = np.stack(items)
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.array(list(items))
