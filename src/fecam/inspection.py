r"""Estimates from the statistics of a model, without samples: which classes it will confuse.

Two classes :math:`a` and :math:`b` are confused if they are close relative to the variance of their
samples. With :math:`D` the squared distance between their prototypes, measured by either class, and
:math:`E` the expected squared distance of a class's own sample, both summed over the two classes,

.. math:: r = D / E, \qquad p = \Phi(-t \sqrt{r})

is the share of their samples that is predicted as the other class, if samples are Gaussian. The
factor :math:`t` follows from the rows that were measured with the row left out
(`fecam.core.calibration_rows`): summed over rivals, the expected number of errors equals the
number observed. A row that was measured with fewer classes had fewer rivals. Rows of a model of
less than half the present number of classes do not count, and with fewer than `MIN_ROWS`
others there is no :math:`t`: pairs are ranked by :math:`r` only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, ndtr
from sklearn.neighbors import NearestNeighbors

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import namespace, to_backend_of, to_numpy
from fecam.core.calibration_rows import columns_of, left_out_errors
from fecam.core.precision import Precision
from fecam.core.statistics import CalibrationRows, ClassStatistics, scatter_diagonal

__all__ = ["Pair", "Weakness", "close_pairs", "overlaps", "weak_classes"]

ALL_PAIRS = 256
"""Number of classes up to which every pair is measured."""
CANDIDATES = 32
"""With more classes, number of nearest prototypes (Euclidean) that each class is compared with."""
FEW_SAMPLES = 10
"""A class with fewer samples is reported."""
MIN_ROWS = 20
"""Number of left-out rows from which probabilities of confusion are estimated."""
LOG_FACTORS = (-10.0, 10.0)
"""Range of the logarithm of the fitted factor."""
MAX_P_VALUE = 0.01
"""A class is reported if as many left-out errors had at most this probability at the error rate of
the other classes: the lower confidence bound of its own error rate, one-sided, exceeds it."""
PAIR_ROWS = 16
"""Weight of the errors expected from pairs in the risk of a class, in left-out rows. On five
feature sets, risks rank classes about equally well from 16 on; fewer rows alone do worse."""
WIDE = 2.0
"""A class whose variance exceeds the median by this factor is reported."""


@dataclass(frozen=True)
class Pair:
    """Two classes, in the order of the labels."""

    first: Hashable
    second: Hashable
    overlap: float | None
    """Share of their samples that is predicted as the other class, 0.5 for identical classes; None
    with too few left-out rows to estimate it."""
    apart: float
    """Squared distance of the prototypes, relative to the expected one of a sample."""


@dataclass(frozen=True)
class Weakness:
    """A class that is recognized badly or has few samples, with the reasons."""

    label: Hashable
    count: int
    risk: float | None
    """Probability that a sample is predicted as another class, if it can be estimated."""
    left_out: int
    """Number of samples that were measured with the sample left out."""
    left_out_errors: int
    """How many of them were predicted as another class."""
    reasons: tuple[str, ...]


def close_pairs(classifier: FeCAMClassifier) -> list[Pair]:
    """Return the pairs of classes by their relative distance, the most probable confusion first.

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
        The closest first.

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
    rows = [stats.calibration for stats in state.classes.values()]
    factor = _fitted_factor(apart, pairs, rows)
    shares: list[float | None] = [None] * len(pairs)
    if factor is not None:
        shares = overlaps(apart, factor).tolist()
    return [
        Pair(labels[pairs[i, 0]], labels[pairs[i, 1]], shares[i], float(apart[i]))
        for i in np.argsort(apart, kind="stable")
    ]


