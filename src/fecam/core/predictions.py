"""Labels, probabilities and novelty of queries, which are transformed samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array, namespace, to_backend_of, to_numpy
from fecam.core.distances import Neighbors
from fecam.core.expected import CalibratedPredictor
from fecam.core.expected_distance import has_variance
from fecam.core.left_out_scores import novelty_scores
from fecam.core.lognormal import novelty_zscore, relative_variance
from fecam.core.novelty import MIN_CLASSES, fitted_scale
from fecam.core.softmax import log_softmax, softmax_logits, softmax_numerators
from fecam.core.temperature import fitted_sharpness, reference_sharpness, softmax_temperature


class Ranking(NamedTuple):
    """Queries with the most probable classes of each, as NumPy arrays (n, k)."""

    predictor: CalibratedPredictor
    queries: Array
    neighbors: Neighbors
    """The nearest classes, whatever the priors."""
    indices: np.ndarray[Any, Any]
    distances: np.ndarray[Any, Any]
    probabilities: np.ndarray[Any, Any]
    """NaN if they were not asked for."""

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """The labels of the classes."""
        labels: np.ndarray[Any, Any] = np.asarray(self.predictor.labels)[self.indices]
        return labels


class Predictions(NamedTuple):
    """Detailed predictions as NumPy arrays: (n, k), and (n,) for the novelty."""

    labels: np.ndarray[Any, Any]
    """The most probable classes first, which without ``priors`` are the nearest."""
    distances: np.ndarray[Any, Any]
    """Squared distances."""
    probabilities: np.ndarray[Any, Any]
    """Probabilities among all classes that are not negligible."""
    novelty: np.ndarray[Any, Any]
    """See `fecam.FeCAMClassifier.novelty`."""


def temperature_of(predictor: CalibratedPredictor) -> float:
    """Return what distances are divided by before the softmax."""
    classes = predictor.state.classes.values()
    reference = reference_sharpness(relative_variance(classes))
    sharpness = fitted_sharpness((stats.calibration for stats in classes), reference)
    return softmax_temperature(predictor.expected_distances(), sharpness)


def rank(
    predictor: CalibratedPredictor,
    queries: Array,
    k: int,
    log_priors: NDArray[np.float64] | None,
    search: str,
    *,
    probabilities: bool = False,
) -> Ranking:
    """Return the ``k`` most probable classes: the nearest ones, if all priors are equal (None)."""
    uses_softmax = probabilities or log_priors is not None
    temperature = temperature_of(predictor) if uses_softmax else 0.0
    n_nearest = k if log_priors is None else len(predictor.labels)
    neighbors = predictor.nearest(queries, n_nearest, temperature, search)
    indices, distances, softmax_sum = map(to_numpy, neighbors)
    shares = np.full_like(distances, np.nan)
    if log_priors is not None:
        logits = softmax_logits(distances, temperature)
        logits += log_priors.astype(logits.dtype)[indices]
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        shares = np.exp(log_softmax(logits)) if probabilities else shares
        indices, distances, shares = (
            np.take_along_axis(values, order, axis=1) for values in (indices, distances, shares)
        )
    elif probabilities:
        shares = softmax_numerators(distances, temperature) / softmax_sum[:, None]
    return Ranking(predictor, queries, neighbors, indices, distances, shares)


def with_class(ranking: Ranking, index: int, log_priors: NDArray[np.float64] | None) -> Ranking:
    """Return the ranking of one query with one more class, unless it has that class.

    Only the precision of that class is derived.
    """
    if index in ranking.indices:
        return ranking
    predictor = ranking.predictor
    distance = predictor.distance_to(ranking.queries, index)
    pair = np.asarray([float(ranking.distances[0, 0]), float(distance[0])])
    logits = softmax_logits(pair, temperature_of(predictor))
    if log_priors is not None:
        logits = logits + log_priors[[int(ranking.indices[0, 0]), index]]
    share = ranking.probabilities[0, 0] * np.exp(logits[1] - logits[0])
    return ranking._replace(
        indices=np.append(ranking.indices, [[index]], axis=1),
        distances=np.append(ranking.distances, [[pair[1]]], axis=1),
        probabilities=np.append(ranking.probabilities, [[share]], axis=1),
    )


def class_logits(
    predictor: CalibratedPredictor, distances: Array, log_priors: NDArray[np.float64] | None
) -> Array:
    """Return the logarithms of unnormalized probabilities, from the distances to all classes."""
    logits = softmax_logits(distances, temperature_of(predictor))
    if log_priors is None:
        return logits
    return logits + namespace(logits).astype(to_backend_of(log_priors, logits), logits.dtype)


def novelty_of(ranking: Ranking) -> np.ndarray[Any, Any]:
    """Return the novelty of queries; NaN while there is no evidence."""
    predictor, queries, neighbors = ranking[:3]
    classes = list(predictor.state.classes.values())
    distances = to_numpy(neighbors.distances)[:, 0]
    scale = fitted_scale(stats.calibration for stats in classes)
    if scale is not None and len(classes) >= MIN_CLASSES:
        scores = novelty_scores(predictor, queries, neighbors)
        return scale(scores).astype(distances.dtype)
    if not any(map(has_variance, classes)):
        return np.full_like(distances, np.nan)
    nearest, inverse = np.unique(to_numpy(neighbors.indices)[:, 0], return_inverse=True)
    expected = np.asarray(predictor.expected_distances(nearest.tolist()))[inverse]
    variance = relative_variance(classes)
    return np.asarray(novelty_zscore(distances, expected.astype(distances.dtype), variance))


def with_novelty(ranking: Ranking) -> Predictions:
    """Return a ranking by labels, with the novelty of its queries."""
    return Predictions(
        ranking.labels, ranking.distances, ranking.probabilities, novelty_of(ranking)
    )
