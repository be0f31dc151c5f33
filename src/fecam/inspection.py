r"""Estimates from the statistics of a model, without samples: which classes it will confuse.

Two classes :math:`a` and :math:`b` are confused if they are close relative to the variance of their
samples. With :math:`D` the squared distance between their prototypes, measured by either class, and
:math:`E` the expected squared distance of a class's own sample, both summed over the two classes,

.. math:: r = D / E, \qquad r_0 = \max(r - 1/n_a - 1/n_b,\ 0), \qquad
          p = \Phi(-r_0 / \sqrt{2 r v})

estimates the probability of a confusion. It is the error of two Gaussians in as many dimensions as
the relative variance :math:`v` of distances implies (`fecam.core.calibration`). The distance that
prototypes of few samples have by chance is subtracted. The estimate ranks pairs, and is within a
small factor of the measured confusions; an evaluation on samples gives the exact number.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.neighbors import NearestNeighbors

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import namespace, to_backend_of, to_numpy
from fecam.core.calibration import relative_variance
from fecam.core.precision import Precision
from fecam.core.statistics import ClassStatistics, scatter_diagonal

__all__ = ["Pair", "Weakness", "close_pairs", "overlaps", "weak_classes"]

ALL_PAIRS = 256
"""Number of classes up to which every pair is measured."""
CANDIDATES = 32
"""With more classes, number of nearest prototypes (Euclidean) that each class is compared with."""
FEW_SAMPLES = 10
"""A class with fewer samples is reported."""
MIN_OVERLAP = 0.05
"""A pair with a higher probability of confusion is reported."""
WIDE = 2.0
"""A class whose variance exceeds the median by this factor is reported."""


@dataclass(frozen=True)
class Pair:
    """Two classes, in the order of the labels."""

    first: Hashable
    second: Hashable
    overlap: float
    """Probability of a confusion: 0.5 for identical classes."""
    apart: float
    """Squared distance of the prototypes, relative to the expected one of a sample."""


@dataclass(frozen=True)
class Weakness:
    """A class that will be recognized badly, with the reasons."""

    label: Hashable
    count: int
    risk: float
    """Probability that a sample is predicted as another class."""
    reasons: tuple[str, ...]


def close_pairs(classifier: FeCAMClassifier) -> list[Pair]:
    """Return the pairs of classes by their probability of confusion.

    Of more than `ALL_PAIRS` classes, only the pairs of each class with its `CANDIDATES` nearest
    prototypes are measured, so that the cost is linear in the number of classes except for one
    product of all prototypes.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.

    Returns
    -------
    list of Pair
        The most probable confusion first.

    Examples
    --------
    >>> rows = [[0.0, 1.0], [0.2, 1.1], [0.1, 0.9], [0.1, 1.2], [0.3, 1.0], [0.2, 0.8],
    ...         [5.0, 0.0], [5.2, 0.1], [5.0, 0.2]]
    >>> clf = FeCAMClassifier().fit(rows, ["cat"] * 3 + ["lynx"] * 3 + ["dog"] * 3)
    >>> pair = close_pairs(clf)[0]
    >>> pair.first, pair.second
    ('cat', 'lynx')
    """
    state = classifier.state_
    labels = list(state.classes)
    if len(labels) < 2:
        return []
    predictor = classifier.predictor_
    precisions = predictor.precisions
    expected = np.asarray(predictor.expected_distances(range(len(labels))))
    prototypes = np.stack(
        [to_numpy(precision.center).astype(np.float64) for precision in precisions]
    )
    pairs = _candidate_pairs(prototypes)
    both_ways = np.concatenate([pairs, pairs[:, ::-1]])
    distances = _distances(both_ways, precisions, prototypes, state.like)
    apart = distances.reshape(2, -1).sum(axis=0) / expected[pairs].sum(axis=1)
    chance = (1 / classifier.class_count_)[pairs].sum(axis=1)
    overlap = overlaps(apart, chance, relative_variance(state.classes.values()))
    return [
        Pair(labels[pairs[i, 0]], labels[pairs[i, 1]], float(overlap[i]), float(apart[i]))
        for i in np.lexsort((apart, -overlap))
    ]


def overlaps(
    apart: NDArray[np.float64], chance: NDArray[np.float64], variance: float
) -> NDArray[np.float64]:
    """Return the probability of confusion of each pair.

    Parameters
    ----------
    apart : ndarray
        Relative squared distances of the prototypes.
    chance : ndarray
        The part of each that is expected by chance.
    variance : float
        Relative variance of the distances of samples.

    Returns
    -------
    ndarray
        Probabilities up to 0.5.

    Examples
    --------
    >>> overlaps(np.array([0.0, 0.1, 4.0]), np.array([0.2, 0.2, 0.2]), 0.1).round(3).tolist()
    [0.5, 0.5, 0.0]
    """
    scale = np.sqrt(2 * apart * variance)
    return np.asarray(ndtr(-np.maximum(apart - chance, 0.0) / np.where(scale > 0, scale, 1.0)))


def weak_classes(classifier: FeCAMClassifier, pairs: list[Pair]) -> list[Weakness]:
    """Return the classes with few samples, close neighbors or a large variance.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    pairs : list of Pair
        The result of `close_pairs`.

    Returns
    -------
    list of Weakness
        By risk plus ``1 / count``, the expected error of the prototype; the largest first.
    """
    neighbors: dict[Hashable, list[tuple[float, Hashable]]] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.overlap):
        neighbors.setdefault(pair.first, []).append((pair.overlap, pair.second))
        neighbors.setdefault(pair.second, []).append((pair.overlap, pair.first))
    classes = classifier.state_.classes
    spreads = {label: _spread(stats) for label, stats in classes.items()}
    median = float(np.median([spread for spread in spreads.values() if spread] or [0.0]))
    weak = []
    for label, stats in classes.items():
        close = neighbors.get(label, [])
        if reasons := _reasons(stats.count, close, spreads[label], median):
            risk = 1 - math.prod(1 - overlap for overlap, _ in close)
            weak.append(Weakness(label, stats.count, risk, reasons))
    return sorted(weak, key=lambda weakness: -(weakness.risk + 1 / weakness.count))


def _candidate_pairs(prototypes: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return pairs of indices, the smaller one first: all, or those of near prototypes."""
    count = len(prototypes)
    if count <= ALL_PAIRS:
        return np.stack(np.triu_indices(count, 1), axis=1)
    search = NearestNeighbors(n_neighbors=CANDIDATES, algorithm="brute").fit(prototypes)
    near = search.kneighbors(return_distance=False)  # without the prototype itself
    pairs = np.stack([np.repeat(np.arange(count), CANDIDATES), near.ravel()], axis=1)
    return np.asarray(np.unique(np.sort(pairs, axis=1), axis=0))


