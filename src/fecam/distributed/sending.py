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
    return the_ray().data.read_parquet(list(paths))


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
