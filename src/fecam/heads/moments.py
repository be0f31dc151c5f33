"""Class means and one scatter matrix: sums that do not depend on order and batches."""

from dataclasses import dataclass

import numpy as np

from fecam.core.arrays import row_slices
from fecam.heads.head import Floats, Labels

BLOCK_ROWS = 8192
"""Rows that are centered at a time; bounds the memory in double precision."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMeans:
    """Number of samples and mean per class, in the order of the labels."""

    labels: Labels
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    means: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    r"""Class means and the within-class scatter.

    :math:`S = \sum_y \sum_{i \in y} (x_i - \mu_y)(x_i - \mu_y)^T`. `gram` computes the Gram matrix
    from both; computing S from the Gram matrix would cancel digits.
    """

    classes: ClassMeans
    scatter: Floats

    @property
    def labels(self) -> Labels:
        """Labels, sorted."""
        return self.classes.labels


def means_of(X: Floats, y: Labels) -> ClassMeans:
    """Return the class means of a batch, summed in double precision.

    >>> means_of(np.array([[0.0], [2.0], [5.0]]), np.array(["b", "b", "a"])).means
    array([[5.],
           [1.]])
    """
    labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    means = np.stack([X[rows].mean(axis=0, dtype=np.float64) for rows in groups])
    return ClassMeans(labels, counts.astype(np.int64), means)


def moments_of(X: Floats, y: Labels) -> Moments:
    """Return class means and within-class scatter of a batch."""
    classes = means_of(X, y)
    codes = np.searchsorted(classes.labels, y)
    scatter = np.zeros((X.shape[1], X.shape[1]))
    for block in row_slices(X.shape[0], BLOCK_ROWS):
        centered = X[block] - classes.means[codes[block]]
        scatter += centered.T @ centered
    return Moments(classes, scatter)


def add_means(a: ClassMeans, b: ClassMeans) -> ClassMeans:
    """Return the class means of both sets of samples."""
    return _add(a, b)[0]


def add_moments(a: Moments, b: Moments) -> Moments:
    r"""Return the moments of both sets of samples (Chan's update).

    Each class in both sets adds :math:`\frac{n_a n_b}{n_a + n_b}\,\delta\delta^T` with
    :math:`\delta = \mu_b - \mu_a`.
    """
    classes, deltas = _add(a.classes, b.classes)
    return Moments(classes, a.scatter + b.scatter + deltas.T @ deltas)


def gram(moments: Moments) -> Floats:
    r"""Return the Gram matrix :math:`\sum_i x_i x_i^T` of all samples."""
    rows = moments.classes.means * np.sqrt(moments.classes.counts)[:, None]
    return moments.scatter + rows.T @ rows


def _add(a: ClassMeans, b: ClassMeans) -> tuple[ClassMeans, Floats]:
    """Return the class means of both, and :math:`\\delta` of each class of b, weighted."""
    labels = np.union1d(a.labels, b.labels)
    rows_a, rows_b = np.searchsorted(labels, a.labels), np.searchsorted(labels, b.labels)
    counts, means = np.zeros(len(labels), np.int64), np.zeros((len(labels), a.means.shape[1]))
    counts[rows_a], means[rows_a] = a.counts, a.means
    counts_a = counts[rows_b]  # 0 for a class that is only in b
    counts[rows_b] += b.counts
    weights = b.counts / counts[rows_b]
    deltas = b.means - means[rows_b]
    means[rows_b] += deltas * weights[:, None]
    return ClassMeans(labels, counts, means), deltas * np.sqrt(counts_a * weights)[:, None]
