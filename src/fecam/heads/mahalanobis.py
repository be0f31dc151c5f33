"""FeCAM's statistics and factors for the heads that extend FeCAM."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.covariance import whiten
from fecam.core.metric import Metric, class_covariance, distance_scale, mean_variance, prototype_of
from fecam.core.precision import DensePrecision
from fecam.core.predictor import Predictor
from fecam.core.prior import make_prior
from fecam.core.state import ClassifierState
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels
from fecam.inputs import check_range
from fecam.settings import read_metric


def metric_of(settings: Mapping[str, Any]) -> Metric:
    """Return the metric of a `FeCAMClassifier`; raise `SettingsError` for invalid settings."""
    return read_metric(FeCAMClassifier(**settings).get_params())


def summarize_task(
    X: Floats, y: Labels, settings: Mapping[str, Any], before: ClassifierState | None
) -> ClassifierState:
    """Return the state of a `FeCAMClassifier` fitted on one task, with the power of the first."""
    fixed = {} if before is None else {"tukey": before.transform.power}
    return FeCAMClassifier(**{**settings, **fixed}).fit(X, y).state_


def labels_of(state: ClassifierState) -> Labels:
    """Return the labels, sorted."""
    return np.asarray(list(state.classes))


def transform_queries(X: Floats, state: ClassifierState, metric: Metric) -> Floats:
    """Return samples transformed like the statistics."""
    check_range(X, state.transform, state.like.dtype)
    queries: Floats = state.transform(np.asarray(X, state.like.dtype))
    return unit_length(queries) if metric.unit_compare else queries


def dense_precisions(state: ClassifierState, metric: Metric) -> list[DensePrecision]:
    """Return one precision per class as a whitening matrix, so that its center can be replaced."""
    statistics = list(state.classes.values())
    if metric.is_shared:
        return [p for p in Predictor(state, metric).precisions if isinstance(p, DensePrecision)]
    prior = make_prior(statistics, metric.pooling) if metric.has_prior else None
    fallback_variance = mean_variance(statistics)
    dtype = state.like.dtype
    eps = float(np.finfo(dtype).eps)
    return [
        DensePrecision(
            prototype_of(stats, metric, state.transform),
            whiten(class_covariance(stats, metric, prior, fallback_variance), eps).astype(dtype),
            distance_scale(stats, metric),
        )
        for stats in statistics
    ]
