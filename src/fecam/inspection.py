r"""What can be said of a model without any samples: how large it is, and where it will err.

Two classes :math:`a` and :math:`b` are confused where they lie close together for how much their
samples vary. With :math:`D` the squared distance between their prototypes, measured by one class
and by the other, and :math:`E` the squared distance expected of a class's own sample, both summed
over the two,

.. math:: r = D / E, \qquad r_0 = \max(r - 1/n_a - 1/n_b,\ 0), \qquad
          p = \Phi(-r_0 / \sqrt{2 r v})

is an estimate of how probable a confusion is: the textbook's error of two Gaussians, in as many
dimensions as the spread :math:`v` of distances tells (`fecam.core.calibration`). What the
prototypes lie apart by chance alone, because they come of few samples, does not count as a
distance. The estimate is good for telling which pairs to look at, and within a factor of a few of
what is measured; the measured number is that of an evaluation on samples.
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
from fecam.core.statistics import ClassStatistics, scatter_diagonal

ALL_PAIRS = 256
"""Up to so many classes every pair is measured."""
CANDIDATES = 32
"""Of more classes, each is measured against so many whose prototypes are nearest (Euclidean)."""
FEW = 10
"""Fewer samples than this are worth a word."""
OVERLAP = 0.05
"""So probable a confusion is worth a word."""
WIDE = 2.0
"""A class that varies so many times as much as the one in the middle is worth a word."""


@dataclass(frozen=True)
class Sizes:
    """How much a model holds."""

    classes: int
    samples: int
    width: int
    bytes: int
    """Of all statistics in memory; what is derived from them comes on top."""
    by_shape: dict[str, int]
    """How many classes keep a triangle, a few rows, a diagonal, or no scatter at all."""


@dataclass(frozen=True)
class Pair:
    """Two classes, the first label first."""

    first: Hashable
    second: Hashable
    overlap: float
    """How probable a confusion is: 0.5 for classes that cannot be told apart."""
    apart: float
    """The squared distance of the prototypes, relative to that expected of an own sample."""


@dataclass(frozen=True)
class Weakness:
    """A class that will not be recognised well, and why."""

    label: Hashable
    count: int
    risk: float
    """How probable it is that a sample is taken for one of any other class."""
    reasons: tuple[str, ...]


def sizes(classifier: FeCAMClassifier) -> Sizes:
    """How much a model holds.

    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0]], ["cat", "cat", "dog"])
    >>> sizes(clf).classes, sizes(clf).samples, sizes(clf).width
    (2, 3, 2)
    """
    known = classifier.state_
    classes = known.classes.values()
    shapes = ["none" if one.scatter is None else one.scatter.storage for one in classes]
    return Sizes(
        classes=len(classes),
        samples=sum(one.count for one in classes),
        width=known.n_features,
        bytes=sum(map(_bytes_of, classes)),
        by_shape={shape: shapes.count(shape) for shape in dict.fromkeys(shapes)},
    )


def close_pairs(classifier: FeCAMClassifier) -> list[Pair]:
    """The pairs of classes by how probable a confusion is, the most probable first.

    All pairs of up to `ALL_PAIRS` classes; of more, those of each class with its `CANDIDATES`
    nearest by prototype, so that time and memory grow with the number of classes and not with its
    square (but for one product of all prototypes).

    >>> rows = [[0.0, 1.0], [0.2, 1.1], [0.1, 0.9], [0.1, 1.2], [0.3, 1.0], [0.2, 0.8],
    ...         [5.0, 0.0], [5.2, 0.1], [5.0, 0.2]]
    >>> clf = FeCAMClassifier().fit(rows, ["cat"] * 3 + ["lynx"] * 3 + ["dog"] * 3)
    >>> pair = close_pairs(clf)[0]
    >>> pair.first, pair.second
    ('cat', 'lynx')
    """
    known = classifier.state_
    labels = list(known.classes)
    if len(labels) < 2:
        return []
    metric = classifier.metric_
    factors = classifier._derived.factors(known, metric)
    expected = np.asarray(classifier._derived.expected(known, metric, range(len(labels))))
    centres = np.stack([to_numpy(factor.centre).astype(np.float64) for factor in factors])
    pairs = _candidates(centres)
    there_and_back = np.concatenate([pairs, pairs[:, ::-1]])
    measured = _distances(there_and_back, factors, centres, known.like)
    apart = measured.reshape(2, -1).sum(axis=0) / expected[pairs].sum(axis=1)
    chance = (1 / classifier.class_count_)[pairs].sum(axis=1)
    overlap = overlaps(apart, chance, relative_variance(known.classes.values()))
    order = np.lexsort((apart, -overlap))
    return [
        Pair(labels[pairs[at, 0]], labels[pairs[at, 1]], float(overlap[at]), float(apart[at]))
        for at in order
    ]


def overlaps(
    apart: NDArray[np.float64], chance: NDArray[np.float64], variance: float
) -> NDArray[np.float64]:
    """How probable a confusion is; ``chance`` is what would lie between prototypes by itself.

    >>> overlaps(np.array([0.0, 0.1, 4.0]), np.array([0.2, 0.2, 0.2]), 0.1).round(3).tolist()
    [0.5, 0.5, 0.0]
    """
    real = np.maximum(apart - chance, 0.0)
    scale = np.sqrt(2 * apart * variance)
    return np.asarray(ndtr(-real / np.where(scale > 0, scale, 1.0)))


def weak_classes(classifier: FeCAMClassifier, pairs: list[Pair]) -> list[Weakness]:
    """The classes of which something can be said against, the weakest first.

    ``pairs`` is what `close_pairs` has found. The order is that of the risk of a confusion, to
    which one over the number of samples is added: what the prototype is off by, for all we know.
    """
    close: dict[Hashable, list[tuple[Hashable, float]]] = {}
    for pair in pairs:
        close.setdefault(pair.first, []).append((pair.second, pair.overlap))
        close.setdefault(pair.second, []).append((pair.first, pair.overlap))
    spreads = {label: _spread(one) for label, one in classifier.state_.classes.items()}
    varying = [value for value in spreads.values() if value]
    usual = float(np.median(varying)) if varying else 0.0
    found = []
    for label, one in classifier.state_.classes.items():
        others = sorted(close.get(label, []), key=lambda other: -other[1])
        reasons = [*_of_count(one.count), *_of_overlap(others), *_of_spread(spreads[label], usual)]
        if reasons:
            risk = 1 - math.prod(1 - overlap for _, overlap in others)
            found.append(Weakness(label, one.count, risk, tuple(reasons)))
    return sorted(found, key=lambda weak: -(weak.risk + 1 / weak.count))


# -- pairs -----------------------------------------------------------------------------------------


def _candidates(centres: NDArray[np.float64]) -> NDArray[np.intp]:
    """Pairs of positions, the smaller one first: all of them, or those of near prototypes."""
    count = len(centres)
    if count <= ALL_PAIRS:
        return np.stack(np.triu_indices(count, 1), axis=1)
    search = NearestNeighbors(n_neighbors=CANDIDATES + 1, algorithm="brute").fit(centres)
    near = search.kneighbors(centres, return_distance=False)
    pairs = np.stack([np.repeat(np.arange(count), CANDIDATES + 1), near.ravel()], axis=1)
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.asarray(np.unique(pairs, axis=0))


def _distances(
    directed: NDArray[np.intp], factors: list[Any], centres: NDArray[np.float64], anchor: Any
) -> NDArray[np.float64]:
    """The squared distance from each first prototype to the second class; class by class."""
    order = np.argsort(directed[:, 1], kind="stable")
    bounds = np.searchsorted(directed[order, 1], np.arange(len(factors) + 1))
    found = np.empty(len(directed))
    for at, factor in enumerate(factors):
        rows = order[bounds[at] : bounds[at + 1]]
        if len(rows):
            steps = to_backend_of(centres[directed[rows, 0]] - centres[at], anchor)
            lengths = factor.lengths(namespace(anchor).astype(steps, anchor.dtype))
            found[rows] = to_numpy(lengths) * factor.scale
    return found


# -- reasons ---------------------------------------------------------------------------------------


def _of_count(count: int) -> list[str]:
    if count == 1:
        return ["one sample only"]
    return [f"few samples: {count}"] if count < FEW else []


def _of_overlap(others: list[tuple[Hashable, float]]) -> list[str]:
    """The closest classes by name, and how many more there are."""
    close = [
        f"{label!r} ({100 * overlap:.0f} %)" for label, overlap in others if overlap >= OVERLAP
    ]
    if not close:
        return []
    more = f" and {len(close) - 3} more" if len(close) > 3 else ""
    return [f"overlaps with {', '.join(close[:3])}{more}"]


def _of_spread(spread: float | None, usual: float) -> list[str]:
    if spread is None or not usual:
        return []
    if spread == 0:
        return ["all samples are the same"]
    if spread < WIDE * usual:
        return []
    return [f"much wider than the others: its samples vary {spread / usual:.1f} times as much"]


def _spread(one: ClassStatistics) -> float | None:
    """The variance of a class, summed over features; None of too few samples to tell."""
    along = scatter_diagonal(one)
    if along is None or one.count < 3:
        return None
    return float(np.sum(to_numpy(along), dtype=np.float64)) / (one.count - 1)


def _bytes_of(one: ClassStatistics) -> int:
    arrays = [one.raw_mean, one.mean]
    arrays += [
        scatter.data for scatter in (one.scatter, one.domain_mean_covariance) if scatter is not None
    ]
    return sum(math.prod(array.shape) * _itemsize(array) for array in arrays)


def _itemsize(array: Any) -> int:
    return int(namespace(array).finfo(array.dtype).bits) // 8
