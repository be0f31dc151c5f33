"""The statistics of all classes as one immutable value.

A model changes by replacing this value. So a call that fails changes nothing, and other threads can
keep reading the old value.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from array_api_compat import device

from fecam.core.arrays import Array, namespace, to_backend_of, to_float64
from fecam.core.scatter import Scatter
from fecam.core.statistics import (
    CalibrationRows,
    ClassStatistics,
    ScatterKind,
    add_moments,
    average_covariances,
    combine,
    join_rows,
    remove,
    scatter_diagonal,
)
from fecam.core.transforms import Transform
from fecam.errors import InputError, SettingsError, UnknownLabelError

BatchStatistics = Mapping[Hashable, ClassStatistics]


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierState:
    """The statistics of all classes, and the transform and dtype they were computed with."""

    transform: Transform
    scatter_kind: ScatterKind
    n_features: int
    """Features of the transformed rows: the width of means and scatters."""
    like: Array
    """An empty array with the library, device and dtype of the state."""
    classes: Mapping[Hashable, ClassStatistics] = field(default_factory=dict)
    """Sorted by label."""
    tasks: Mapping[Hashable, int] = field(default_factory=dict)
    """The index of the first batch of each class: its task in Eq. 6."""

    @property
    def n_features_in(self) -> int:
        """Features of the raw rows; more than `n_features` after a projection."""
        projection = self.transform.projection
        return self.n_features if projection is None else int(projection.shape[0])

    def learn(self, batch: BatchStatistics, *, average_domains: bool = False) -> ClassifierState:
        """Return the state after one more batch."""
        classes = self._merged(batch, average_domains)
        task = max(self.tasks.values(), default=-1) + 1
        return self._with(classes, {**dict.fromkeys(batch, task), **self.tasks})

    def with_measurements(
        self,
        distance_moments: Mapping[Hashable, tuple[int, float, float]],
        calibration: Mapping[Hashable, CalibrationRows],
    ) -> ClassifierState:
        """Return the state with these measurements of samples added."""
        classes = dict(self.classes)
        for label, moments in distance_moments.items():
            total = add_moments(classes[label].distance_moments, moments)
            classes[label] = replace(classes[label], distance_moments=total)
        for label, rows in calibration.items():
            joined = join_rows(classes[label].calibration, rows)
            classes[label] = replace(classes[label], calibration=joined)
        return replace(self, classes=classes)

    def unlearn(self, batch: BatchStatistics) -> ClassifierState:
        """Return the state without the samples of this batch."""
        classes = dict(self.classes)
        for label, part in batch.items():
            whole = self.stats_of(label)
            _check_removal(label, whole, part)
            if part.count == whole.count:
                del classes[label]
            else:
                remainder = remove(whole, part)
                _check_remainder(label, whole, part, remainder)
                classes[label] = remainder
        return self._with(classes, self.tasks)

    def forget(self, label: Hashable) -> ClassifierState:
        """Return the state without this class."""
        self.stats_of(label)
        return self._with({k: v for k, v in self.classes.items() if k != label}, self.tasks)

    def relabel(self, names: Mapping[Hashable, Hashable]) -> ClassifierState:
        """Return the state with new labels; classes that get the same label are joined, exactly.

        ``names`` maps old labels to new ones. A joined class belongs to the task of the first.
        """
        for label in names:
            self.stats_of(label)
        classes: dict[Hashable, ClassStatistics] = {}
        tasks: dict[Hashable, int] = {}
        for label, stats in self.classes.items():
            name, task = names.get(label, label), self.tasks[label]
            previous = classes.get(name)
            if previous is not None:
                _check_can_join(name, previous, stats)
            classes[name] = stats if previous is None else combine(previous, stats)
            tasks[name] = min(task, tasks.get(name, task))
        return self._with(classes, tasks)

    def merge(self, other: ClassifierState, *, average_domains: bool = False) -> ClassifierState:
        """Return the state of the samples of both; the tasks of the other one follow."""
        classes = self._merged(other.classes, average_domains)
        first = max(self.tasks.values(), default=-1) + 1
        tasks = {label: first + task for label, task in other.tasks.items()}
        return self._with(classes, {**tasks, **self.tasks})

    def to(self, like: Array) -> ClassifierState:
        """Return the state in the library, device and dtype of an array."""
        if _is_alike(like, self.like):
            return self
        classes = {label: _convert(stats, like) for label, stats in self.classes.items()}
        return replace(self, transform=self.transform.to(like), like=like, classes=classes)

    def stats_of(self, label: Hashable) -> ClassStatistics:
        """Return the statistics of a class; raise `UnknownLabelError` if there is none."""
        with suppress(KeyError, TypeError):
            # True == 1, but a label of another type is another label.
            if isinstance(label, bool) == isinstance(next(iter(self.classes), None), bool):
                return self.classes[label]
        raise UnknownLabelError(
            f"label {label!r} was never learned. Learned: {_listed(list(self.classes))}."
        )

    def _merged(
        self, batch: BatchStatistics, average_domains: bool
    ) -> dict[Hashable, ClassStatistics]:
        classes = dict(self.classes)
        for label, stats in batch.items():
            previous = classes.get(label)
            merged = stats if previous is None else combine(previous, stats)
            if previous is not None and average_domains:
                average = average_covariances(previous, stats)
                merged = replace(merged, domain_mean_covariance=average)
            classes[label] = merged
        return classes

    def _with(
        self, classes: Mapping[Hashable, ClassStatistics], tasks: Mapping[Hashable, int]
    ) -> ClassifierState:
        ordered = dict(sorted(classes.items(), key=lambda item: item[0]))  # type: ignore[arg-type, return-value]
        return replace(self, classes=ordered, tasks={label: tasks[label] for label in ordered})


def _is_alike(a: Array, b: Array) -> bool:
    return type(a) is type(b) and device(a) == device(b) and a.dtype == b.dtype


def _convert(stats: ClassStatistics, like: Array) -> ClassStatistics:
    def convert(x: Array) -> Array:
        return namespace(like).astype(to_backend_of(x, like), like.dtype)

    def convert_scatter(scatter: Scatter | None) -> Scatter | None:
        return None if scatter is None else scatter.with_data(convert(scatter.data))

    return replace(
        stats,
        raw_mean=convert(stats.raw_mean),
        mean=to_float64(to_backend_of(stats.mean, like)),
        scatter=convert_scatter(stats.scatter),
        domain_mean_covariance=convert_scatter(stats.domain_mean_covariance),
    )


def _listed(labels: list[Hashable], limit: int = 8) -> str:
    if not labels:
        return "none"
    shown = ", ".join(repr(label) for label in labels[:limit])
    return shown + (f" and {len(labels) - limit} more" if len(labels) > limit else "")


def _check_removal(label: Hashable, whole: ClassStatistics, part: ClassStatistics) -> None:
    if whole.domain_mean_covariance is not None:
        raise SettingsError(
            f"class {label!r} is an average over {whole.n_batches} batches (domains='average'), "
            "which cannot be undone. Forget the class, or use domains='pool' to be able to unlearn."
        )
    if part.count > whole.count:
        raise InputError(
            f"cannot unlearn {part.count} samples of class {label!r}: only {whole.count} were "
            "learned. Pass learned samples, each at most as often as it was learned."
        )
    if part.count == whole.count and _distance(whole.mean, part.mean) > 1e-3:
        raise _not_learned(label)


def _check_can_join(name: Hashable, *parts: ClassStatistics) -> None:
    if any(part.domain_mean_covariance is not None for part in parts):
        raise SettingsError(
            f"classes cannot be joined into {name!r}: one is an average over several batches "
            "(domains='average'). Use domains='pool' to be able to join."
        )


def _check_remainder(
    label: Hashable, whole: ClassStatistics, part: ClassStatistics, remainder: ClassStatistics
) -> None:
    """Raise if a sum of squares becomes negative by more than rounding: `part` was not learned."""
    before, removed = scatter_diagonal(whole), scatter_diagonal(part)
    if before is None or removed is None:
        return
    xp = namespace(before)
    step = part.mean - remainder.mean
    weight = remainder.count * part.count / whole.count
    after = to_float64(before) - removed - step * step * weight
    if float(xp.min(after)) < -1e-3 * float(xp.max(before)):
        raise _not_learned(label)


def _not_learned(label: Hashable) -> InputError:
    return InputError(
        f"these samples of class {label!r} are not among those that were learned: without them a "
        "variance would be negative or the mean wrong. Pass samples exactly as they were learned."
    )


def _distance(a: Array, b: Array) -> float:
    """Return the largest difference, relative to the largest entry of ``a``."""
    xp = namespace(a)
    scale = float(xp.max(xp.abs(to_float64(a)))) or 1.0
    return float(xp.max(xp.abs(a - b))) / scale
