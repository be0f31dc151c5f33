"""Quadratic discriminant analysis without determinants: the nearest class by Mahalanobis distance.

A `Predictor` holds what this needs, derived from one state under one metric: a precision matrix per
class, and an exact search over them. It is a value: a new state or metric gets a new predictor,
which takes over what is still valid from the previous one. Statistics are immutable, so "still
valid" means "derived from the same objects". Without a pooling prior, learning one class derives
one precision. With one, the prior may lag behind the statistics (`fecam.core.prior`); otherwise
each batch would derive all of them again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fecam.core.arrays import Array, eye, is_cpu, namespace, to_float64, to_numpy
from fecam.core.bounds import CGBounds
from fecam.core.covariance import pooled, scatter_of, whiten
from fecam.core.distances import ExhaustiveDistances, Neighbors, k_smallest
from fecam.core.metric import (
    Metric,
    class_covariance,
    distance_scale,
    mean_variance,
    prototype_of,
    shared_covariance,
)
from fecam.core.precision import (
    BlockCholesky,
    DensePrecision,
    LowRankPrecision,
    Precision,
    block_cholesky,
    is_low_rank,
    low_rank_precision,
    shared_basis,
)
from fecam.core.prior import Prior, PriorSpectrum, spectrum_of, updated_prior
from fecam.core.scatter import diagonal_of
from fecam.core.search import PrunedSearch, search_cold
from fecam.core.softmax import SOFTMAX_CUTOFF, softmax_sum
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics, mean_square_length
from fecam.core.threads import in_parallel
from fecam.core.tuning import TUNING, SearchTuning
from fecam.errors import SingularMatrixError


class _Derived(NamedTuple):
    """A precision, and the objects it was derived from."""

    precision: Precision
    stats: ClassStatistics
    prior: Prior | None
    fallback_variance: float | None
    """The variance assumed for a class without any; None for all others."""
    axes: Array | None


class Predictor:
    """Precisions and bounds of all classes, derived when first needed."""

    def __init__(
        self,
        state: ClassifierState,
        metric: Metric,
        *,
        previous: Predictor | None = None,
        prior: Prior | None = None,
        tuning: SearchTuning = TUNING,
    ) -> None:
        self.state, self.metric, self.tuning = state, metric, tuning
        self.labels = list(state.classes)
        self._stats = list(state.classes.values())
        self._last_prior = prior  # it may lag behind the state
        self._derived: dict[Hashable, _Derived] = {}
        self._last_spectrum: PriorSpectrum | None = None
        self._basis: tuple[Array, int] | None = None
        self._inherited: tuple[ExhaustiveDistances, PrunedSearch | None] | None = None
        self._marginals: Mapping[Precision, BlockCholesky] = {}
        self._cg_spent = 0.0
        if (
            previous is None
            or previous.metric != metric
            or previous.state.n_features != state.n_features  # one of them is compressed
        ):
            return
        self._basis, self._cg_spent = previous._basis, previous._cg_spent
        self._last_spectrum = vars(previous).get("_spectrum", previous._last_spectrum)
        classes = state.classes
        self._derived = {
            label: derived
            for label, derived in previous._derived.items()
            if classes.get(label) is derived.stats
        }
        if "exhaustive" in vars(previous):
            search = vars(previous).get("pruned_search")
            self._inherited = previous.exhaustive, search
            self._marginals = previous._marginals if search is None else search.marginals
            self._cg_spent = 0.0

    def refreshed(self) -> Self:
        """A predictor of the same state whose prior and basis are computed again."""
        fresh = type(self)(self.state, self.metric, tuning=self.tuning)
        fresh._derived = {
            k: derived for k, derived in self._derived.items() if derived.axes is None
        }
        return fresh

    # ------------------------------------------------------------------ what classes share

    @property
    def last_prior(self) -> Prior | None:
        """The prior in use, without computing one; None before it is needed."""
        prior: Prior | None = vars(self).get("prior", self._last_prior)
        return prior

    @cached_property
    def prior(self) -> Prior | None:
        """The pooled prior; None if no scatter is stored."""
        return self.updated_prior(may_lag=False)

    def updated_prior(self, *, may_lag: bool) -> Prior | None:
        """The last prior, or a new one if it lags too far behind."""
        if self.state.scatter_kind == "none":
            return None
        return updated_prior(
            self.last_prior,
            self._stats,
            self.metric.pooling,
            only_variances=self.metric.covariance == "diagonal",
            may_lag=may_lag,
        )

    @cached_property
    def dof(self) -> int:
        """The degrees of freedom of all classes."""
        return sum(stats.count - 1 for stats in self._stats)

    @property
    def class_prior(self) -> Prior | None:
        """The prior that the covariances of single classes are pulled to, if any."""
        return self.prior if self.metric.has_prior else None

    @cached_property
    def _spectrum(self) -> PriorSpectrum | None:
        prior, last = self.class_prior, self._last_spectrum
        if prior is None:
            return None
        is_valid = last is not None and last.prior is prior
        return last if is_valid else spectrum_of(prior, self.state.like.dtype)

    @cached_property
    def fallback_variance(self) -> float:
        """The variance of a class without any: only unnormalized matrices have a scale."""
        return 1.0 if self.metric.normalization is not None else mean_variance(self._stats)

    @property
    def _uses_basis(self) -> bool:
        return (
            self.metric.covariance == "class"
            and len(self.labels) >= self.tuning.min_basis_classes
            and self.state.n_features >= self.tuning.min_basis_features
        )

    @property
    def _basis_is_valid(self) -> bool:
        """Whether the basis was computed for at least half and at most all of the classes."""
        return self._basis is not None and (
            self._basis[1] <= len(self.labels) <= 2 * self._basis[1]
        )

    @cached_property
    def axes(self) -> Array | None:
        """The shared basis, a column per axis; None for few classes."""
        if not self._uses_basis:
            return None
        if not self._basis_is_valid:
            within, _ = pooled(self._stats)
            if self.metric.unit_compare:
                within = within * (len(self._stats) / sum(map(mean_square_length, self._stats)))
            axes = shared_basis(within, self.prototypes)
            self._basis = axes, len(self.labels)
        assert self._basis is not None
        return self._basis[0]

    # ------------------------------------------------------------------ precisions

    @cached_property
    def precisions(self) -> list[Precision]:
        """One precision per class, in the order of the classes."""
        if self.metric.is_shared:
            return self._shared_precisions()
        _ = self.axes
        missing = [label for label in self.labels if not self._is_current(label)]
        self._derive_shared(missing)
        if is_cpu(self.state.like):
            in_parallel(self._derive, missing)
        else:
            for label in missing:
                self._derive(label)
        return [self._derived[label].precision for label in self.labels]

    def _derive_shared(self, labels: Iterable[Hashable]) -> None:
        """Derive what new precisions of classes share, once, before threads need it."""
        _ = self.class_prior
        missing = [self.state.classes[label] for label in labels if not self._valid(label)]
        if any(is_low_rank(stats, self.metric) for stats in missing):
            _ = self._spectrum

    def precision_of(self, index: int) -> Precision:
        """The precision of one class, in whatever basis there is, or in none."""
        if self.metric.is_shared:
            return self.precisions[index]
        label = self.labels[index]
        return (self._valid(label) or self._derive(label)).precision

    def _valid(self, label: Hashable) -> _Derived | None:
        """The precision of a class, if it was derived from the present objects."""
        derived = self._derived.get(label)
        if derived is None or derived.prior is not self.class_prior:
            return None
        fallback = derived.fallback_variance
        return derived if fallback is None or fallback == self.fallback_variance else None

    def _is_current(self, label: Hashable) -> bool:
        """Whether the precision is valid, and in the present basis if it needs one."""
        derived = self._valid(label)
        return derived is not None and (
            isinstance(derived.precision, LowRankPrecision) or derived.axes is self.axes
        )

    def _derive(self, label: Hashable) -> _Derived:
        stats, prior = self.state.classes[label], self.class_prior
        fallback = self._fallback_of(stats)
        axes = vars(self).get("axes", self._basis[0] if self._basis else None)
        try:
            precision = self._new_precision(stats, 1.0 if fallback is None else fallback, axes)
        except SingularMatrixError as error:
            raise _explained(f"The matrix of class {label!r}", self.metric, error) from None
        if isinstance(precision, LowRankPrecision):
            axes = None  # it does not depend on the basis
        derived = self._derived[label] = _Derived(precision, stats, prior, fallback, axes)
        return derived

    def _fallback_of(self, stats: ClassStatistics) -> float | None:
        """The variance assumed for a class without any; None for all others."""
        if self.metric.normalization is not None:
            return None
        has_variance = _has_variance(stats, self.metric, self.class_prior)
        return None if has_variance else self.fallback_variance

    def _new_precision(
        self, stats: ClassStatistics, fallback_variance: float, axes: Array | None
    ) -> Precision:
        """The cheapest form that is accurate: low rank, in the shared basis, or dense."""
        metric, dtype = self.metric, self.state.like.dtype
        center = prototype_of(stats, metric, self.state.transform)
        scale = distance_scale(stats, metric)
        precision: Precision | None = None
        if is_low_rank(stats, metric):
            precision = low_rank_precision(
                stats,
                metric,
                self._spectrum,
                center,
                dtype,
                scale=scale,
                fallback_variance=fallback_variance,
                tuning=self.tuning,
            )
        if precision is not None:
            return precision
        covariance = class_covariance(stats, metric, self.class_prior, fallback_variance)
        if axes is not None and covariance.ndim == 2:
            precision = block_cholesky(covariance, center, axes, dtype, scale, self.tuning)
        if precision is not None:
            return precision
        return DensePrecision(center, self._cast(whiten(covariance, self._eps)), scale)

    def _shared_precisions(self) -> list[Precision]:
        whitening = None
        if self.metric.covariance != "identity":
            try:
                whitening = self._cast(whiten(self._shared_covariance(), self._eps))
            except SingularMatrixError as error:
                what = f"The {self.metric.covariance} matrix"
                raise _explained(what, self.metric, error) from None
        transform = self.state.transform
        return [
            DensePrecision(
                prototype_of(stats, self.metric, transform),
                whitening,
                distance_scale(stats, self.metric),
            )
            for stats in self._stats
        ]

    def _shared_covariance(self) -> Array:
        """The matrix of all classes."""
        tasks: dict[int, list[ClassStatistics]] = {}
        for label, stats in self.state.classes.items():
            tasks.setdefault(self.state.tasks[label], []).append(stats)
        return shared_covariance(list(tasks.values()), self.metric)

    def covariance_of(self, label: Hashable) -> Array:
        """The matrix of a class whose inverse gives its squared distances."""
        stats, metric = self.state.stats_of(label), self.metric
        if metric.covariance == "identity":
            covariance = eye(self.state.n_features, stats.mean)
        elif metric.is_shared:
            covariance = self._shared_covariance()
        else:
            fallback = self._fallback_of(stats)
            covariance = class_covariance(
                stats, metric, self.class_prior, 1.0 if fallback is None else fallback
            )
        if covariance.ndim == 1:
            covariance = eye(self.state.n_features, covariance) * covariance
        return covariance / distance_scale(stats, metric)

    @property
    def prototypes(self) -> Array:
        """The prototypes of all classes, one per row."""
        centers = [prototype_of(s, self.metric, self.state.transform) for s in self._stats]
        return namespace(centers[0]).stack(centers, axis=0)

    @property
    def _eps(self) -> float:
        return float(namespace(self.state.like).finfo(self.state.like.dtype).eps)

    def _cast(self, x: Array) -> Array:
        return namespace(x).astype(x, self.state.like.dtype, copy=False)

    # ------------------------------------------------------------------ distances

    @cached_property
    def exhaustive(self) -> ExhaustiveDistances:
        """Distances to all classes."""
        precisions = self.precisions
        vars(self).pop("cg_bounds", None)  # no longer needed
        if self._inherited is not None and _same(self._inherited[0].precisions, precisions):
            return self._inherited[0]
        self._inherited = None
        return ExhaustiveDistances(precisions, self.state.like.dtype, self.tuning)

    @cached_property
    def pruned_search(self) -> PrunedSearch | None:
        """Filter and refine over all classes; None where it does not pay off."""
        exhaustive, inherited = self.exhaustive, self._inherited
        self._inherited = None
        if self.metric.is_shared or self.axes is None or not is_cpu(self.state.like):
            return None
        if inherited is not None and inherited[1] is not None:
            return inherited[1]
        return PrunedSearch(exhaustive, self.axes, self.tuning, self._marginals)

    def distance_to(self, queries: Array, index: int) -> Array:
        """Squared distances to one class; no other precision is derived."""
        precision = self.precision_of(index)
        differences = to_float64(queries) - to_float64(precision.center)
        return precision.squared_mahalanobis(self._cast(differences)) * precision.scale

    def nearest(
        self, queries: Array, k: int, temperature: float = 0.0, search: str = "auto"
    ) -> Neighbors:
        """Return the ``k`` nearest classes of each query, and the softmax sum if wanted.

        The softmax sum runs over classes within `SOFTMAX_CUTOFF` temperatures of the nearest, in
        distances that are not squared; a temperature of 0 skips it.
        """
        reduce = partial(_neighbors, k=k, temperature=temperature, dtype=self.state.like.dtype)
        radius = SOFTMAX_CUTOFF * temperature
        if search != "exhaustive":
            cold = self._nearest_cold(queries, k, radius, reduce)
            if cold is not None:
                return cold
            pruned = self.pruned_search if 4 * k <= len(self.labels) else None
            if pruned is not None and (
                search != "auto" or pruned.beats_exhaustive(queries.shape[0])
            ):
                epsilon = self.tuning.epsilon if search == "approximate" else 0.0
                if temperature:  # a sum over classes suffers from each that is missing
                    epsilon /= 2
                return _concatenate(pruned.search(queries, k, radius, epsilon, reduce))
        return _concatenate([reduce(block) for block in self.exhaustive.blocks(queries)])

    def _nearest_cold(
        self, queries: Array, k: int, radius: float, reduce: partial[Neighbors]
    ) -> Neighbors | None:
        """The nearest classes before precisions are derived; None where deriving them is better.

        The ski-rental rule: once such searches have cost as much as deriving all precisions would,
        these are derived, so the total cost is at most twice the better of the two.
        """
        metric, tuning = self.metric, self.tuning
        if (
            "exhaustive" in vars(self)
            or metric.covariance != "class"
            or metric.shrinkage[0] < tuning.cg_min_floor
            or (metric.off_diagonal != "all" and metric.has_prior)
            or not is_cpu(self.state.like)
        ):
            return None
        ranks = self._missing_ranks()
        evaluations = len(self.labels) + k * tuning.cg_cost * max(ranks, default=0)
        spent = self._cg_spent + queries.shape[0] * evaluations
        flops = sum(ranks) * self.state.n_features**2
        if flops < tuning.cg_min_flops or spent > tuning.cg_cost * sum(ranks):
            return None
        self._cg_spent = spent
        rows = to_numpy(queries)
        return search_cold(self.cg_bounds, self.precision_of, rows, k, radius, reduce, tuning)

    @cached_property
    def cg_bounds(self) -> CGBounds:
        """Bounds that need no precisions."""
        return CGBounds(
            self.state,
            self.metric,
            self.class_prior,
            lambda: self.fallback_variance,
            self.tuning,
        )

    def _missing_ranks(self) -> list[int]:
        """The ranks of the matrices whose precisions are not derived: what deriving them costs."""
        ranks = []
        new_basis = self._uses_basis and not self._basis_is_valid
        axes = self._basis[0] if self._basis and self._uses_basis else None
        for label, stats in self.state.classes.items():
            derived = self._valid(label)
            if derived is not None and (
                isinstance(derived.precision, LowRankPrecision)
                or (not new_basis and derived.axes is axes)
            ):
                continue
            ranks.append(self._rank(stats))
        return ranks

    def _rank(self, stats: ClassStatistics) -> int:
        """The rank of the matrix of a class, which the cost of its precision grows with."""
        return stats.count - 1 if is_low_rank(stats, self.metric) else self.state.n_features

    def with_state(self, state: ClassifierState) -> Self:
        """The predictor of a state that differs in measurements of samples only."""
        other = copy(self)
        other.state, other._stats = state, list(state.classes.values())
        other._derived = {
            label: derived._replace(stats=state.classes[label])
            for label, derived in self._derived.items()
        }
        return other

    def warm_up(self) -> None:
        """Derive all that predictions need."""
        _ = self.exhaustive, self.pruned_search


def _neighbors(
    distances: Array,
    tied: NDArray[Any] | None = None,
    *,
    k: int,
    temperature: float,
    dtype: Any,
) -> Neighbors:
    """The ``k`` smallest distances per row; without ``tied`` rows, each row may have ties."""
    xp = namespace(distances)
    if tied is None:
        indices = k_smallest(distances, k)
    else:
        indices = np.argmin(distances, axis=1)[:, None] if k == 1 else _argsort(distances, k)
        indices[tied] = k_smallest(distances[tied].astype(_numpy_dtype(dtype)), k)
    ranked = xp.take_along_axis(distances, indices, axis=1)
    return Neighbors(indices, ranked, softmax_sum(distances, temperature))


def _argsort(distances: NDArray[Any], k: int) -> NDArray[Any]:
    columns = np.argpartition(distances, k - 1, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(distances, columns, axis=1), axis=1)
    return np.take_along_axis(columns, order, axis=1)


def _numpy_dtype(dtype: Any) -> Any:
    return np.float64 if "64" in str(dtype) else np.float32


def _concatenate(parts: list[Neighbors]) -> Neighbors:
    if len(parts) == 1:
        return parts[0]
    xp = namespace(parts[0].distances)
    return Neighbors(*(xp.concat(arrays) for arrays in zip(*parts, strict=True)))


def _has_variance(stats: ClassStatistics, metric: Metric, prior: Prior | None) -> bool:
    """Whether the covariance of a class is anything but zero."""
    if prior is not None and prior.whitening is not None:
        return True
    diagonal = diagonal_of(scatter_of(stats, average_domains=metric.average_domains))
    return bool(namespace(diagonal).any(diagonal != 0))


def _explained(what: str, metric: Metric, error: SingularMatrixError) -> SingularMatrixError:
    g1, g2 = metric.shrinkage
    return SingularMatrixError(
        f"{what} is not positive definite under shrinkage=({g1:g}, {g2:g}): {error}. "
        "Raise the first number or lower the second with set_params(shrinkage=...); "
        "what was learned is unaffected."
    )


def _same(a: Sequence[object], b: Sequence[object]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
