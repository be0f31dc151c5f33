"""Scores of left-out rows: what a model measures for learned rows as if it had not seen them.

While a batch is learned, some of its rows are measured under the model just updated, each as if it
had not been learned (`fecam.core.leave_one_out`). Their novelty scores and losses are stored with
their class (`fecam.core.calibration_rows`). Novelty and probabilities are fitted to them. The same
scores of queries are compared with these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array, namespace, to_float64, to_numpy
from fecam.core.calibration_rows import N_SCORES, Floats, last_model, pack_rows
from fecam.core.distances import Neighbors
from fecam.core.expected import CalibratedPredictor
from fecam.core.expected_distance import strided_subset
from fecam.core.leave_one_out import left_out_distances
from fecam.core.novelty import MIN_CLASSES, distance_scores
from fecam.core.prior import CHEAP
from fecam.core.statistics import MAX_CALIBRATION_ROWS, CalibrationRows
from fecam.core.temperature import left_out_losses
from fecam.core.transforms import unit_length

MEASURED_CLASSES = 16
"""Maximum number of classes of a batch whose rows are measured."""
MEASURED_ROWS = 128
"""Number of rows of a batch that are measured, the same number of each class."""
CHEAP_FLOPS = 1e8
"""Multiplications that take a few milliseconds: more rows are measured up to this number."""
MAX_RIVALS = 16
"""Number of nearest classes that such rows are compared with."""
FEW_RIVALS = 4
"""The same where most precisions are not needed: a few new classes among many."""
MEASUREMENT_GROWTH = 1.1
"""Growth, in degrees of freedom or classes, after which rows are measured again."""
COSTLY_GROWTH = 1.25
"""The same where precisions would be derived for it: large matrices, few new classes among many."""


def novelty_scores(predictor: CalibratedPredictor, queries: Array, nearest: Neighbors) -> Floats:
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
    predictor: CalibratedPredictor, batch: Mapping[Hashable, Array]
) -> dict[Hashable, CalibrationRows]:
    """Return measurements of some rows of a batch that was learned, by class.

    Empty if the model has hardly grown since the last ones. Each row is compared with the classes
    nearest to it; where few precisions are to be derived, with those nearest to its class.
    """
    state, labels, metric = predictor.state, predictor.labels, predictor.metric
    prior, dof = predictor.class_prior, predictor.dof
    has_prior = prior is not None and prior.pseudo_count > 0
    min_count = 2 if has_prior or metric.is_shared else 3
    usable = [label for label in batch if state.classes[label].count >= min_count]
    if len(labels) < 2 or not usable or not _has_grown(predictor, MEASUREMENT_GROWTH):
        return {}
    usable = usable[:: -(-len(usable) // MEASURED_CLASSES)]
    is_costly = not _is_cheap(predictor) and not _has_grown(predictor, COSTLY_GROWTH)
    if is_costly and 2 * (MAX_RIVALS + 1) * len(usable) <= len(labels):
        return {}  # before the rivals are looked for
    rows = {label: _evenly_spaced(batch[label], len(usable)) for label in usable}
    own = {label: labels.index(label) for label in usable}
    rivals = {label: _rivals(predictor, index) for label, index in own.items()}
    needed = _union(own, rivals)
    lengths = [rows[label].shape[0] for label in usable]
    stacked = namespace(state.like).concat(list(rows.values()), axis=0)
    if 2 * len(needed) > len(labels):
        _ = predictor.precisions  # in the basis that predictions need, with several threads
        needed = list(range(len(labels)))
        compared = _nearest_classes(predictor, stacked, np.repeat(list(own.values()), lengths))
    elif is_costly:
        return {}
    else:
        rivals = {label: indices[:FEW_RIVALS] for label, indices in rivals.items()}
        needed = _union(own, rivals)
        compared = np.stack([np.isin(needed, [own[label], *rivals[label]]) for label in usable])
        compared = np.repeat(compared, lengths, axis=0)
    columns = np.repeat([needed.index(own[label]) for label in usable], lengths)
    distances = left_out_distances(
        stacked,
        columns,
        [state.classes[labels[i]] for i in needed],
        [predictor.precision_of(i) for i in needed],
        metric,
        prior,
        dof,
        compared,
    )
    nearest = np.asarray(needed)[np.argmin(distances, axis=1)]
    reference = strided_subset(sorted({*own.values(), *predictor.measured_before()}))
    expected = predictor.expected_among(sorted({*nearest.tolist(), *reference}), reference)
    mean_expected = float(np.mean([expected[i] for i in reference]))
    losses = left_out_losses(distances, columns, mean_expected)
    scores = np.zeros((len(losses), N_SCORES))
    if len(labels) >= MIN_CLASSES:
        expected_nearest = np.asarray([expected[i] for i in nearest])
        scores[:, :2] = distance_scores(distances.min(axis=1), expected_nearest, mean_expected)
        contrasts = [_left_out_contrasts(predictor, rows[k], own[k]) for k in usable]
        scores[:, 2:] = np.concatenate(contrasts)
    ends = np.cumsum(lengths)[:-1]
    return {
        label: pack_rows(dof, len(labels), own_scores, own_losses)
        for label, own_scores, own_losses in zip(
            usable, np.split(scores, ends), np.split(losses, ends), strict=True
        )
    }


def measured_queries(
    predictor: CalibratedPredictor, queries: Array, owners: Sequence[Hashable]
) -> dict[Hashable, CalibrationRows]:
    """Return measurements of transformed samples that the model has not learned, by class.

    ``owners`` are their classes. Empty for a single class.
    """
    labels = predictor.labels
    if len(labels) < 2 or not len(owners):
        return {}
    distances = to_numpy(predictor.exhaustive(queries)).astype(np.float64)
    own = np.asarray([labels.index(owner) for owner in owners])
    losses = left_out_losses(distances, own, predictor.mean_expected)
    scores = np.zeros((len(losses), N_SCORES))
    if len(labels) >= MIN_CLASSES:
        indices = np.argmin(distances, axis=1)[:, None]
        nearest = np.take_along_axis(distances, indices, axis=1)
        scores = novelty_scores(predictor, queries, Neighbors(indices, nearest, None))
    return {
        labels[i]: pack_rows(predictor.dof, len(labels), scores[rows], losses[rows])
        for i in np.unique(own)
        for rows in [np.flatnonzero(own == i)[:MAX_CALIBRATION_ROWS]]
    }


def _union(own: Mapping[Hashable, int], rivals: Mapping[Hashable, list[int]]) -> list[int]:
    """Return the classes whose precisions are needed."""
    return sorted({*own.values(), *(i for indices in rivals.values() for i in indices)})


def _is_cheap(predictor: CalibratedPredictor) -> bool:
    """Return whether the precisions of a class and its rivals are derived in no time."""
    return (MAX_RIVALS + 1) * predictor.state.n_features**3 < CHEAP


def _has_grown(predictor: CalibratedPredictor, growth: float) -> bool:
    """Return whether the model has grown by a factor since rows were last measured."""
    rows = [stats.calibration for stats in predictor.state.classes.values()]
    last_dof, last_n_classes = last_model(rows)
    return predictor.dof >= growth * last_dof or len(predictor.labels) >= growth * last_n_classes


def _evenly_spaced(features: Array, n_classes: int) -> Array:
    """Return the rows of a class to measure, if rows of ``n_classes`` classes are."""
    cheap = int(CHEAP_FLOPS / (3 * n_classes * MAX_RIVALS * features.shape[1] ** 2))
    limit = min(max(MEASURED_ROWS // n_classes, cheap), MAX_CALIBRATION_ROWS)
    number = min(limit, features.shape[0])
    step = features.shape[0] // number
    return features[: number * step : step, :]


def _rivals(predictor: CalibratedPredictor, index: int) -> list[int]:
    """Return the classes whose prototypes are nearest to that of a class in the pooled metric."""
    means = predictor.pooled_space.means
    squares = np.sum((means - means[index]) ** 2, axis=1)
    squares[index] = np.inf
    return [int(i) for i in np.argsort(squares, kind="stable")[:MAX_RIVALS] if i != index]


def _nearest_classes(
    predictor: CalibratedPredictor, rows: Array, own: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which classes are nearest to each row in the pooled metric, and which is its own."""
    squares = predictor.pooled_space.squares(_in_pooled_space(predictor, rows))
    squares[np.arange(len(squares)), own] = -1
    n_compared = min(MAX_RIVALS + 1, squares.shape[1])
    nearest = np.argpartition(squares, n_compared - 1, axis=1)[:, :n_compared]
    is_near = np.zeros(squares.shape, bool)
    np.put_along_axis(is_near, nearest, True, axis=1)
    return is_near


def _in_pooled_space(predictor: CalibratedPredictor, rows: Array) -> Floats:
    """Return transformed rows as queries in pooled coordinates."""
    queries = unit_length(rows) if predictor.metric.unit_compare else rows
    return predictor.in_pooled_space(queries)


def _left_out_contrasts(predictor: CalibratedPredictor, rows: Array, index: int) -> Floats:
    """Return the last two novelty scores of rows of a class, each as if it were not learned."""
    stats = predictor.state.classes[predictor.labels[index]]
    prior, dof = predictor.prior, predictor.dof
    contributions = None
    if prior is not None and prior.dof == dof and prior.covariance.ndim == 2:
        # Otherwise it lags behind and does not contain the rows, or is a diagonal.
        contributions = predictor.in_pooled_space(to_float64(rows) - stats.mean)
    return predictor.pooled_space.left_out_scores(
        _in_pooled_space(predictor, rows), contributions, index, stats.count, dof
    )
