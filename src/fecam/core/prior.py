"""The prior that classes share: which matrix, and how many samples it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fecam.core.arrays import Array
from fecam.core.covariance import pooled
from fecam.core.statistics import ClassStatistics

GROWTH = 1.5
"""A lagging prior is renewed once this many times its degrees of freedom have been seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The pooled matrix at some moment, and the strength it is given."""

    covariance: Array
    strength: float
    freedom: int
    """Degrees of freedom, sum of (n - 1), that the matrix was made from."""


def make_prior(
    statistics: Sequence[ClassStatistics], strength: float | Literal["auto"]
) -> Prior:
    """The prior that these classes give."""
    covariance, freedom = pooled(statistics)
    if strength == "auto":
        strength = covariance.shape[0] / 2
    return Prior(covariance, float(strength), freedom)


def is_stale(prior: Prior, statistics: Sequence[ClassStatistics]) -> bool:
    """Whether so much has been learnt since that the prior must be renewed."""
    return sum(one.count - 1 for one in statistics) > GROWTH * prior.freedom
