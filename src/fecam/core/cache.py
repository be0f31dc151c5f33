"""Factors that were derived once, and are good for as long as what they came from.

Statistics are immutable, so "nothing has changed" is "the same object": no call has to say what it
invalidates. Without a pooling prior a lesson about one class makes one new factor. With one, the
prior is allowed to lag behind (see `fecam.core.prior`), for otherwise each lesson would make all
factors anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from fecam.core.arrays import Array, add_to_diagonal, namespace
from fecam.core.calibration import expected_distances, own_distance
from fecam.core.factors import Factor, whiten
from fecam.core.knowledge import Knowledge
from fecam.core.metric import (
    Metric,
    centre_of,
    class_covariance,
    mean_variance,
    scale_of,
    shared_covariance,
)
from fecam.core.prior import Prior, is_stale, make_prior
from fecam.core.search import squared_distances
from fecam.core.statistics import ClassStatistics
from fecam.errors import SingularMatrixError


@dataclass(eq=False)
class FactorCache:
    """The derived side of a model: drop it at any time and only time is lost."""

    metric: Metric | None = None
    prior: Prior | None = None
    _by_class: dict[Hashable, tuple[ClassStatistics, Prior | None, Factor]] = field(
        default_factory=dict
    )
    _shared: tuple[tuple[ClassStatistics, ...], list[Factor]] | None = None
    _own: dict[Hashable, tuple[Factor, float | None]] = field(default_factory=dict)

    def factors(self, known: Knowledge, metric: Metric) -> list[Factor]:
        """One factor a class, in the order of the classes."""
        self._use(metric)
        if metric.is_shared:
            return self._shared_factors(known, metric)
        prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
        # Only matrices that are not normalised have a size that a class without spread must match.
        spare = mean_variance(known.classes.values()) if metric.normalization is None else 1.0
        return [
            self._class_factor(label, one, metric, known, prior, spare)
            for label, one in known.classes.items()
        ]

    def renew(self, known: Knowledge) -> None:
        """Drop the prior, and all that came from statistics that are no longer known."""
        self.prior = self._shared = None
        current = set(map(id, known.classes.values()))
        for label in [k for k, made in self._by_class.items() if id(made[0]) not in current]:
            del self._by_class[label]
        self._own.clear()

    def renewed_prior(self, known: Knowledge, metric: Metric, *, may_lag: bool) -> Prior | None:
        """The prior, made anew if it lags too far behind; None if no scatter is kept.

        Where it ``may_lag`` (it is only a yardstick) it does so even where a new one is cheap.
        """
        self._use(metric)
        statistics = list(known.classes.values())
        if known.form == "none":
            return None
        if self.prior is None or is_stale(self.prior, statistics, may_lag=may_lag):
            diagonal = metric.covariance == "diagonal"
            self.prior = make_prior(statistics, metric.pooling, only_variances=diagonal)
        return self.prior

    def expected(self, known: Knowledge, metric: Metric) -> list[float]:
        """The squared distance expected of a new sample of each class, as `factors` measure it."""
        factors = self.factors(known, metric)
        freedom = sum(one.count - 1 for one in known.classes.values())
        prior = self.prior if metric.has_prior else None
        own = []
        for (label, one), factor in zip(known.classes.items(), factors, strict=True):
            made = self._own.get(label)
            if made is None or made[0] is not factor:
                made = (factor, own_distance(one, factor, metric, prior, freedom))
                self._own[label] = made
            own.append(made[1])
        if all(value is None for value in own):
            own = _from_centres(factors)
        values = expected_distances(known.classes.values(), own)
        return [value * factor.scale for value, factor in zip(values, factors, strict=True)]

    def _use(self, metric: Metric) -> None:
        if metric != self.metric:  # settings were changed after learning
            self.metric, self.prior, self._shared = metric, None, None
            self._by_class.clear()
            self._own.clear()

    def _class_factor(
        self,
        label: Hashable,
        one: ClassStatistics,
        metric: Metric,
        known: Knowledge,
        prior: Prior | None,
        spare: float,
    ) -> Factor:
        made = self._by_class.get(label)
        if made is not None and made[0] is one and made[1] is prior:
            return made[2]
        try:
            whitening = whiten(class_covariance(one, metric, prior, spare), _precision(known))
        except SingularMatrixError as error:
            raise _explained(f"The matrix of class {label!r}", metric, error) from None
        factor = _factor(one, metric, known, whitening)
        self._by_class[label] = (one, prior, factor)
        return factor

    def _shared_factors(self, known: Knowledge, metric: Metric) -> list[Factor]:
        statistics = tuple(known.classes.values())
        if self._shared is None or not _same(self._shared[0], statistics):
            whitening = _cast(_shared_whitening(known, metric), known)
            factors = [_factor(one, metric, known, whitening) for one in statistics]
            self._shared = (statistics, factors)
        return self._shared[1]


def _shared_whitening(known: Knowledge, metric: Metric) -> Array | None:
    if metric.covariance == "identity":
        return None
    tasks: dict[int, list[ClassStatistics]] = {}
    for label, one in known.classes.items():
        tasks.setdefault(known.tasks[label], []).append(one)
    try:
        return whiten(shared_covariance(list(tasks.values()), metric), _precision(known))
    except SingularMatrixError as error:
        raise _explained(f"The {metric.covariance} matrix", metric, error) from None


def _factor(
    one: ClassStatistics, metric: Metric, known: Knowledge, whitening: Array | None
) -> Factor:
    centre = centre_of(one, metric, known.transform)
    return Factor(centre, _cast(whitening, known), scale_of(one, metric))


def _from_centres(factors: list[Factor]) -> list[float | None]:
    """While no class has samples enough: half the way to the nearest other class, squared."""
    if len(factors) < 2:
        return [None]
    xp = namespace(factors[0].centre)
    centres = xp.stack([factor.centre for factor in factors])
    distances = squared_distances(centres, factors, _dtype_of(factors[0], centres))
    apart = add_to_diagonal(distances, float(xp.max(distances)) + 1)
    return [float(value) / 4 for value in xp.min(apart, axis=1)]


def _dtype_of(factor: Factor, centres: Array) -> object:
    return centres.dtype if factor.whitening is None else factor.whitening.dtype


def _precision(known: Knowledge) -> float:
    return float(namespace(known.anchor).finfo(known.anchor.dtype).eps)


def _cast(x: Array | None, known: Knowledge) -> Array | None:
    return None if x is None else namespace(x).astype(x, known.anchor.dtype, copy=False)


def _explained(what: str, metric: Metric, error: SingularMatrixError) -> SingularMatrixError:
    g1, g2 = metric.shrinkage
    return SingularMatrixError(
        f"{what} is not positive definite under shrinkage=({g1:g}, {g2:g}): {error}. "
        "Raise the first number or lower the second with set_params(shrinkage=...); "
        "what was learnt is unaffected."
    )


def _same(a: tuple[ClassStatistics, ...], b: tuple[ClassStatistics, ...]) -> bool:
    return len(a) == len(b) and all(one is other for one, other in zip(a, b, strict=True))
