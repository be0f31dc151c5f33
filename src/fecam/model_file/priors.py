"""The prior of a model in its file: one matrix, so that opening need not read all others."""

from __future__ import annotations

import math
import sqlite3
import struct
from typing import Any

import numpy as np

from fecam.core.arrays import to_numpy
from fecam.core.prior import Prior, derive_prior
from fecam.core.scatter import Scatter, to_dense
from fecam.model_rows import MAX_COUNT, Layout, checksum, file_error


def insert_prior(db: sqlite3.Connection, number: int, prior: Prior) -> None:
    """Write a prior down; in double precision, for it is added to."""
    covariance = np.asarray(to_numpy(prior.covariance), np.float64)
    if covariance.ndim == 2:
        covariance = covariance[np.triu_indices(len(covariance))]
    blob = covariance.astype("<f8").tobytes()
    signed = _checksum(prior.pseudo_count, prior.dof, blob)
    values = (number, prior.pseudo_count, prior.dof, signed, blob)
    db.execute("INSERT INTO priors VALUES (?, ?, ?, ?, ?)", values)


def read_prior(db: sqlite3.Connection, number: int, layout: Layout) -> Prior:
    """The prior of that number, with all that is derived from it."""
    width = layout.width
    lengths = (8 * width, 4 * width * (width + 1))
    found: Any = db.execute(
        "SELECT strength, freedom, checksum, CASE WHEN typeof(covariance) = 'blob' "
        "AND length(covariance) IN (?, ?) THEN covariance END FROM priors WHERE id = ?",
        (*lengths, number),
    ).fetchone()
    if found is None:
        raise file_error("its prior is missing.")
    strength, freedom, signed, blob = found
    is_right = (
        layout.form != "none"
        and isinstance(strength, float)
        and 0 <= strength < math.inf
        and type(freedom) is int
        and 0 <= freedom <= MAX_COUNT
        and blob is not None
    )
    if not is_right or signed != _checksum(strength, freedom, blob):
        raise file_error(
            "its prior is damaged: a number cannot be, or the checksum does not match."
        )
    numbers = np.frombuffer(blob, "<f8").astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        raise file_error("its prior has a number that is not finite.")
    if len(blob) == lengths[1] and width > 1:
        numbers = to_dense(Scatter(numbers, "packed", width))
    elif layout.form == "full" and width == 1:
        numbers = numbers.reshape(1, 1)
    return derive_prior(numbers, strength, freedom, np.dtype(layout.dtype))


def _checksum(strength: float, freedom: int, blob: bytes) -> bytes:
    return checksum(struct.pack("<dq", strength, freedom), blob)
