"""Measurements of samples: novelty scores of queries, and of learned rows that were left out.

While a batch is learned, some of its rows are measured under the model just updated, each as if it
had not been learned (`fecam.core.leave_one_out`). Their losses and scores are stored with their
class (`fecam.core.calibration_rows`). This is what probabilities and novelty are fitted to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from fecam.core.arrays import Array, to_float64, to_numpy
from fecam.core.calibration import strided_subset
from fecam.core.calibration_rows import (
    N_SCORES,
    Floats,
    last_model,
    left_out_losses,
    pack_rows,
)
from fecam.core.distances import Neighbors
from fecam.core.leave_one_out import left_out_distances
from fecam.core.novelty import MIN_CLASSES, distance_scores
from fecam.core.predictor import Predictor
from fecam.core.statistics import MAX_CALIBRATION_ROWS, CalibrationRows
from fecam.core.transforms import unit_length

MEASURED_CLASSES = 16
"""Maximum number of classes of a batch whose rows are measured."""
MIN_MEASURED_ROWS = 8
"""Minimum number of such rows per class, if they are expensive."""
MAX_RIVALS = 16
"""Number of nearest classes that such rows are compared with."""
CHEAP_FLOPS = 1e8
"""Multiplications that take a few milliseconds, a cheap measurement."""
MEASUREMENT_GROWTH = 1.2
"""Growth, in degrees of freedom or classes, after which rows are measured again."""


def novelty_scores(predictor: Predictor, queries: Array, nearest: Neighbors) -> Floats:
    """Return the four scores of `fecam.core.novelty` for queries with these nearest classes."""
    indices = to_numpy(nearest.indices)[:, 0]
    unique, inverse = np.unique(indices, return_inverse=True)
    expected = np.asarray(predictor.expected_distances(unique.tolist()))[inverse]
    distances = to_numpy(nearest.distances)[:, 0].astype(np.float64)
    own = distance_scores(distances, expected, predictor.mean_expected)
    space, step = predictor.pooled_space, predictor.tuning.block_rows
    n_queries = queries.shape[0]
    blocks = [
        space.scores(predictor.in_pooled_space(queries[i : min(i + step, n_queries), :]))
        for i in range(0, n_queries, step)
    ]
    return np.concatenate([own, np.concatenate(blocks)], axis=1)


def measured_rows(
    predictor: Predictor, batch: Mapping[Hashable, Array]
) -> dict[Hashable, CalibrationRows]:
    """Return measurements of some rows of a batch that was learned, by class.

    Empty if the model has hardly grown since the last ones. Rows are compared with the nearest
    classes only, so that few precisions are derived while learning.
    """
    state, labels, metric = predictor.state, predictor.labels, predictor.metric
    prior, dof = predictor.class_prior, predictor.dof
    pseudo_count = 0.0 if prior is None else prior.pseudo_count
    min_count = 2 if pseudo_count or metric.is_shared else 3
    usable = [label for label in batch if state.classes[label].count >= min_count]
    if len(labels) < 2 or not usable or not _has_grown(predictor):
        return {}
    usable = usable[:: -(-len(usable) // MEASURED_CLASSES)]
    own = {label: labels.index(label) for label in usable}
    compared = {index: _rivals(predictor, index) for index in own.values()}
    needed = {i for indices in compared.values() for i in indices}
    if 2 * len(needed) > len(labels):
        _ = predictor.precisions  # in the basis that predictions need, with several threads
    reference = strided_subset(sorted({*needed, *predictor.measured_before()}))
    expected = predictor.expected_among(sorted({*needed, *reference}), reference)
    mean_expected = float(np.mean([expected[i] for i in reference]))
    n_rows = _n_rows(predictor, len(usable))
    result = {}
    for label, index in own.items():
        features = batch[label]
        number = min(n_rows, features.shape[0])
        step = features.shape[0] // number
        rows = features[: number * step : step, :]
        indices = compared[index]
        distances = left_out_distances(
            rows,
            0,
            [state.classes[labels[i]] for i in indices],
            [predictor.precision_of(i) for i in indices],
            metric,
            prior,
            dof,
        )
        losses = left_out_losses(distances, 0, mean_expected)
        scores = np.zeros((number, N_SCORES))
        if len(labels) >= MIN_CLASSES:
            nearest = np.argmin(distances, axis=1)
            scores[:, :2] = distance_scores(
                np.take_along_axis(distances, nearest[:, None], axis=1)[:, 0],
                np.asarray([expected[i] for i in indices])[nearest],
                mean_expected,
            )
            scores[:, 2:] = _left_out_contrasts(predictor, rows, index)
        result[label] = pack_rows(dof, len(labels), scores, losses)
    return result


def _has_grown(predictor: Predictor) -> bool:
    """Return whether the model has grown since rows were last measured."""
    rows = [stats.calibration for stats in predictor.state.classes.values()]
    last_dof, last_n_classes = last_model(rows)
    return (
        predictor.dof > MEASUREMENT_GROWTH * last_dof
        or len(predictor.labels) > MEASUREMENT_GROWTH * last_n_classes
    )


def _rivals(predictor: Predictor, index: int) -> list[int]:
    """Return a class, and the classes whose prototypes are nearest in the pooled metric."""
    means = predictor.pooled_space.means
    squares = np.sum((means - means[index]) ** 2, axis=1)
    squares[index] = -1.0
    return [int(i) for i in np.argsort(squares, kind="stable")[: MAX_RIVALS + 1]]


def _n_rows(predictor: Predictor, n_measured: int) -> int:
    """Return the number of rows to measure of each of ``n_measured`` classes."""
    n_products = 3 * (min(MAX_RIVALS, len(predictor.labels) - 1) + 1)
    cheap = CHEAP_FLOPS / (n_measured * n_products * predictor.state.n_features**2)
    return max(MIN_MEASURED_ROWS, min(int(cheap), MAX_CALIBRATION_ROWS))


def _left_out_contrasts(predictor: Predictor, rows: Array, index: int) -> Floats:
    """Return the last two novelty scores of rows of a class, each as if it were not learned."""
    stats = predictor.state.classes[predictor.labels[index]]
    prior, dof = predictor.prior, predictor.dof
    contributions = None
    if prior is not None and prior.dof == dof and prior.covariance.ndim == 2:
        # Otherwise it lags behind and does not contain the rows, or is a diagonal.
        contributions = predictor.in_pooled_space(to_float64(rows) - stats.mean)
    queries = unit_length(rows) if predictor.metric.unit_compare else rows
    return predictor.pooled_space.left_out_scores(
        predictor.in_pooled_space(queries), contributions, index, stats.count, dof
    )
