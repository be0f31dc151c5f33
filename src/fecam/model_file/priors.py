"""The prior of a model in its file: one matrix, so that opening does not read all others."""

import math
import sqlite3
import struct
from typing import Any

import numpy as np

from fecam.core.arrays import to_numpy
from fecam.core.prior import Prior, derive_prior
from fecam.core.scatter import Scatter, to_dense
from fecam.model_rows import MAX_COUNT, Layout, checksum, file_error, to_bytes


def insert_prior(db: sqlite3.Connection, prior_id: int, prior: Prior) -> None:
    """Write a prior, in float64."""
    covariance = np.asarray(to_numpy(prior.covariance), np.float64)
    if covariance.ndim == 2:
        covariance = covariance[np.triu_indices(len(covariance))]
    blob = to_bytes(covariance)
    signed = _checksum(prior.pseudo_count, prior.dof, blob)
    values = (prior_id, prior.pseudo_count, prior.dof, signed, blob)
    db.execute("INSERT INTO priors VALUES (?, ?, ?, ?, ?)", values)


def read_prior(db: sqlite3.Connection, prior_id: int, layout: Layout) -> Prior:
    """Return a prior, checked, with all values that are derived from it."""
    width = layout.n_features
    lengths = (8 * width, 4 * width * (width + 1))
    values: Any = db.execute(
        "SELECT strength, freedom, checksum, CASE WHEN typeof(covariance) = 'blob' "
        "AND length(covariance) IN (?, ?) THEN covariance END FROM priors WHERE id = ?",
        (*lengths, prior_id),
    ).fetchone()
    if values is None:
        raise file_error("its prior is missing.")
    pseudo_count, dof, signed, blob = values
    is_right = blob is not None and layout.scatter_kind != "none"
    is_right = is_right and isinstance(pseudo_count, float) and 0 <= pseudo_count < math.inf
    is_right = is_right and type(dof) is int and 0 <= dof <= MAX_COUNT
    if not is_right or signed != _checksum(pseudo_count, dof, blob):
        raise file_error("its prior is damaged: a wrong number, or the checksum does not match.")
    numbers = np.frombuffer(blob, "<f8").astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        raise file_error("its prior has a number that is not finite.")
    if len(blob) == lengths[1] and width > 1:
        numbers = to_dense(Scatter(numbers, "packed", width))
    elif layout.scatter_kind == "full" and width == 1:
        numbers = numbers.reshape(1, 1)
    return derive_prior(numbers, pseudo_count, dof, np.dtype(layout.dtype))


def _checksum(pseudo_count: float, dof: int, blob: bytes) -> bytes:
    return checksum(struct.pack("<dq", pseudo_count, dof), blob)
