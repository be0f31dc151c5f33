"""Items that are here on their way to a cluster; those of files are read where they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fecam.distributed.cluster import the_ray
from fecam.errors import InputError

ROWS = 4096
"""Of a block."""


def read_parquet(paths: Sequence[str]) -> Any:
    """A data set of Ray of Parquet files, folders of them, or addresses of either."""
    return the_ray().data.read_parquet([_everywhere(path) for path in paths])


def _everywhere(path: str) -> str:
    """A path that means the same in another process."""
    if "://" in path:
        return path
    if not (place := Path(path).expanduser()).exists():
        raise InputError(f"{path} does not exist. Remedy: give the path of a file or folder")
    return str(place.resolve())


def count_parquet(paths: Sequence[str]) -> int | None:
    """How many rows Parquet files have, by their last few bytes; None if they cannot be had."""
    import pyarrow as pa
    from pyarrow import dataset

    try:
        tables = [dataset.dataset(_everywhere(path), format="parquet") for path in paths]
        return sum(int(one.count_rows()) for one in tables)
    except (OSError, pa.ArrowException):  # whoever reads them says better what is wrong
        return None


def with_labels(dataset: Any, label: str, numbers: bool) -> Any:
    """The same data set with labels of that kind; where there is no such column, as it is."""

    def cast(table: Any) -> Any:
        import pyarrow as pa

        if label not in table.column_names:
            return table
        at, column = table.column_names.index(label), table.column(label)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            column = column.cast(pa.int64() if numbers else pa.string())
        except pa.ArrowException:
            return table  # what cannot be a label is named by whoever reads it
        return table.set_column(at, label, column)

    return dataset.map_batches(cast, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)


def labels_as(names: Sequence[str], numbers: bool) -> list[Any]:
    """The names of classes as the labels of a model that has whole numbers, or texts."""
    try:
        return [int(one) for one in names] if numbers else list(names)
    except ValueError as error:
        raise InputError(
            f"the classes of the model are whole numbers, but {error}. Name the classes by "
            "numbers, too, or use another model"
        ) from None


def as_dataset(items: Sequence[Any], more: Mapping[str, Sequence[Any]]) -> Any:
    """A data set of Ray with a column ``item``, and others that go with it.

    Paths are sent as paths, so every machine must be able to read them.
    """
    import pyarrow as pa

    if not items:
        raise InputError("there is nothing to work on. Give paths that hold something.")
    tables = []
    for at in range(0, len(items), ROWS):
        some = slice(at, at + ROWS)
        beside = {name: pa.array(list(values[some])) for name, values in more.items()}
        tables.append(pa.table({"item": _column(items[some]), **beside}))
    return the_ray().data.from_arrow(tables)


def _column(items: Sequence[Any]) -> Any:
    import pyarrow as pa

    if isinstance(items[0], Path):
        return pa.array([str(one.resolve()) for one in items])
    if isinstance(items[0], np.ndarray):
        if items[0].ndim != 1:
            raise InputError(
                "pictures that are arrays cannot be sent from here. Use files of images, or a "
                "Parquet table with their bytes."
            )
        rows = np.stack(items)
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.array(list(items))
