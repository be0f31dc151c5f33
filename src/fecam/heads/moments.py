"""Counts, means and one scatter: sums that add up, so that order and batches do not matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fecam.core.arrays import row_slices
from fecam.heads.head import Floats, Labels

BLOCK_ROWS = 8192
"""Rows that are centred at a time: bounds the memory that double precision takes."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMeans:
    """How many samples of each class came, and their mean, in the order of the labels."""

    labels: Labels
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    means: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    r"""The means of all classes and one scatter *within* classes.

    :math:`S = \sum_y \sum_{i \in y} (x_i - m_y)(x_i - m_y)^T`. With the means it also gives the
    Gram matrix, `gram`; the other way round digits would cancel.
    """

    classes: ClassMeans
    scatter: Floats

    @property
    def labels(self) -> Labels:
        """The labels, sorted."""
        return self.classes.labels


def means_of(X: Floats, y: Labels) -> ClassMeans:
    """The mean of each class in a batch, summed in double precision.

    >>> means_of(np.array([[0.0], [2.0], [5.0]]), np.array(["b", "b", "a"])).means
    array([[5.],
           [1.]])
    """
    labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sums = np.stack(
        [
            X[order[start : start + count]].sum(axis=0, dtype=np.float64)
            for start, count in zip(starts, counts, strict=True)
        ]
    )
    return ClassMeans(labels, counts.astype(np.int64), sums / counts[:, None])


def moments_of(X: Floats, y: Labels) -> Moments:
    """The means of a batch and its scatter within classes."""
    classes = means_of(X, y)
    codes = np.searchsorted(classes.labels, y)
    scatter = np.zeros((X.shape[1], X.shape[1]))
    for some in row_slices(X.shape[0], BLOCK_ROWS):
        centred = X[some] - classes.means[codes[some]]
        scatter += centred.T @ centred
    return Moments(classes, scatter)


def add_means(a: ClassMeans, b: ClassMeans) -> ClassMeans:
    """The means of both sets of samples together."""
    return _add(a, b)[0]


def add_moments(a: Moments, b: Moments) -> Moments:
    r"""The moments of both sets of samples together (Chan's update).

    Each class that both know adds :math:`\frac{n_a n_b}{n_a + n_b}\,\delta\delta^T` with
    :math:`\delta = m_b - m_a`.
    """
    classes, steps = _add(a.classes, b.classes)
    return Moments(classes, a.scatter + b.scatter + steps.T @ steps)


def gram(moments: Moments) -> Floats:
    r"""The Gram matrix :math:`\sum_i x_i x_i^T` of all samples."""
    of = moments.classes
    rows = of.means * np.sqrt(of.counts)[:, None]
    return moments.scatter + rows.T @ rows


def _add(a: ClassMeans, b: ClassMeans) -> tuple[ClassMeans, Floats]:
    """All classes, and the step of each class of ``b``, weighted as a scatter needs it."""
    labels = np.union1d(a.labels, b.labels)
    here, there = np.searchsorted(labels, a.labels), np.searchsorted(labels, b.labels)
    counts, means = np.zeros(len(labels), np.int64), np.zeros((len(labels), a.means.shape[1]))
    counts[here], means[here] = a.counts, a.means
    before = counts[there]  # 0 for a class that only b knows
    counts[there] += b.counts
    share = b.counts / counts[there]
    delta = b.means - means[there]
    means[there] += delta * share[:, None]
    return ClassMeans(labels, counts, means), delta * np.sqrt(before * share)[:, None]
