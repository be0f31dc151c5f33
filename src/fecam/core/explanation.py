r"""Explanation of a distance: its parts by direction, by feature and by the origin of the matrix.

The squared distance of a query to a class is :math:`d = \delta^T \Sigma^{-1} \delta` with the
difference :math:`\delta` from the prototype and the class's matrix :math:`\Sigma`, all factors
included. With the eigenvalues :math:`\lambda_k` and eigenvectors :math:`v_k` of :math:`\Sigma`, and
with :math:`w = \Sigma^{-1} \delta`, it is three exact sums:

.. math:: d = \sum_k \frac{(v_k^T \delta)^2}{\lambda_k}
            = \sum_j \delta_j w_j
            = w^T \Sigma_S\,w + w^T \Sigma_W\,w + w^T \Sigma_R\,w.

The first is over directions, the second over features. The third is over the parts of the matrix
:math:`\Sigma = \Sigma_S + \Sigma_W + \Sigma_R`: what the samples of the class, the pooled prior and
the rest (shrinkage) contribute to it. A distance along directions that only the prior knows has a
large middle term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fecam.core.arrays import Array, namespace, to_backend_of, to_float64, to_numpy
from fecam.core.calibration_rows import Floats
from fecam.core.covariance import rounding_noise, scatter_of, whiten
from fecam.core.expected import CalibratedPredictor
from fecam.core.metric import class_covariance, distance_scale
from fecam.core.scatter import diagonal_of, project
from fecam.core.statistics import ClassStatistics
from fecam.results import ClassDistance, Direction, Explanation, FeatureContribution


class DistanceParts(NamedTuple):
    """A squared distance as a sum over the parts of the class's matrix, and over features."""

    from_samples: float
    from_prior: float
    from_shrinkage: float
    features: Floats

    @property
    def distance(self) -> float:
        """The squared distance, which is the sum of the features' contributions."""
        return float(self.features.sum())


class Spectrum(NamedTuple):
    """A squared distance as a sum over the eigenvectors of the class's matrix, largest first."""

    contributions: Floats
    deviations: Floats
    """The difference along each eigenvector, in standard deviations of the class."""
    variances: Floats
    """The eigenvalues of the matrix."""
    from_samples: Floats
    """The share of each eigenvalue that the samples of the class account for."""


def explain_query(
    predictor: CalibratedPredictor,
    query: Array,
    indices: Sequence[int],
    probabilities: Sequence[float],
    novelty: float,
    *,
    explained: int,
    n_parts: int,
    feature_names: Sequence[str] | None = None,
) -> Explanation:
    """Return the explanation of a transformed query.

    ``indices`` are the positions of the classes to describe, the most probable first. ``explained``
    is the one whose directions and features are listed, ``n_parts`` of each.
    """
    labels: list[Any] = predictor.labels
    row, prototypes = to_numpy(to_float64(query)), to_numpy(to_float64(predictor.prototypes))
    parts = {i: distance_parts(predictor, row - prototypes[i], i) for i in {*indices, explained}}
    nearest = [
        ClassDistance(
            labels[i],
            _stats(predictor, i).count,
            probability,
            parts[i].distance,
            float(typical),
            *parts[i][:3],
        )
        for i, probability, typical in zip(
            indices, probabilities, predictor.expected_distances(indices), strict=True
        )
    ]
    own = distance_spectrum(predictor, row - prototypes[explained], explained, n_parts)
    first = np.argsort(-own.contributions, kind="stable")[:n_parts]
    directions = [
        Direction(
            int(k) + 1,
            float(own.contributions[k]),
            float(own.deviations[k]),
            float(own.variances[k]),
            float(own.from_samples[i]),
        )
        for i, k in enumerate(first)
    ]
    shares = parts[explained].features
    strongest = np.argsort(-np.abs(shares), kind="stable")[:n_parts]
    features = [
        FeatureContribution(
            int(j), str(j) if feature_names is None else str(feature_names[j]), float(shares[j])
        )
        for j in strongest
    ]
    margin = nearest[1].distance - nearest[0].distance if len(nearest) > 1 else None
    return Explanation(
        label=nearest[0].label,
        novelty=novelty,
        margin=margin,
        nearest=nearest,
        explained=labels[explained],
        directions=directions,
        other_directions=float(own.contributions.sum() - own.contributions[first].sum()),
        features=features,
        other_features=float(shares.sum() - shares[strongest].sum()),
    )


