"""The statistics of all classes: one immutable value, and methods that return the next one.

A model changes by replacing this value as a whole. So a call that fails half-way changes nothing,
and code that holds an old value can keep reading it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from array_api_compat import device

from fecam.core.arrays import Array, namespace, to_backend_of, to_float64
from fecam.core.scatter import Scatter
from fecam.core.statistics import (
    ClassStatistics,
    ScatterKind,
    add_samples,
    average_visits,
    combine,
    remove,
    scatter_diagonal,
)
from fecam.core.transforms import Transform
from fecam.errors import InputError, SettingsError, UnknownLabelError

Lesson = Mapping[Hashable, ClassStatistics]


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierState:
    """The statistics of every class, and what they are statistics of."""

    transform: Transform
    scatter_kind: ScatterKind
    n_features: int
    like: Array
    """An array without entries: it says which library, device and dtype the state lives in."""
    classes: Mapping[Hashable, ClassStatistics] = field(default_factory=dict)
    """In the order of their labels."""
    tasks: Mapping[Hashable, int] = field(default_factory=dict)
    """The lesson in which each class first came: what Eq. 6 calls its task."""

    def learn(self, lesson: Lesson, *, average_domains: bool = False) -> ClassifierState:
        """Return the state after one more batch."""
        classes = dict(self.classes)
        for label, visit in lesson.items():
            before = classes.get(label)
            classes[label] = visit if before is None else _join(before, visit, average_domains)
        task = max(self.tasks.values(), default=-1) + 1
        tasks = {**{label: task for label in lesson}, **self.tasks}
        return self._with(classes, tasks)

    def with_distance_moments(
        self, distance_moments: Mapping[Hashable, tuple[int, float, float]]
    ) -> ClassifierState:
        """The same knowledge with a few more distances taken: see `fecam.core.calibration`."""
        classes = dict(self.classes)
        for label, triple in distance_moments.items():
            one = classes[label]
            classes[label] = replace(
                one, distance_moments=add_samples(one.distance_moments, triple)
            )
        return replace(self, classes=classes)

    def unlearn(self, lesson: Lesson) -> ClassifierState:
        """What would be known had the samples of this lesson never come."""
        classes = dict(self.classes)
        for label, part in lesson.items():
            whole = self._known(label)
            _check_removal(label, whole, part)
            if part.count == whole.count:
                del classes[label]
            else:
                rest = remove(whole, part)
                _check_remainder(label, whole, part, rest)
                classes[label] = rest
        return self._with(classes, self.tasks)

    def forget(self, label: Hashable) -> ClassifierState:
        """What would be known had this class never come."""
        self._known(label)
        return self._with({k: v for k, v in self.classes.items() if k != label}, self.tasks)

    def merge(self, other: ClassifierState, *, average_domains: bool = False) -> ClassifierState:
        """What both were taught. Classes of the other keep their grouping into tasks."""
        classes = dict(self.classes)
        for label, theirs in other.classes.items():
            ours = classes.get(label)
            classes[label] = theirs if ours is None else _join(ours, theirs, average_domains)
        first = max(self.tasks.values(), default=-1) + 1
        moved = {label: first + task for label, task in other.tasks.items()}
        return self._with(classes, {**moved, **self.tasks})

    def to(self, like: Array) -> ClassifierState:
        """The same knowledge, held by the library, on the device and in the dtype of an array."""
        if _same_place(like, self.like):
            return self
        moved = {label: _move(one, like) for label, one in self.classes.items()}
        return replace(self, like=like, classes=moved)

    def _known(self, label: Hashable) -> ClassStatistics:
        try:
            return self.classes[label]
        except (KeyError, TypeError):
            raise UnknownLabelError(
                f"label {label!r} was never taught. Known: {_listed(list(self.classes))}."
            ) from None

    def _with(
        self, classes: Mapping[Hashable, ClassStatistics], tasks: Mapping[Hashable, int]
    ) -> ClassifierState:
        ordered = dict(sorted(classes.items(), key=lambda item: item[0]))  # type: ignore[arg-type, return-value]
        return replace(self, classes=ordered, tasks={label: tasks[label] for label in ordered})


def _same_place(a: Array, b: Array) -> bool:
    return type(a) is type(b) and device(a) == device(b) and a.dtype == b.dtype


def _move(one: ClassStatistics, like: Array) -> ClassStatistics:
    def narrow(x: Array) -> Array:
        return namespace(like).astype(to_backend_of(x, like), like.dtype)

    def moved(scatter: Scatter | None) -> Scatter | None:
        return None if scatter is None else scatter.with_data(narrow(scatter.data))

    return replace(
        one,
        raw_mean=narrow(one.raw_mean),
        mean=to_float64(to_backend_of(one.mean, like)),
        scatter=moved(one.scatter),
        domain_mean_covariance=moved(one.domain_mean_covariance),
    )


def _join(before: ClassStatistics, visit: ClassStatistics, average: bool) -> ClassStatistics:
    both = combine(before, visit)
    return replace(both, domain_mean_covariance=average_visits(before, visit)) if average else both


def _listed(labels: list[Hashable], limit: int = 8) -> str:
    if not labels:
        return "no class at all"
    shown = ", ".join(repr(label) for label in labels[:limit])
    return shown + (f" and {len(labels) - limit} more" if len(labels) > limit else "")


def _check_removal(label: Hashable, whole: ClassStatistics, part: ClassStatistics) -> None:
    if whole.domain_mean_covariance is not None:
        raise SettingsError(
            f"class {label!r} was averaged over {whole.n_batches} visits (domains='average'), "
            "which cannot be undone. Use domains='pool' to be able to unlearn, or forget the class."
        )
    if part.count > whole.count:
        raise InputError(
            f"cannot unlearn {part.count} samples of class {label!r}: only {whole.count} were "
            "learnt. Pass samples that were taught, each as often as it was taught."
        )
    if part.count == whole.count and _distance(whole.mean, part.mean) > 1e-3:
        raise _not_learnt(label)


def _check_remainder(
    label: Hashable, whole: ClassStatistics, part: ClassStatistics, rest: ClassStatistics
) -> None:
    """No sum of squares gets negative by taking out what was put in, beyond rounding."""
    before, taken = scatter_diagonal(whole), scatter_diagonal(part)
    if before is None or taken is None:
        return
    xp = namespace(before)
    step = part.mean - rest.mean
    after = to_float64(before) - taken - step * step * (rest.count * part.count / whole.count)
    if float(xp.min(after)) < -1e-3 * float(xp.max(before)):
        raise _not_learnt(label)


def _not_learnt(label: Hashable) -> InputError:
    return InputError(
        f"these samples of class {label!r} are not among those that were learnt: taking them out "
        "would leave a negative variance or a wrong mean. Pass the very samples that were taught."
    )


def _distance(a: Array, b: Array) -> float:
    """The largest difference, relative to the largest entry."""
    xp = namespace(a)
    scale = float(xp.max(xp.abs(to_float64(a)))) or 1.0
    return float(xp.max(xp.abs(a - b))) / scale
