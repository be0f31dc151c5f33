"""Factors that were derived once, and are good for as long as what they came from.

Statistics are immutable, so "nothing has changed" is "the same object": no call has to say what it
invalidates. Without a pooling prior a lesson about one class makes one new factor. With one, the
prior is allowed to lag behind (see `fecam.core.prior`), for otherwise each lesson would make all
factors anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from fecam.core.arrays import Array, add_to_diagonal, namespace, on_host
from fecam.core.calibration import expected_distances, mean_square_length, own_distance
from fecam.core.covariance import pooled
from fecam.core.factors import Factor, Frame, framed_factor, make_frame, whiten
from fecam.core.knowledge import Knowledge
from fecam.core.metric import (
    Metric,
    centre_of,
    class_covariance,
    mean_variance,
    scale_of,
    shared_covariance,
)
from fecam.core.panel import AnyFactor, Panel
from fecam.core.prior import Prior, is_stale, make_prior
from fecam.core.search import Search
from fecam.core.statistics import ClassStatistics
from fecam.core.thin import Spectrum, ThinFactor, is_thin, spectrum_of, thin_factor
from fecam.errors import SingularMatrixError

FRAME_CLASSES = 16
"""From so many classes on a frame is worth its rotation of every query."""
FRAME_WIDTH = 64
"""And from so many features on."""


@dataclass(eq=False)
class FactorCache:
    """The derived side of a model: drop it at any time and only time is lost."""

    metric: Metric | None = None
    prior: Prior | None = None
    frame: Frame | None = None
    _by_class: dict[Hashable, tuple[tuple[object, ...], AnyFactor, Frame | None]] = field(
        default_factory=dict
    )
    _shared: tuple[tuple[ClassStatistics, ...], list[Factor]] | None = None
    _own: dict[Hashable, tuple[AnyFactor, float | None]] = field(default_factory=dict)
    _spectrum: Spectrum | None = None
    _panel: Panel | None = None
    _search: Search | None = None

    def fork(self) -> FactorCache:
        """A cache that starts with what this one has, and goes its own way."""
        return replace(self, _by_class=dict(self._by_class), _own=dict(self._own))

    def start_from(self, metric: Metric, prior: Prior | None) -> None:
        """Take a prior that was made before, under this metric; None to make one when needed."""
        self._use(metric)
        self.prior = prior

    def panel(self, known: Knowledge, metric: Metric) -> Panel:
        """All classes, ready to be measured against."""
        factors = self.factors(known, metric)
        if self._panel is None or not _same(self._panel.factors, factors):
            self._panel = Panel(factors, known.anchor.dtype)
        return self._panel

    def search(self, known: Knowledge, metric: Metric) -> Search | None:
        """A search that need not measure every class; None where it would not be worth it."""
        panel = self.panel(known, metric)
        if self.frame is None or metric.is_shared or not on_host(known.anchor):
            return None
        if self._search is None or self._search.panel is not panel:
            self._search = Search(panel, self.frame, self._search)
        return self._search

    def factors(self, known: Knowledge, metric: Metric) -> list[AnyFactor]:
        """One factor a class, in the order of the classes."""
        self._use(metric)
        if metric.is_shared:
            return list(self._shared_factors(known, metric))
        prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
        self.frame = self._renewed_frame(known, metric)
        # Only matrices that are not normalised have a size that a class without spread must match.
        spare = mean_variance(known.classes.values()) if metric.normalization is None else 1.0
        return [
            self._class_factor(label, one, metric, known, prior, spare)
            for label, one in known.classes.items()
        ]

    def _renewed_frame(self, known: Knowledge, metric: Metric) -> Frame | None:
        """The frame, made anew when there are twice as many classes; none for few classes."""
        count = len(known.classes)
        if metric.covariance != "class" or count < FRAME_CLASSES or known.width < FRAME_WIDTH:
            return None
        if self.frame is not None and self.frame.classes <= count <= 2 * self.frame.classes:
            return self.frame
        within, _ = pooled(known.classes.values())
        xp = namespace(within)
        centres = [centre_of(one, metric, known.transform) for one in known.classes.values()]
        if metric.unit_compare:
            lengths = [mean_square_length(one) for one in known.classes.values()]
            within = within * (count / sum(lengths))
        return make_frame(within, xp.stack(centres, axis=0))

    def renew(self, known: Knowledge) -> None:
        """Drop the prior, and all that came from statistics that are no longer known."""
        self.prior = self._shared = self.frame = self._panel = self._search = None
        current = set(map(id, known.classes.values()))
        for label in [k for k, made in self._by_class.items() if id(made[0][0]) not in current]:
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
        panel = self.panel(known, metric)
        factors = panel.factors
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
            own = _from_centres(panel)
        values = expected_distances(known.classes.values(), own)
        return [value * factor.scale for value, factor in zip(values, factors, strict=True)]

    def _use(self, metric: Metric) -> None:
        if metric != self.metric:  # settings were changed after learning
            self.metric, self.prior, self._shared = metric, None, None
            self.frame = self._panel = self._search = None
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
    ) -> AnyFactor:
        # Only a class without any spread takes what is spare.
        comes_of = (one, prior, spare if one.count == 1 else None)
        made = self._by_class.get(label)
        # Rows need no frame; all else was made for one, even if it could have been rows.
        if (
            made is not None
            and _same(made[0], comes_of)
            and (isinstance(made[1], ThinFactor) or made[2] is self.frame)
        ):
            return made[1]
        try:
            factor = self._new_factor(one, metric, known, prior, spare)
        except SingularMatrixError as error:
            raise _explained(f"The matrix of class {label!r}", metric, error) from None
        self._by_class[label] = (comes_of, factor, self.frame)
        return factor

    def _new_factor(
        self,
        one: ClassStatistics,
        metric: Metric,
        known: Knowledge,
        prior: Prior | None,
        spare: float,
    ) -> AnyFactor:
        """Through its rows if it has few, through a triangle in the frame, or just through any."""
        centre = centre_of(one, metric, known.transform)
        dtype, scale = known.anchor.dtype, scale_of(one, metric)
        factor: AnyFactor | None = None
        if is_thin(one, metric):
            spectrum = None if prior is None else self._spectrum_of(prior, dtype)
            factor = thin_factor(one, metric, spectrum, centre, dtype, scale=scale, spare=spare)
        if factor is not None:
            return factor
        covariance = class_covariance(one, metric, prior, spare)
        if self.frame is not None and covariance.ndim == 2:
            factor = framed_factor(covariance, centre, self.frame, dtype, scale)
        if factor is not None:
            return factor
        return Factor(centre, _cast(whiten(covariance, _precision(known)), known), scale)

    def _spectrum_of(self, prior: Prior, dtype: object) -> Spectrum:
        if self._spectrum is None or self._spectrum.prior is not prior:
            self._spectrum = spectrum_of(prior, dtype)
        return self._spectrum

    def _shared_factors(self, known: Knowledge, metric: Metric) -> list[Factor]:
        statistics = tuple(known.classes.values())
        if self._shared is None or not _same(self._shared[0], statistics):
            whitening = _cast(_shared_whitening(known, metric), known)
            factors = [
                Factor(centre_of(one, metric, known.transform), whitening, scale_of(one, metric))
                for one in statistics
            ]
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


def _from_centres(panel: Panel) -> list[float | None]:
    """While no class has samples enough: half the way to the nearest other class, squared."""
    if len(panel.factors) < 2:
        return [None]
    xp = namespace(panel.origin)
    distances = panel.distances(xp.stack([factor.centre for factor in panel.factors]))
    apart = add_to_diagonal(distances, float(xp.max(distances)) + 1)
    return [float(value) / 4 for value in xp.min(apart, axis=1)]


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


def _same(a: Sequence[object], b: Sequence[object]) -> bool:
    """The same objects; numbers count as such by their value."""
    return len(a) == len(b) and all(
        one is other or (isinstance(one, float) and one == other)
        for one, other in zip(a, b, strict=True)
    )