def _distances(
    directed: NDArray[np.intp],
    precisions: list[Precision],
    prototypes: NDArray[np.float64],
    like: Any,
) -> NDArray[np.float64]:
    """Return the squared distance from each first prototype to the second class."""
    distances = np.empty(len(directed))
    order = np.argsort(directed[:, 1], kind="stable")
    bounds = np.searchsorted(directed[order, 1], np.arange(1, len(precisions)))
    for i, (precision, rows) in enumerate(zip(precisions, np.split(order, bounds), strict=True)):
        if len(rows):
            differences = to_backend_of(prototypes[directed[rows, 0]] - prototypes[i], like)
            squares = precision.squared_mahalanobis(namespace(like).astype(differences, like.dtype))
            distances[rows] = to_numpy(squares) * precision.scale
    return distances


def _reasons(
    count: int, close: list[tuple[float, Hashable]], spread: float | None, median: float
) -> tuple[str, ...]:
    """Return why a class is weak; ``close`` holds overlaps and labels, the largest first."""
    reasons = []
    if count < FEW_SAMPLES:
        reasons.append("one sample only" if count == 1 else f"few samples: {count}")
    names = [
        f"{label!r} ({100 * overlap:.0f} %)" for overlap, label in close if overlap >= MIN_OVERLAP
    ]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        reasons.append(f"overlaps with {', '.join(names[:3])}{more}")
    if spread == 0 and median:
        reasons.append("all samples are the same")
    elif spread is not None and median and spread >= WIDE * median:
        ratio = spread / median
        reasons.append(f"much wider than the others: its samples vary {ratio:.1f} times as much")
    return tuple(reasons)


def _spread(stats: ClassStatistics) -> float | None:
    """Return the variance of a class summed over features; None below three samples."""
    diagonal = scatter_diagonal(stats)
    if diagonal is None or stats.count < 3:
        return None
    return float(np.sum(to_numpy(diagonal), dtype=np.float64)) / (stats.count - 1)
