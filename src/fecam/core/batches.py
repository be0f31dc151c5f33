"""Grouping of a batch by label."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from fecam.core.arrays import Array, namespace
from fecam.core.statistics import ClassStatistics, ScatterKind, summarize_class
from fecam.core.threads import in_parallel
from fecam.core.transforms import Transform


class ClassRows(NamedTuple):
    """The samples of one class in a batch, before and after the transform."""

    raw: Array
    features: Array


def group_by_label(
    X: Array, labels: np.ndarray[Any, Any], transform: Transform
) -> dict[Hashable, ClassRows]:
    """Return the rows of each label in a batch."""
    xp = namespace(X)
    unique_labels, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(unique_labels) > 1:
        # After one sort every class is a slice, which is faster than a mask per class.
        order = np.argsort(codes, kind="stable")
        X = xp.take(X, xp.asarray(order, device=device(X)), axis=0)
    features = transform(X)
    ends = np.cumsum(counts).tolist()
    starts = [0, *ends[:-1]]
    batch: dict[Hashable, ClassRows] = {}
    for label, start, end in zip(unique_labels.tolist(), starts, ends, strict=True):
        raw = X[start:end, :]
        batch[label] = ClassRows(raw, raw if features is X else features[start:end, :])
    return batch


def summarize_batch(
    batch: Mapping[Hashable, ClassRows], scatter_kind: ScatterKind, dtype: object
) -> dict[Hashable, ClassStatistics]:
    """Return the statistics of each label in a batch."""

    def summarize(rows: ClassRows) -> ClassStatistics:
        return summarize_class(rows.raw, rows.features, scatter_kind, dtype)

    return dict(zip(batch, in_parallel(summarize, batch.values()), strict=True))
