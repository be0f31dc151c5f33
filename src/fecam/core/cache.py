"""Factors that were derived once, and are good for as long as what they came from.

Statistics are immutable, so "nothing has changed" is "the same object": no call has to say what it
invalidates. Without a pooling prior a lesson about one class makes one new factor. With one, the
prior is allowed to lag behind (see `fecam.core.prior`), for otherwise each lesson would make all
factors anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from fecam.core.arrays import Array, add_to_diagonal, is_cpu, namespace
from fecam.core.calibration import (
    evenly,
    expected_distances,
    is_telling,
    mean_square_length,
    own_distance,
    usual_distance,
)
from fecam.core.covariance import pooled, scatter_of
from fecam.core.factors import Factor, Frame, framed_factor, make_frame, whiten
from fecam.core.glance import Glance, can_glance
from fecam.core.metric import (
    Metric,
    class_covariance,
    distance_scale,
    mean_variance,
    prototype_of,
    shared_covariance,
)
from fecam.core.panel import AnyFactor, Found, Panel
from fecam.core.prior import Prior, is_stale, make_prior
from fecam.core.scatter import diagonal_of
from fecam.core.search import Search
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.thin import Spectrum, ThinFactor, is_thin, spectrum_of, thin_factor
from fecam.errors import SingularMatrixError

FRAME_CLASSES = 16
"""From so many classes on a frame is worth its rotation of every query."""
FRAME_WIDTH = 64
"""And from so many features on."""
WORTH_A_GLANCE = 2e8
"""A glance is for models whose missing factors take more than so many multiplications (a few times
over)."""
LOOKS = 1 / 8
"""Looks at a class that take about as long as its factor would, for each row or feature of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A factor, and what it was made from."""

    factor: AnyFactor
    one: ClassStatistics
    prior: Prior | None
    spare: float | None
    """The variance that a class without any spread took; None for all others."""
    frame: Frame | None

    def is_in(self, frame: Frame | None) -> bool:
        """Whether the factor is good in this frame. Rows need none, if they could be taken."""
        return isinstance(self.factor, ThinFactor) or self.frame is frame


@dataclass(eq=False)
class FactorCache:
    """The derived side of a model: drop it at any time and only time is lost."""

    metric: Metric | None = None
    prior: Prior | None = None
    frame: Frame | None = None
    _by_class: dict[Hashable, _Made] = field(default_factory=dict)
    _shared: tuple[tuple[ClassStatistics, ...], list[Factor]] | None = None
    _own: dict[Hashable, tuple[AnyFactor, float | None]] = field(default_factory=dict)
    _expected: tuple[ClassifierState, Prior | None, dict[int, float]] | None = None
    """Of what was known, under which prior, the expected distances by position."""
    _spectrum: Spectrum | None = None
    _spared: tuple[ClassifierState, float] | None = None
    _panel: Panel | None = None
    _panel_of: ClassifierState | None = None
    _search: Search | None = None
    _glance: Glance | None = None
    _glanced: float = 0.0
    """What glances have cost since all factors were there, in looks of one query at one class."""

    def fork(self) -> FactorCache:
        """A cache that starts with what this one has, and goes its own way."""
        return replace(self, _by_class=dict(self._by_class), _own=dict(self._own))

    def start_from(self, metric: Metric, prior: Prior | None) -> None:
        """Take a prior that was made before, under this metric; None to make one when needed."""
        self._use(metric)
        self.prior, self._panel_of = prior, None

    def panel(self, known: ClassifierState, metric: Metric) -> Panel:
        """All classes, ready to be measured against."""
        self._use(metric)
        if self._panel is None or self._panel_of is not known:
            factors = self.factors(known, metric)
            if self._panel is None or not _same(self._panel.factors, factors):
                self._panel = Panel(factors, known.like.dtype)
            self._panel_of, self._glance, self._glanced = known, None, 0.0
        return self._panel

    def at_a_glance(
        self, queries: Array, k: int, known: ClassifierState, metric: Metric, warmth: float = 0.0
    ) -> Found | None:
        """The nearest classes of a few queries, sooner than factors could be made.

        None where factors are better. Each glance is paid for, and once all of them have cost as
        much as the factors would, these are made: so neither way is more than twice as dear as the
        better one would have been.
        """
        self._use(metric)
        if self._panel_of is known or not can_glance(known, metric):
            return None
        prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
        missing = self._missing_ranks(known, metric, prior)
        looks = len(known.classes) + k * LOOKS * max(missing, default=0)
        price = self._glanced + queries.shape[0] * looks
        if sum(missing) * known.n_features**2 < WORTH_A_GLANCE or price > LOOKS * sum(missing):
            return None
        self._glanced = price
        if self._glance is None or not _same(self._glance.made_of, (known, prior)):
            self._glance = Glance(known, metric, prior)
        labels = list(known.classes)
        return self._glance.find(
            queries,
            k,
            factor_of=lambda at: self._any_factor(labels[at], known, metric, prior),
            spare=lambda: self._spare(known, metric),
            warmth=warmth,
        )

    def search(self, known: ClassifierState, metric: Metric) -> Search | None:
        """A search that need not measure every class; None where it would not be worth it."""
        panel = self.panel(known, metric)
        if self.frame is None or metric.is_shared or not is_cpu(known.like):
            return None
        if self._search is None or self._search.panel is not panel:
            self._search = Search(panel, self.frame, self._search)
        return self._search

    def prepare(self, known: ClassifierState, metric: Metric) -> None:
        """Make all that answers need, without an answer."""
        if (search := self.search(known, metric)) is not None:
            search.prepare()
        self.expected(known, metric)
        self.expected(known, metric, range(len(known.classes)))

    def factors(self, known: ClassifierState, metric: Metric) -> list[AnyFactor]:
        """One factor a class, in the order of the classes."""
        self._use(metric)
        if metric.is_shared:
            return list(self._shared_factors(known, metric))
        prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
        self.frame = self._renewed_frame(known, metric)
        factors = []
        for label in known.classes:
            made = self._kept(label, known, metric, prior)
            if made is None or not made.is_in(self.frame):
                made = self._make(label, known, metric, prior)
            factors.append(made.factor)
        return factors

    def _missing_ranks(
        self, known: ClassifierState, metric: Metric, prior: Prior | None
    ) -> list[int]:
        """The ranks of the matrices whose factors would have to be made: what these take."""
        ranks, new_frame = [], self._needs_new_frame(known, metric)
        for label, one in known.classes.items():
            made = self._kept(label, known, metric, prior)
            thin = made is not None and isinstance(made.factor, ThinFactor)
            if not thin and (new_frame or made is None or made.frame is not self.frame):
                ranks.append(one.count - 1 if is_thin(one, metric) else known.n_features)
        return ranks

    def _needs_new_frame(self, known: ClassifierState, metric: Metric) -> bool:
        """Whether there is none, or one for less than half or more than all of the classes."""
        count = len(known.classes)
        if not _is_framed(known, metric):
            return False
        return self.frame is None or not self.frame.classes <= count <= 2 * self.frame.classes

    def _renewed_frame(self, known: ClassifierState, metric: Metric) -> Frame | None:
        """The frame, made anew when there are twice as many classes; none for few classes."""
        if not self._needs_new_frame(known, metric):
            return self.frame if _is_framed(known, metric) else None
        count = len(known.classes)
        within, _ = pooled(known.classes.values())
        xp = namespace(within)
        centres = [prototype_of(one, metric, known.transform) for one in known.classes.values()]
        if metric.unit_compare:
            lengths = [mean_square_length(one) for one in known.classes.values()]
            within = within * (count / sum(lengths))
        return make_frame(within, xp.stack(centres, axis=0))

    def renew(self, known: ClassifierState) -> None:
        """Drop the prior, and all that came from statistics that are no longer known."""
        self.prior = self._shared = self.frame = None
        self._panel = self._panel_of = self._search = self._glance = None
        current = set(map(id, known.classes.values()))
        for label in [k for k, made in self._by_class.items() if id(made.one) not in current]:
            del self._by_class[label]
        self._own.clear()
        self._expected = None

    def renewed_prior(
        self, known: ClassifierState, metric: Metric, *, may_lag: bool
    ) -> Prior | None:
        """The prior, made anew if it lags too far behind; None if no scatter is kept.

        Where it ``may_lag`` (it is only a yardstick) it does so even where a new one is cheap.
        """
        self._use(metric)
        statistics = list(known.classes.values())
        if known.scatter_kind == "none":
            return None
        if self.prior is None or is_stale(self.prior, statistics, may_lag=may_lag):
            diagonal = metric.covariance == "diagonal"
            self.prior = make_prior(statistics, metric.pooling, only_variances=diagonal)
        return self.prior

    def expected(
        self, known: ClassifierState, metric: Metric, positions: Sequence[int] | None = None
    ) -> list[float]:
        """The squared distance expected of a new sample of some classes, as `factors` measure it.

        By default of classes evenly spread over all.
        """
        self._use(metric)
        prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
        kept = self._expected
        if kept is None or kept[0] is not known or kept[1] is not prior:
            kept = self._expected = known, prior, {}
        asked = evenly(range(len(known.classes))) if positions is None else positions
        if missing := [at for at in asked if at not in kept[2]]:
            kept[2].update(self._new_expected(known, metric, missing))
        return [kept[2][at] for at in asked]

    def _new_expected(
        self, known: ClassifierState, metric: Metric, asked: Sequence[int]
    ) -> dict[int, float]:
        labels, classes = list(known.classes), list(known.classes.values())
        telling = evenly([at for at, one in enumerate(classes) if is_telling(one)])
        if telling:
            prior = self.renewed_prior(known, metric, may_lag=False) if metric.has_prior else None
            dof = sum(one.count - 1 for one in classes)
            own = {
                at: self._own_distance(labels[at], known, metric, prior, dof)
                for at in {*telling, *asked}
            }
        else:  # while no class has samples enough
            own = dict(enumerate(_from_centres(self.panel(known, metric))))
            telling = list(own)
        usual = usual_distance([classes[at] for at in telling], [own[at] for at in telling])
        some = [classes[at] for at in asked]
        values = expected_distances(some, [own[at] for at in asked], usual)
        return {
            at: value * distance_scale(one, metric)
            for at, value, one in zip(asked, values, some, strict=True)
        }

    def _own_distance(
        self, label: Hashable, known: ClassifierState, metric: Metric, prior: Prior | None, dof: int
    ) -> float | None:
        one = known.classes[label]
        if not is_telling(one):
            return None
        factor = self._any_factor(label, known, metric, prior)
        made = self._own.get(label)
        if made is None or made[0] is not factor:
            value = own_distance(one, factor, metric, prior, dof)
            made = self._own[label] = (factor, value)
        return made[1]

    def _use(self, metric: Metric) -> None:
        if metric != self.metric:  # settings were changed after learning
            self.metric, self.prior, self._shared = metric, None, None
            self.frame = self._panel = self._panel_of = self._search = self._glance = None
            self._by_class.clear()
            self._own.clear()
            self._expected = None

    def _any_factor(
        self, label: Hashable, known: ClassifierState, metric: Metric, prior: Prior | None
    ) -> AnyFactor:
        """The factor of one class, in whatever frame there is, or in none."""
        if metric.is_shared:
            return self._shared_factors(known, metric)[list(known.classes).index(label)]
        made = self._kept(label, known, metric, prior)
        return (made or self._make(label, known, metric, prior)).factor

    def _kept(
        self, label: Hashable, known: ClassifierState, metric: Metric, prior: Prior | None
    ) -> _Made | None:
        """The factor that was made of just this."""
        made = self._by_class.get(label)
        if made is None or made.one is not known.classes[label] or made.prior is not prior:
            return None
        same = made.spare is None or made.spare == self._spare(known, metric)
        return made if same else None

    def _make(
        self, label: Hashable, known: ClassifierState, metric: Metric, prior: Prior | None
    ) -> _Made:
        one, spare = known.classes[label], None
        if metric.normalization is None and not _varies(one, metric, prior):
            spare = self._spare(known, metric)
        try:
            factor = self._new_factor(one, metric, known, prior, 1.0 if spare is None else spare)
        except SingularMatrixError as error:
            raise _explained(f"The matrix of class {label!r}", metric, error) from None
        made = self._by_class[label] = _Made(factor, one, prior, spare, self.frame)
        return made

    def _spare(self, known: ClassifierState, metric: Metric) -> float:
        """The variance for a class without any: only unnormalised matrices have a size to match."""
        if metric.normalization is not None:
            return 1.0
        if self._spared is None or self._spared[0] is not known:
            self._spared = known, mean_variance(known.classes.values())
        return self._spared[1]

    def _new_factor(
        self,
        one: ClassStatistics,
        metric: Metric,
        known: ClassifierState,
        prior: Prior | None,
        spare: float,
    ) -> AnyFactor:
        """Through its rows if it has few, through a triangle in the frame, or just through any."""
        centre = prototype_of(one, metric, known.transform)
        dtype, scale = known.like.dtype, distance_scale(one, metric)
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

    def _shared_factors(self, known: ClassifierState, metric: Metric) -> list[Factor]:
        statistics = tuple(known.classes.values())
        if self._shared is None or not _same(self._shared[0], statistics):
            whitening = _cast(_shared_whitening(known, metric), known)
            factors = [
                Factor(
                    prototype_of(one, metric, known.transform),
                    whitening,
                    distance_scale(one, metric),
                )
                for one in statistics
            ]
            self._shared = (statistics, factors)
        return self._shared[1]


def _is_framed(known: ClassifierState, metric: Metric) -> bool:
    """Whether there are classes enough, of features enough, to share a frame."""
    return (
        metric.covariance == "class"
        and len(known.classes) >= FRAME_CLASSES
        and known.n_features >= FRAME_WIDTH
    )


def _varies(one: ClassStatistics, metric: Metric, prior: Prior | None) -> bool:
    """Whether the matrix of a class is anything but zero."""
    if prior is not None and prior.whitening is not None:
        return True
    kept = diagonal_of(scatter_of(one, average_domains=metric.average_domains))
    return bool(namespace(kept).any(kept != 0))


def _shared_whitening(known: ClassifierState, metric: Metric) -> Array | None:
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


def _precision(known: ClassifierState) -> float:
    return float(namespace(known.like).finfo(known.like.dtype).eps)


def _cast(x: Array | None, known: ClassifierState) -> Array | None:
    return None if x is None else namespace(x).astype(x, known.like.dtype, copy=False)


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
