"""Learning a batch: the state after it, with its measured rows, and what predictions need."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress

from fecam.core.arrays import Array
from fecam.core.expected import CalibratedPredictor
from fecam.core.left_out_scores import measured_rows
from fecam.core.lognormal import sample_distances
from fecam.core.metric import Metric
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.tuning import SearchTuning
from fecam.errors import FecamError


def learn_batch(
    before: ClassifierState,
    metric: Metric,
    statistics: Mapping[Hashable, ClassStatistics],
    rows: Mapping[Hashable, Array],
    *,
    previous: CalibratedPredictor | None,
    prior: Prior | None,
    tuning: SearchTuning,
) -> CalibratedPredictor:
    """Return a predictor of the state after a batch; ``rows`` are transformed samples of it.

    Precisions of unchanged classes are taken over from ``previous``, and ``prior`` may lag.
    """
    after = before.learn(statistics, average_domains=metric.average_domains)
    prior = CalibratedPredictor(after, metric, prior=prior).updated_prior(may_lag=True)
    dof = sum(stats.count - 1 for stats in after.classes.values())
    moments = {
        label: sample_distances(features, after.classes[label], metric, prior, dof)
        for label, features in rows.items()
    }
    after = after.with_measurements(moments, {})
    predictor = CalibratedPredictor(after, metric, previous=previous, prior=prior, tuning=tuning)
    measured = {}
    with suppress(FecamError):  # a singular or damaged matrix: predictions report it
        measured = measured_rows(predictor, rows)
    return predictor.with_state(after.with_measurements({}, measured))
