r"""The expected loss of a compression, from the statistics alone.

Samples are drawn from the Gaussian that the model assumes for each class: its prototype, and its
covariance combined with the pooled prior. Real samples are harder than those: features have heavier
tails and both matrices were fitted. So deviations are stretched by `STRETCH`. The samples are
classified before and after the compression; the share of equal labels is the estimate. How many of
the changed labels were right before is not estimated: on hard data few are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import (
    Array,
    add_to_diagonal,
    cholesky_and_inverse,
    diagonal,
    namespace,
    to_backend_of,
    to_float64,
    to_numpy,
)
from fecam.core.compression import compressed, directions, leading_components, statistics_bytes
from fecam.core.covariance import with_prior
from fecam.core.metric import prototype_of
from fecam.core.predictor import Predictor
from fecam.core.scatter import to_dense
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import project_rows

STRETCH = 1.6
"""Factor of the deviations of drawn samples, a compromise: on digits, and with new classes of five
samples, the estimated shares of equal labels are up to 5 points too low; on 50 classes of CIFAR-100
of 500 samples each they are up to 8 points too high.

No factor suits those: samples drawn from a matrix of 1,280 features that was fitted to 500 samples
stay nearest to their class at any factor up to 2.5, and a quarter of the real ones do not. Samples
drawn from the pooled matrix are as far off elsewhere: 8 points too high on glyphs with new classes.
"""
MAX_SAMPLED_CLASSES = 32
"""Maximum number of classes that samples are drawn from; each takes one Cholesky factor."""
N_SAMPLES = 2048
"""Number of drawn samples."""
AUTO_SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Numbers of components that ``"auto"`` tries, relative to the number of features."""
AUTO_AGREEMENT = 0.96
"""``"auto"`` takes the first with at least this expected share of equal labels."""


@dataclass(frozen=True)
class CompressionEstimate:
    """The expected effect of a compression, estimated before it is done."""

    n_components: int
    """Directions that are kept."""
    n_features: int
    """Features before."""
    agreement: float
    """Expected share of samples whose label does not change."""
    bytes_before: int
    """Size of all statistics before."""
    bytes_after: int
    """Size of all statistics and of the projection afterwards."""


def estimate_compression(
    predictor: Predictor, n_components: int | Literal["auto"]
) -> tuple[CompressionEstimate, ClassifierState]:
    """Return the expected effect of a compression, and the compressed state.

    ``"auto"`` is the first of `auto_sizes` with an acceptable agreement, or the last.
    """
    sizes = [n_components] if n_components != "auto" else auto_sizes(predictor.state.n_features)
    for result in _estimates(predictor, sizes):
        if result[0].agreement >= AUTO_AGREEMENT:
            break
    return result


def auto_sizes(n_features: int) -> list[int]:
    """Return the numbers of components that ``"auto"`` tries.

    >>> auto_sizes(1280)
    [160, 320, 640]
    """
    return sorted({max(round(share * n_features), 1) for share in AUTO_SHARES})


def _estimates(
    predictor: Predictor, sizes: Sequence[int]
) -> Iterator[tuple[CompressionEstimate, ClassifierState]]:
    """Yield the estimate and the state for each number of components, in increasing order."""
    state, metric = predictor.state, predictor.metric
    rows = draw_samples(predictor)
    before = _predict(predictor, rows)
    largest = compressed(state, directions(state, metric, sizes[-1]))
    for size in sizes:
        smaller = largest if size == sizes[-1] else leading_components(largest, size)
        projected = project_rows(rows, smaller.transform.projection)
        after = _predict(Predictor(smaller, metric, tuning=predictor.tuning), projected)
        agreement = float(np.mean(before == after))
        sizes_in_bytes = statistics_bytes(state), statistics_bytes(smaller)
        yield CompressionEstimate(size, state.n_features, agreement, *sizes_in_bytes), smaller


def draw_samples(predictor: Predictor) -> Array:
    """Return samples of the Gaussians of the classes."""
    state, random = predictor.state, np.random.default_rng(0)
    stats = list(state.classes.values())
    indices = range(0, len(stats), -(-len(stats) // MAX_SAMPLED_CLASSES))
    number = -(-N_SAMPLES // len(indices))
    blocks = []
    for i in indices:
        noise = random.standard_normal((number, state.n_features))
        deviations = to_backend_of(noise, state.like) @ _root(stats[i], predictor).T
        scale = STRETCH * (1 + 1 / stats[i].count) ** 0.5
        center = prototype_of(stats[i], predictor.metric, state.transform)
        blocks.append(center + scale * deviations)
    xp = namespace(state.like)
    return xp.astype(xp.concat(blocks), state.like.dtype)


def _root(stats: ClassStatistics, predictor: Predictor) -> Array:
    """Return a Cholesky factor of the covariance that the model assumes for a class."""
    prior = predictor.prior
    assert stats.scatter is not None, "the model stores matrices"
    assert prior is not None, "the model stores matrices"
    pseudo_count = max(prior.pseudo_count, 1.0)  # the factor needs a full rank
    scatter = to_float64(to_dense(stats.scatter))
    covariance = with_prior(scatter, stats.count, prior.covariance, pseudo_count)
    xp = namespace(covariance)
    jitter = float(xp.mean(diagonal(covariance))) * 1e-6 or 1.0
    factors = cholesky_and_inverse(add_to_diagonal(covariance, jitter))
    assert factors is not None, "the covariance is positive semidefinite"
    return factors[0]


def _predict(predictor: Predictor, rows: Array) -> NDArray[np.intp]:
    """Return the index of the nearest class of each row."""
    indices: NDArray[np.intp] = to_numpy(predictor.nearest(rows, 1).indices)[:, 0]
    return indices