def overlaps(apart: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return the share of the samples of each pair that is predicted as the other class.

    Parameters
    ----------
    apart : ndarray
        Relative squared distances of the prototypes.
    factor : float
        The number of standard deviations at a relative distance of one.

    Returns
    -------
    ndarray
        Shares up to 0.5.

    Examples
    --------
    >>> overlaps(np.array([0.0, 0.25, 4.0]), 2.0).round(3).tolist()
    [0.5, 0.159, 0.0]
    """
    return np.asarray(ndtr(-factor * np.sqrt(apart)))


def weak_classes(classifier: FeCAMClassifier, pairs: list[Pair]) -> list[Weakness]:
    """Return the classes with few samples, more left-out errors than others, or a large variance.

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
    classes = classifier.state_.classes
    expected = _expected_errors(list(classes), pairs)
    evidence = {
        label: _evidence(stats.calibration, len(classes)) for label, stats in classes.items()
    }
    total = _Evidence(*np.sum(list(evidence.values()), axis=0)) if classes else _NO_ROWS
    spreads = {label: _spread(stats) for label, stats in classes.items()}
    median = float(np.median([spread for spread in spreads.values() if spread] or [0.0]))
    weak = []
    for label, stats in classes.items():
        own = evidence[label]
        reasons = (
            *_few_samples(stats.count),
            *_often_wrong(own, total.without(own)),
            *_wide(spreads[label], median),
        )
        if reasons:
            risk = None
            if expected is not None:
                risk = (own.errors + PAIR_ROWS * expected[label]) / (own.rows + PAIR_ROWS)
            weak.append(Weakness(label, stats.count, risk, own.rows, own.errors, reasons))
    return sorted(weak, key=lambda weakness: -((weakness.risk or 0.0) + 1 / weakness.count))


class _Evidence(NamedTuple):
    """Left-out rows of one or more classes."""

    errors: int
    rows: int
    exposure: float
    """The rows, each in proportion to the number of rivals it had, relative to the present one."""

    def without(self, part: _Evidence) -> _Evidence:
        return _Evidence(
            int(self.errors - part.errors),
            int(self.rows - part.rows),
            float(self.exposure - part.exposure),
        )

    def rate(self) -> float:
        """Return the error rate among all present rivals; not zero if there were no errors."""
        return (self.errors + 0.5) / (self.exposure + 1)


_NO_ROWS = _Evidence(0, 0, 0.0)


def _evidence(rows: CalibrationRows | None, n_classes: int, min_classes: float = 2) -> _Evidence:
    """Return what was measured by models of at least ``min_classes`` classes."""
    if rows is None or n_classes < 2:
        return _NO_ROWS
    known = columns_of(rows).n_classes
    used = known >= min_classes
    exposure = float(np.sum(known[used] - 1)) / (n_classes - 1)
    return _Evidence(int(left_out_errors(rows)[used].sum()), int(used.sum()), exposure)


def _expected_errors(labels: list[Hashable], pairs: list[Pair]) -> dict[Hashable, float] | None:
    """Return the error rate of each class from its pairs, at most one; None if not estimated."""
    expected = dict.fromkeys(labels, 0.0)
    for pair in pairs:
        if pair.overlap is None:
            return None
        for label in (pair.first, pair.second):
            expected[label] = min(expected[label] + pair.overlap, 1.0)
    return expected


def _fitted_factor(
    apart: NDArray[np.float64], pairs: NDArray[np.intp], classes: list[CalibrationRows | None]
) -> float | None:
    """Return the factor at which pairs explain the left-out errors; None with too few rows."""
    n_classes = len(classes)
    evidence = [_evidence(rows, n_classes, n_classes / 2) for rows in classes]
    n_rows = sum(one.rows for one in evidence)
    if n_rows < MIN_ROWS:
        return None
    exposure = np.array([one.exposure for one in evidence])
    per_pair = exposure[pairs].sum(axis=1)
    # Half an error keeps the factor finite if there were none.
    due = n_rows * (sum(one.errors for one in evidence) + 0.5) / (n_rows + 1)

    def excess(log_factor: float) -> float:
        return float(per_pair @ overlaps(apart, math.exp(log_factor))) - due

    low, high = LOG_FACTORS
    if excess(low) <= 0:  # more errors than identical classes would have
        return math.exp(low)
    return math.exp(high if excess(high) >= 0 else brentq(excess, low, high))


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


def _few_samples(count: int) -> list[str]:
    if count >= FEW_SAMPLES:
        return []
    return ["one sample only" if count == 1 else f"few samples: {count}"]


def _often_wrong(own: _Evidence, others: _Evidence) -> list[str]:
    """Return the reason of a class whose left-out rows are clearly worse than those of others."""
    if not own.errors or not others.rows:
        return []
    rate = min(others.rate() * own.exposure / own.rows, 1.0)
    if bdtrc(own.errors - 1, own.rows, rate) > MAX_P_VALUE:
        return []
    return [
        f"{own.errors} of {own.rows} samples left out were predicted as another class, "
        f"{others.errors} of {others.rows} of the other classes"
    ]


def _wide(spread: float | None, median: float) -> list[str]:
    if spread is None or not median:
        return []
    if spread == 0:
        return ["all samples are the same"]
    ratio = spread / median
    if ratio < WIDE:
        return []
    return [f"much wider than the others: its samples vary {ratio:.1f} times as much"]


def _spread(stats: ClassStatistics) -> float | None:
    """Return the variance of a class summed over features; None below three samples."""
    diagonal = scatter_diagonal(stats)
    if diagonal is None or stats.count < 3:
        return None
    return float(np.sum(to_numpy(diagonal), dtype=np.float64)) / (stats.count - 1)
