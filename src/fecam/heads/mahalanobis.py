"""What the heads that build on FeCAM's statistics share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.cache import FactorCache
from fecam.core.factors import Factor, whiten
from fecam.core.metric import Metric, class_covariance, distance_scale, mean_variance, prototype_of
from fecam.core.prior import make_prior
from fecam.core.state import ClassifierState
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels
from fecam.inputs import check_range
from fecam.settings import read_metric


def metric_of(settings: Mapping[str, Any]) -> Metric:
    """The metric of a `FeCAMClassifier` with these settings; `SettingsError` if it cannot be."""
    return read_metric(FeCAMClassifier(**settings).get_params())


def learn(
    before: ClassifierState | None, X: Floats, y: Labels, settings: Mapping[str, Any]
) -> ClassifierState:
    """What a `FeCAMClassifier` with these settings would know after one more task."""
    if before is None:
        return FeCAMClassifier(**settings).fit(X, y).state_
    settings = {**settings, "tukey": before.transform.power}  # "auto" decides once
    return before.merge(FeCAMClassifier(**settings).fit(X, y).state_)


def labels_of(known: ClassifierState) -> Labels:
    """The labels, sorted."""
    return np.asarray(list(known.classes))


def queries_of(X: Floats, known: ClassifierState, metric: Metric) -> Floats:
    """Samples as factors take them."""
    check_range(X, known.transform, known.like.dtype)
    queries: Floats = known.transform(np.asarray(X, known.like.dtype))
    return unit_length(queries) if metric.unit_compare else queries


def factors_of(known: ClassifierState, metric: Metric) -> list[Factor]:
    """One factor a class, each a whitening and nothing else, so that its centre can be moved."""
    statistics = list(known.classes.values())
    if metric.is_shared:
        whitening = FactorCache().factors(known, metric)[0].whitening  # type: ignore[union-attr]
        whitenings = [whitening] * len(statistics)
    else:
        prior = make_prior(statistics, metric.pooling) if metric.has_prior else None
        spare = mean_variance(statistics)
        dtype = known.like.dtype
        precision = float(np.finfo(dtype).eps)
        whitenings = [
            whiten(class_covariance(one, metric, prior, spare), precision).astype(dtype)
            for one in statistics
        ]
    return [
        Factor(prototype_of(one, metric, known.transform), whitening, distance_scale(one, metric))
        for one, whitening in zip(statistics, whitenings, strict=True)
    ]