def distance_parts(predictor: CalibratedPredictor, difference: Floats, index: int) -> DistanceParts:
    """Return the squared distance of a difference to a class, by origin and by feature."""
    whitening = np.asarray(whiten(_matrix(predictor, index), _eps(predictor)))
    solved = whitening @ (whitening.T @ difference)
    features = difference * solved
    distance = float(features.sum())
    if predictor.metric.covariance == "identity":
        return DistanceParts(0.0, 0.0, distance, features)
    if predictor.metric.is_shared:  # by all classes
        return DistanceParts(0.0, distance, 0.0, features)
    samples, prior = (float(part[0]) for part in _origins(predictor, solved[:, None], index))
    return DistanceParts(samples, prior, distance - samples - prior, features)


def distance_spectrum(
    predictor: CalibratedPredictor, difference: Floats, index: int, n_shares: int
) -> Spectrum:
    """Return the squared distance of a difference to a class by eigenvectors of its matrix.

    ``from_samples`` is computed for the ``n_shares`` eigenvectors that contribute most, in the
    order of their contributions.
    """
    covariance = _matrix(predictor, index)
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = values[::-1], vectors[:, ::-1]
    usable = values > rounding_noise(covariance, _eps(predictor))
    along = vectors.T @ difference
    roots = np.sqrt(np.where(usable, values, 1.0))
    deviations = np.where(usable, along / roots, 0.0)
    # The sign of an eigenvector is arbitrary: its largest entry is made positive.
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(values))])
    contributions = deviations**2
    first = np.argsort(-contributions, kind="stable")[:n_shares]
    shares = np.zeros(len(first))
    if not predictor.metric.is_shared:
        samples, _ = _origins(predictor, vectors[:, first], index)
        shares = samples / np.where(usable, values, 1.0)[first]
    return Spectrum(contributions, deviations * signs, values, shares)


def _origins(predictor: CalibratedPredictor, axes: Floats, index: int) -> tuple[Floats, Floats]:
    r"""Return :math:`a^T \Sigma_S a` and :math:`a^T \Sigma_W a` for axes, one per column.

    For a class with a matrix of its own; a matrix that all classes share has no such parts.
    """
    metric, stats, prior = predictor.metric, _stats(predictor, index), predictor.class_prior
    scaled = axes / _normalizing_std(predictor, index)[:, None]
    pseudo_count = 0.0 if prior is None else prior.pseudo_count
    weight = 1 / (stats.count - 1 + pseudo_count) if pseudo_count else 1 / max(stats.count - 1, 1)
    weight /= distance_scale(stats, metric)
    scatter = scatter_of(stats, average_domains=metric.average_domains)
    if metric.covariance == "diagonal":
        own = _square_along(to_numpy(to_float64(diagonal_of(scatter))), scaled)
    else:
        own = np.diag(to_numpy(project(scatter, to_backend_of(scaled, stats.mean))))
    if prior is None:
        return weight * own, 0 * own
    shared = to_numpy(to_float64(prior.covariance))
    return weight * own, weight * pseudo_count * _square_along(shared, scaled)


def _normalizing_std(predictor: CalibratedPredictor, index: int) -> Floats:
    """Return the standard deviations that normalization divided the matrix of a class by."""
    metric, stats = predictor.metric, _stats(predictor, index)
    if metric.normalization is None:
        return np.ones(predictor.state.n_features)
    plain = replace(metric, normalization=None)
    covariance = to_numpy(class_covariance(stats, plain, predictor.class_prior))
    variances = covariance if covariance.ndim == 1 else np.diag(covariance)
    if metric.normalization == "correlation" and covariance.ndim == 2:
        return np.sqrt(np.where(variances > 0, variances, 1.0))
    return np.full(len(variances), float(np.linalg.norm(variances)) ** 0.5 or 1.0)


def _square_along(matrix: Floats, axes: Floats) -> Floats:
    """Return the quadratic form of a matrix, or of a diagonal, at each axis."""
    product = matrix[:, None] * axes if matrix.ndim == 1 else matrix @ axes
    return np.asarray(np.sum(axes * product, axis=0))


def _stats(predictor: CalibratedPredictor, index: int) -> ClassStatistics:
    return predictor.state.classes[predictor.labels[index]]


def _matrix(predictor: CalibratedPredictor, index: int) -> Floats:
    """Return the matrix of a class, with the factor of `distance_scale`."""
    covariance = predictor.covariance_of(predictor.labels[index])
    return np.asarray(to_numpy(covariance), np.float64)


def _eps(predictor: CalibratedPredictor) -> float:
    like = predictor.state.like
    return float(namespace(like).finfo(like.dtype).eps)
