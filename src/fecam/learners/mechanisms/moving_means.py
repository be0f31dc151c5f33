"""Moves the class means in the statistics of a head, by an estimate of how features moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.heads.head import Floats
from fecam.heads.moments import ClassMeans
from fecam.heads.ncm import NearestMean
from fecam.heads.slda import StreamingLDA
from fecam.heads.teen import Teen

Transform = Callable[[Any], Any]
Drift = Callable[[Floats, Transform], Floats]
"""Means (classes, d) of transformed features, and the transform, to the drift of each mean."""


def move_means(head: Any, drift: Drift) -> None:
    """Move the means that a head stores: fecam, calibrated-fecam, ncm, slda and teen.

    Means of transformed features move by the drift of transformed features. Covariances stay as
    they are. Other heads, which store weights or sums of products, do not change.
    """
    state = head.state_
    if isinstance(state, ClassifierState):
        moved: Any = _moved_state(state, drift)
    elif isinstance(head, NearestMean):
        moved = _moved_means(state, drift)
    elif isinstance(head, (StreamingLDA, Teen)):
        moved = replace(state, classes=_moved_means(state.classes, drift))
    else:
        return
    if isinstance(head, FeCAMClassifier):
        head.set_state(moved)
    else:
        head._set_state(moved)


def _moved_means(classes: ClassMeans, drift: Drift) -> ClassMeans:
    return replace(classes, means=classes.means + drift(classes.means, _same))


def _moved_state(state: ClassifierState, drift: Drift) -> ClassifierState:
    values = list(state.classes.values())
    means = np.stack([np.asarray(stats.mean, np.float64) for stats in values])
    raw_means = np.stack([np.asarray(stats.raw_mean, np.float64) for stats in values])
    means = means + drift(means, state.transform)
    raw_means = raw_means + drift(raw_means, _same)
    dtype = state.like.dtype
    classes = {
        label: replace(stats, mean=mean, raw_mean=raw_mean.astype(dtype))
        for (label, stats), mean, raw_mean in zip(
            state.classes.items(), means, raw_means, strict=True
        )
    }
    return replace(state, classes=classes)


def _same(features: Any) -> Any:
    return features
