"""What a service answers, as values with types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from fecam.errors import ServiceError

Label = str | int
T = TypeVar("T")


@dataclass(frozen=True)
class ModelInfo:
    """What the service knows, in short."""

    name: str
    kind: str | None
    """What goes in: images, texts or features; None before the first lesson."""
    encoder: str | None
    width: int | None
    classes: int
    samples: int
    version: int


@dataclass(frozen=True)
class ClassInfo:
    """One class."""

    label: Label
    count: int
    batches: int
    learned: str
    changed: str
    note: str
    bytes: int


@dataclass(frozen=True)
class Candidate:
    """A class that an item may belong to."""

    label: Label
    probability: float
    distance: float
    """Squared."""


@dataclass(frozen=True)
class Answer:
    """What the model makes of one item."""

    label: Label | None
    """None if it fits no class, or cannot be read."""
    novelty: float
    nearest: list[Candidate]
    error: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True)
class Predictions:
    """The answers to all items of a request, in their order."""

    answers: list[Answer]
    version: int
    milliseconds: float

    @property
    def labels(self) -> list[Label | None]:
        """The nearest class of each item."""
        return [answer.label for answer in self.answers]

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, at: int) -> Answer:
        return self.answers[at]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)


@dataclass(frozen=True)
class Taught:
    """What became of a lesson; it is on the service's disk."""

    step: int | None
    """None if all items were known."""
    learned: Mapping[str, int]
    duplicates: Mapping[str, int]
    unreadable: list[str]
    new_classes: list[Label]
    version: int
    milliseconds: float


@dataclass(frozen=True)
class Forgotten:
    """A class is gone."""

    step: int
    version: int
    milliseconds: float


@dataclass(frozen=True)
class StepInfo:
    """One change of the model."""

    number: int
    what: str
    counts: Mapping[str, int]
    time: str = ""
    note: str = ""
    undone: bool = False
    can_undo: bool = True


@dataclass(frozen=True)
class Undone:
    """The steps that were taken back, the last one first."""

    undone: list[StepInfo]
    version: int
    milliseconds: float


@dataclass(frozen=True)
class History:
    """What happened to the model, the last step first."""

    steps: list[StepInfo]
    version: int

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, at: int) -> StepInfo:
        return self.steps[at]


@dataclass(frozen=True)
class Evaluation:
    """How good the model is on labelled items."""

    accuracy: float | None
    count: int
    unknown_labels: list[Label]
    per_class: Mapping[str, Mapping[str, int]]
    confusions: list[list[Any]]
    """Truth, what was said in its place, how often."""
    version: int
    milliseconds: float


@dataclass(frozen=True)
class ClassMap:
    """Where the classes lie, in two dimensions."""

    points: list[Mapping[str, Any]]
    explained: float
    """The share of the prototypes' spread that two dimensions show."""
    version: int


def read(kind: type[T], found: Any, **parts: Any) -> T:
    """An answer of that kind from JSON; ``parts`` are read already.

    What a newer service adds is passed over.

    >>> read(Forgotten, {"step": 3, "version": 4, "milliseconds": 1.5, "colour": "red"})
    Forgotten(step=3, version=4, milliseconds=1.5)
    """
    values = {**found, **parts} if isinstance(found, dict) else parts
    known: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            known[field.name] = values[field.name]
        elif field.default is MISSING:
            raise ServiceError(
                f"the answer has no {field.name!r}. Is this the address of a fecam service?",
                code="unexpected",
            )
    return kind(**known)


def predictions(found: Any) -> Predictions:
    """The answers, items that cannot be read among them."""
    return read(Predictions, found, answers=[_answer(one) for one in _listed(found, "answers")])


def _answer(found: Mapping[str, Any]) -> Answer:
    if "error" in found:
        return Answer(None, float("nan"), [], found["error"])
    nearest = [read(Candidate, one) for one in found.get("nearest", [])]
    return read(Answer, found, nearest=nearest)


def classes(found: Any) -> list[ClassInfo]:
    """The classes."""
    return [read(ClassInfo, one) for one in _listed(found, "classes")]


def undone(found: Any) -> Undone:
    """The steps taken back."""
    return read(Undone, found, undone=[read(StepInfo, one) for one in _listed(found, "undone")])


def history(found: Any) -> History:
    """All steps."""
    return read(History, found, steps=[read(StepInfo, one) for one in _listed(found, "steps")])


def _listed(found: Any, name: str) -> list[Any]:
    return list(found.get(name, ())) if isinstance(found, dict) else []
