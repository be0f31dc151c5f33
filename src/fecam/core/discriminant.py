r"""Coordinates in which samples of the same class are alike, also of classes not yet learned.

In the coordinates of the pooled metric the class means vary along their principal axes, with the
variance :math:`b_k` beyond sampling error (linear discriminant analysis). A class not yet learned
also differs from all others outside the span of their means. By how much follows from the learned
classes: the altitude :math:`h_c` of a class mean above the affine hull of all others, which is the
root of :math:`1 / (G^+)_{cc}` for the Gram matrix :math:`G` of the centered means. So each further
axis has the variance

.. math:: \beta = \max\!\left(\frac{\overline{h^2}}{d - C + 2} - \bar{\nu}, 0\right)

with the mean sampling variance :math:`\bar\nu` of the means. With the variance within classes
scaled to 1 along each axis, the class of a sample :math:`x` has the expected mean
:math:`x_k b_k / (1 + b_k)` (probabilistic linear discriminant analysis). Axes are weighted by the
root of that factor and samples are scaled to unit length: inner products are then similarities. Two
samples of the same class have about the similarity

.. math:: s = \frac{\sum_k b_k^2 / (1 + b_k)}{\sum_k b_k},

two of different classes have 0. It depends on statistics only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fecam.core.arrays import Array, to_float64, to_numpy
from fecam.core.calibration_rows import Floats
from fecam.core.expected import CalibratedPredictor

MIN_VARIANCE = 1e-3
"""Variance between classes, relative to that within, below which an axis is left out."""


@dataclass(frozen=True, eq=False)
class DiscriminantSpace:
    """A linear map from the coordinates of the pooled metric to unit vectors."""

    center: Floats
    axes: Floats
    """Principal axes of the class means, one per row."""
    weights: Floats
    """Factor of the coordinate along each axis."""
    other_weight: float
    """Factor of the part of a row outside of the axes."""
    similarity: float
    """Similarity that is expected of two samples of the same class."""

    def __call__(self, rows: Floats) -> Floats:
        """Return rows in pooled coordinates as unit vectors, whose products are similarities."""
        centered = rows - self.center
        along = centered @ self.axes.T
        parts = [along * self.weights]
        if self.other_weight:
            parts.append((centered - along @ self.axes) * self.other_weight)
        vectors = np.concatenate(parts, axis=1)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def discriminant_space(predictor: CalibratedPredictor) -> DiscriminantSpace:
    """Return the space of a model; with one class, that of the pooled metric."""
    means = predictor.pooled_space.means
    counts = np.asarray([stats.count for stats in predictor.state.classes.values()], np.float64)
    n_classes, n_features = means.shape
    center = means.mean(axis=0)
    centered = means - center
    _, singular_values, axes = np.linalg.svd(centered, full_matrices=False)
    axes = axes[singular_values > 1e-6 * max(singular_values[0], 1e-300)]
    squares = singular_values[: len(axes)] ** 2
    within, total_within = _variance_within(predictor, axes)
    n_others = n_features - len(axes)
    other_within = max((total_within - within.sum()) / max(n_others, 1), 1e-12)
    noise = float(np.mean(1 / counts))
    between = np.maximum(squares / max(n_classes - 1, 1) / within - noise, 0.0)
    other = 0.0
    if n_others:
        other = max(_altitude(centered) / (n_others + 1) / other_within - noise, 0.0)
    # It cannot be estimated from few classes, or from means that hardly differ.
    if n_classes < 3 or not len(axes) or max(between.max(), other) <= MIN_VARIANCE:
        other = 1.0  # all axes alike
    between = between + other
    usable = between > MIN_VARIANCE
    between, within, axes = between[usable], within[usable], axes[usable]
    total = float(between.sum()) + n_others * other
    alike = float(np.sum(between**2 / (1 + between))) + n_others * other**2 / (1 + other)
    return DiscriminantSpace(
        center,
        axes,
        np.sqrt(between / (1 + between) / within),
        (other / (1 + other) / other_within) ** 0.5,
        alike / total,
    )


def in_discriminant_space(
    predictor: CalibratedPredictor, queries: Array
) -> tuple[DiscriminantSpace, Floats]:
    """Return the space of a model, and transformed samples in it."""
    space, step = discriminant_space(predictor), predictor.tuning.block_rows
    starts = range(0, queries.shape[0], step)
    blocks = [
        space(predictor.in_pooled_space(queries[i : min(i + step, queries.shape[0]), :]))
        for i in starts
    ]
    return space, np.concatenate(blocks)


def _variance_within(predictor: CalibratedPredictor, axes: Floats) -> tuple[Floats, float]:
    """Return the variance within classes along axes of the pooled space, and its sum over all."""
    prior = predictor.prior
    n_features = predictor.state.n_features
    if prior is None or prior.whitening is None:
        scale = n_features / predictor.mean_expected
        return np.full(len(axes), scale), scale * n_features
    std = to_numpy(to_float64(prior.std))
    covariance = to_numpy(to_float64(prior.covariance))
    whitening = to_numpy(to_float64(prior.whitening))
    if covariance.ndim == 1:
        variances = covariance / std**2 * whitening**2
        return np.maximum(axes**2 @ variances, 1e-12), float(variances.sum())
    backward = (whitening / std[:, None]) @ axes.T
    total = float(np.sum(whitening * ((covariance / std / std[:, None]) @ whitening)))
    return np.maximum(np.sum(backward * (covariance @ backward), axis=0), 1e-12), total


def _altitude(centered: Floats) -> float:
    """Return the mean squared altitude of the means above the affine hull of all others."""
    inverse = np.linalg.pinv(centered @ centered.T, rcond=1e-10, hermitian=True)
    return float(np.mean(1 / np.maximum(np.diag(inverse), 1e-300)))
