"""A batch with mixed labels, taken apart into one summary a class."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from array_api_compat import device

from fecam.core.arrays import Array, namespace
from fecam.core.statistics import ClassStatistics, Form, summarize
from fecam.core.transforms import Transform


def summarize_by_label(
    X: Array, labels: np.ndarray[Any, Any], transform: Transform, form: Form, dtype: object
) -> dict[Hashable, ClassStatistics]:
    """The statistics of each label in a batch."""
    xp = namespace(X)
    known, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(known) > 1:
        # Sort once, then every class is a slice: cheaper than a mask a class.
        order = np.argsort(codes, kind="stable")
        X = xp.take(X, xp.asarray(order, device=device(X)), axis=0)
    features = transform(X)
    ends = np.cumsum(counts).tolist()
    starts = [0, *ends[:-1]]
    lesson: dict[Hashable, ClassStatistics] = {}
    for label, start, end in zip(known.tolist(), starts, ends, strict=True):
        raw = X[start:end, :]
        changed = raw if features is X else features[start:end, :]
        lesson[label] = summarize(raw, changed, form, dtype)
    return lesson
