"""What the heads that build on FeCAM's statistics share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.cache import FactorCache
from fecam.core.factors import Factor, whiten
from fecam.core.knowledge import Knowledge
from fecam.core.metric import Metric, centre_of, class_covariance, mean_variance, scale_of
from fecam.core.prior import make_prior
from fecam.core.transforms import unit_length
from fecam.heads.head import Floats, Labels
from fecam.inputs import check_range
from fecam.settings import read_metric


def metric_of(settings: Mapping[str, Any]) -> Metric:
    """The metric of a `FeCAMClassifier` with these settings; `SettingsError` if it cannot be."""
    return read_metric(FeCAMClassifier(**settings).get_params())


def learn(before: Knowledge | None, X: Floats, y: Labels, settings: Mapping[str, Any]) -> Knowledge:
    """What a `FeCAMClassifier` with these settings would know after one more task."""
    if before is None:
        return FeCAMClassifier(**settings).fit(X, y).knowledge_
    settings = {**settings, "tukey": before.transform.power}  # "auto" decides once
    return before.merge(FeCAMClassifier(**settings).fit(X, y).knowledge_)


def labels_of(known: Knowledge) -> Labels:
    """The labels, sorted."""
    return np.asarray(list(known.classes))


def queries_of(X: Floats, known: Knowledge, metric: Metric) -> Floats:
    """Samples as factors take them."""
    check_range(X, known.transform, known.anchor.dtype)
    queries: Floats = known.transform(np.asarray(X, known.anchor.dtype))
    return unit_length(queries) if metric.unit_compare else queries


def factors_of(known: Knowledge, metric: Metric) -> list[Factor]:
    """One factor a class, each a whitening and nothing else, so that its centre can be moved."""
    statistics = list(known.classes.values())
    if metric.is_shared:
        whitening = FactorCache().factors(known, metric)[0].whitening  # type: ignore[union-attr]
        whitenings = [whitening] * len(statistics)
    else:
        prior = make_prior(statistics, metric.pooling) if metric.has_prior else None
        spare = mean_variance(statistics)
        dtype = known.anchor.dtype
        precision = float(np.finfo(dtype).eps)
        whitenings = [
            whiten(class_covariance(one, metric, prior, spare), precision).astype(dtype)
            for one in statistics
        ]
    return [
        Factor(centre_of(one, metric, known.transform), whitening, scale_of(one, metric))
        for one, whitening in zip(statistics, whitenings, strict=True)
    ]
