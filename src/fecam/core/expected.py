"""Expected squared Mahalanobis distance of a new sample of each class, the scale of calibration.

In theory it is the mean of a chi-squared distribution, the number of features. Shrinkage and few
samples change it, so a `CalibratedPredictor` estimates it from the statistics of each class
(`fecam.core.expected_distance`). Probabilities and novelty compare distances with it, and novelty
also with distances under the pooled metric (`fecam.core.novelty`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fecam.core.arrays import Array, add_to_diagonal, namespace, to_numpy
from fecam.core.calibration_rows import Floats
from fecam.core.covariance import apply_whitening
from fecam.core.distances import ExhaustiveDistances
from fecam.core.expected_distance import (
    expected_distances,
    has_variance,
    own_distance,
    pooled_distance,
    strided_subset,
)
from fecam.core.metric import distance_scale
from fecam.core.novelty import PooledSpace
from fecam.core.precision import Precision
from fecam.core.predictor import Predictor
from fecam.core.threads import in_parallel


class CalibratedPredictor(Predictor):
    """A predictor with the expected distances of its classes, computed when first needed."""

    def __init__(self, *args: Any, previous: Predictor | None = None, **options: Any) -> None:
        super().__init__(*args, previous=previous, **options)
        self._expected: dict[int, float] = {}
        self._own: dict[Precision, float | None] = {}
        if isinstance(previous, CalibratedPredictor):
            valid = {derived.precision for derived in self._derived.values()}
            self._own = {p: value for p, value in previous._own.items() if p in valid}

    def expected_distances(self, indices: Sequence[int] | None = None) -> list[float]:
        """The squared distance expected of a new sample of some classes.

        By default of classes evenly spread over all.
        """
        wanted = strided_subset(range(len(self.labels))) if indices is None else indices
        missing = [i for i in wanted if i not in self._expected]
        if missing:
            self._expected.update(self._new_expected(missing))
        return [self._expected[i] for i in wanted]

    def _new_expected(self, indices: Sequence[int]) -> dict[int, float]:
        reference = strided_subset([i for i, s in enumerate(self._stats) if has_variance(s)])
        return self.expected_among(indices, reference)

    def expected_among(self, indices: Sequence[int], reference: Sequence[int]) -> dict[int, float]:
        """The expected squared distances of some classes, pulled to the mean of others.

        It needs the precisions of these classes only.
        """
        stats = self._stats
        reference = [i for i in reference if has_variance(stats[i])]
        if reference:
            wanted = sorted({*reference, *indices})
            self._derive_shared(self.labels[i] for i in wanted)
            own = dict(zip(wanted, in_parallel(self._own_distance, wanted), strict=True))
        else:  # while no class has enough samples
            own = dict(enumerate(_half_way(self.exhaustive)))
            reference = list(own)
        usual = pooled_distance([stats[i] for i in reference], [own[i] for i in reference])
        subset = [stats[i] for i in indices]
        values = expected_distances(subset, [own[i] for i in indices], usual)
        return {
            i: value * distance_scale(stats[i], self.metric)
            for i, value in zip(indices, values, strict=True)
        }

    def measured_before(self) -> list[int]:
        """The classes whose expected distances need no new precision."""
        valid = [self._valid(label) for label in self.labels]
        return [i for i, d in enumerate(valid) if d is not None and d.precision in self._own]

    def _own_distance(self, index: int) -> float | None:
        stats = self._stats[index]
        if not has_variance(stats):
            return None
        precision = self.precision_of(index)
        if precision not in self._own:
            contained = self.labels[index] in self._classes_in_prior
            self._own[precision] = own_distance(
                stats, precision, self.metric, self.class_prior, self.dof, contained
            )
        return self._own[precision]

    @cached_property
    def _classes_in_prior(self) -> set[Hashable]:
        """The classes whose samples a prior contains: if it lags, the first ones up to its size."""
        prior = self.class_prior
        ordered = sorted(self.labels, key=self.state.tasks.__getitem__)
        dof = np.cumsum([self.state.classes[label].count - 1 for label in ordered])
        return {k for k, n in zip(ordered, dof, strict=True) if prior is None or n <= prior.dof}

    @cached_property
    def pooled_space(self) -> PooledSpace:
        """The prototypes in the coordinates of the pooled metric."""
        counts = np.asarray([stats.count for stats in self._stats], dtype=np.float64)
        return PooledSpace(self.in_pooled_space(self.prototypes), counts)

    def in_pooled_space(self, rows: Array) -> Floats:
        """Rows in coordinates in which the pooled matrix is the identity."""
        prior = self.prior
        if prior is None or prior.whitening is None:
            scale = (self.state.n_features / self.mean_expected) ** 0.5
            return np.asarray(scale * to_numpy(rows), np.float64)
        scaled = namespace(rows).astype(rows / prior.std, prior.whitening.dtype, copy=False)
        return np.asarray(to_numpy(apply_whitening(scaled, prior.whitening)), np.float64)

    @property
    def mean_expected(self) -> float:
        """The mean expected distance over classes."""
        return float(np.mean(self.expected_distances()))

    def warm_up(self) -> None:
        """Derive all that predictions need."""
        super().warm_up()
        self.expected_distances()
        self.expected_distances(range(len(self.labels)))


def _half_way(exhaustive: ExhaustiveDistances) -> list[float | None]:
    """While no class has enough samples: half way to the nearest other class, squared."""
    if len(exhaustive.precisions) < 2:
        return [None]
    xp = namespace(exhaustive.origin)
    centers = xp.stack([precision.center for precision in exhaustive.precisions])
    distances = exhaustive(centers) / exhaustive.scales  # each class has its own factor
    apart = add_to_diagonal(distances, float(xp.max(distances)) + 1)
    return [float(value) / 4 for value in xp.min(apart, axis=1)]
