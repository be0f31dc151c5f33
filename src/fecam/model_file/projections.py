"""The projection of a compressed model in its file."""

import json
import math
import sqlite3
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array
from fecam.model_rows import checksum, file_error, parse_json, to_bytes


def insert_projection(db: sqlite3.Connection, projection_id: int, matrix: Array) -> None:
    """Write a projection, in its dtype."""
    blob = to_bytes(matrix)
    values = (projection_id, matrix.shape[1], checksum(blob), blob)
    db.execute("INSERT INTO projections VALUES (?, ?, ?, ?)", values)


def read_projection(
    db: sqlite3.Connection, projection_id: int, n_features_in: int, dtype: str
) -> NDArray[Any]:
    """Return a projection, checked."""
    row_bytes = n_features_in * np.dtype(dtype).itemsize
    values: Any = db.execute(
        "SELECT components, checksum, CASE WHEN typeof(matrix) = 'blob' "
        "AND length(matrix) = components * ? THEN matrix END FROM projections WHERE id = ?",
        (row_bytes, projection_id),
    ).fetchone()
    if values is None:
        raise file_error("its projection is missing.")
    n_components, signed, blob = values
    is_right = type(n_components) is int and 1 <= n_components <= n_features_in and blob is not None
    if not is_right or signed != checksum(blob):
        raise file_error("its projection is damaged: a wrong size, or the checksum does not match.")
    matrix = np.frombuffer(blob, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    if not np.all(np.isfinite(matrix)):
        raise file_error("its projection has a number that is not finite.")
    return matrix.reshape(n_features_in, n_components)


def drop_projections(db: sqlite3.Connection) -> None:
    """Drop projections that neither the model nor a step that can be undone refers to."""
    query = "SELECT settings FROM steps WHERE settings IS NOT NULL AND undone IS NULL"
    (current,) = db.execute("SELECT value FROM settings WHERE name = 'projection_'").fetchone()
    used = [current]
    for (text,) in db.execute(query):
        settings = parse_json("history", text, max_length=math.inf)
        used.append(settings.get("projection_") if isinstance(settings, dict) else None)
    for (projection_id,) in db.execute("SELECT id FROM projections").fetchall():
        if json.dumps(projection_id) not in used:
            db.execute("DELETE FROM projections WHERE id = ?", (projection_id,))
