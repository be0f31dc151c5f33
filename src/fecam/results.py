"""Results of predictions and changes: one set of types for models, the service and its client.

The service sends them as JSON objects. The names in JSON are those of the fields, without ``n_``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

Label = bool | int | str
"""A bool is an int for Python, but a kind of label of its own."""
T = TypeVar("T")


_KEYS: Mapping[str, Callable[[str], Any]] = {"int": int, "bool": "True".__eq__}
"""How keys of JSON objects, which are strings, become labels of a type."""


def to_json(result: Any) -> dict[str, Any]:
    """Return the fields of a result as JSON values.

    Labels that are keys become strings, and ``label_type`` names their type.
    """
    content: dict[str, Any] = {}
    for name, value in vars(result).items():
        if isinstance(value, Mapping):
            content |= label_type(value)
            value = {str(key): item for key, item in value.items()}
        content[name.removeprefix("n_")] = value
    return content


def label_type(labels: Iterable[Any]) -> dict[str, str]:
    """Return the type of labels as a field of a JSON object; nothing if there are none.

    >>> label_type([7, 8]), label_type([])
    ({'label_type': 'int'}, {})
    """
    types = [type(label).__name__ for label in labels]
    return {"label_type": types[0]} if types else {}


def from_json(kind: type[T], content: Any, **values: Any) -> T:
    """Build a result; ignore unknown fields, raise TypeError for missing ones.

    Keys of objects become labels of the type that ``label_type`` names.

    >>> from_json(Candidate, {"label": "tit", "probability": 1.0, "distance": 0.5, "new": 1})
    Candidate(label='tit', probability=1.0, distance=0.5)
    """
    names = {field.name: field.name.removeprefix("n_") for field in fields(kind)}  # type: ignore[arg-type]
    parse = _KEYS.get(content.get("label_type"), str)
    known = {name: content[key] for name, key in names.items() if key in content}
    for name, value in known.items():
        if isinstance(value, Mapping):
            known[name] = {parse(label): item for label, item in value.items()}
    return kind(**known | values)


@dataclass(frozen=True)
class Candidate:
    """A class that an item may belong to."""

    label: Label
    probability: float
    distance: float
    """Squared Mahalanobis distance, the square of `FeCAMClassifier.transform`."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one item."""

    label: Label | None
    """Nearest or most probable class; None if the item is rejected or cannot be read."""
    novelty: float
    """How little the item fits the classes: see `FeCAMClassifier.novelty`.

    NaN while the model cannot tell, and for an item that cannot be read; null in JSON."""
    nearest: list[Candidate]
    """Nearest classes, nearest first; with the parameter ``priors`` the most probable first."""
    error: str | None = None
    """Why the item cannot be read; only the service sends it."""


@dataclass(frozen=True)
class ClassDistance:
    """The distance of an item to a class, and which part of the class's matrix made it.

    The three parts sum to the distance.
    """

    label: Label
    count: int
    """Number of samples that the class was learned from."""
    probability: float
    distance: float
    """Squared Mahalanobis distance."""
    expected: float
    """Squared distance that is expected of a new sample of the class."""
    from_samples: float
    """Part of the distance measured with the variance of the class's own samples."""
    from_prior: float
    """Part measured with the variance that all classes share: little is known of the class."""
    from_shrinkage: float
    """Part measured with neither, but with what shrinkage adds."""


@dataclass(frozen=True)
class Direction:
    """An eigenvector of the matrix of a class, and its part of a squared distance."""

    number: int
    """1 is the direction of the largest variance."""
    contribution: float
    """Part of the squared distance."""
    deviation: float
    """Deviation of the item from the prototype, in standard deviations of the class."""
    variance: float
    """Eigenvalue of the matrix."""
    from_samples: float
    """Share of that variance that the samples of the class account for, from 0 to 1."""


@dataclass(frozen=True)
class FeatureContribution:
    """A feature, and its part of a squared distance."""

    feature: int
    """Index of the feature, or of the component of a compressed model."""
    name: str
    contribution: float
    """Negative if the feature makes the item more typical, given the others."""


@dataclass(frozen=True)
class Explanation:
    """Why an item is predicted as its class, or how far it is from another one."""

    label: Label | None
    """Nearest or most probable class; None if the item cannot be read."""
    novelty: float
    """See `Prediction.novelty`."""
    margin: float | None
    """Squared distance to the second class of ``nearest`` minus that to the first; None if the
    model has one class."""
    nearest: list[ClassDistance]
    """Nearest classes, nearest first, and the explained one."""
    explained: Label | None
    """The class whose distance ``directions`` and ``features`` decompose."""
    directions: list[Direction]
    """Directions with the largest contributions."""
    other_directions: float
    """Sum of the other contributions; all of them sum to the distance."""
    features: list[FeatureContribution]
    """Features with the largest contributions."""
    other_features: float
    """Sum of the other contributions; all of them sum to the distance."""
    error: str | None = None
    """Why the item cannot be read; only the service sends it."""


@dataclass(frozen=True)
class Group:
    """Items that fit no class and are alike: a candidate for a new class."""

    number: int
    """1 is the largest group."""
    items: list[int]
    """Positions of the items, the most typical first."""
    nearest: Label
    """The learned class nearest to the group."""
    novelty: float
    """Median novelty of the items."""
    stability: float
    """How well the group recurs when it is searched among four fifths of the items, from 0 to 1."""


class UnreadableItem(TypedDict):
    """An item that cannot be read."""

    item: int
    """Its position."""
    error: str


@dataclass(frozen=True)
class Discovery:
    """Groups of items that fit no class."""

    groups: list[Group]
    """The largest first."""
    single: list[int]
    """Positions of the items that fit neither a class nor a group."""
    n_known: int
    """Number of items that fit a class."""
    unreadable: list[UnreadableItem]


@dataclass(frozen=True)
class Suggestion:
    """An item to label next."""

    item: int
    """Position of the item."""
    label: Label
    """The class that it is predicted as."""
    margin: float
    """Probability of that class minus that of the second, from 0 to 1."""
    novelty: float
    """See `Prediction.novelty`."""
    n_similar: int
    """Number of items that it stands for."""
    reason: str
    """Why it is useful, in words."""


@dataclass(frozen=True)
class Suspect:
    """A labeled item whose label looks wrong."""

    item: int
    """Position of the item."""
    label: Label
    """The label that it has."""
    suggested: Label
    """The class that explains it better."""
    probability: float
    """Probability of its label, without the item itself if it was learned."""


@dataclass(frozen=True)
class LearnResult:
    """The result of learning or unlearning a batch of items."""

    step: int | None
    """Number of the step in the history; None if nothing was left to do."""
    n_learned: Mapping[Label, int]
    """Number of items per class that were learned, or unlearned."""
    n_duplicates: Mapping[Label, int]
    """Number of items per class that were skipped because they were learned before."""
    unreadable: list[str]
    """One message per item that could not be read."""
    new_classes: list[Label]
    seconds: float = 0.0
    version: int = 0
    """Version of the model after the step."""


@dataclass(frozen=True)
class Step:
    """One change of a model."""

    number: int
    time: str
    """UTC, ISO 8601."""
    what: str
    """learn, unlearn, forget, rename, join, merge or save."""
    note: str
    counts: Mapping[Label, int]
    """Number of samples per class that were added; negative if they were removed."""
    undone: bool = False
    can_undo: bool = True
    idempotency_key: str = ""
    author: str = ""
    """Who made the change: of the service the name of the token; empty if it is not known."""


@dataclass(frozen=True)
class ChangeResult(Step):
    """The step that removed, renamed or joined classes, and the version of the model after it."""

    version: int = 0
    step: int = 0
    """The number of the step, as of `LearnResult`."""


@dataclass(frozen=True)
class ClassRecord:
    """Facts about one class. Times are UTC, ISO 8601."""

    label: Label
    count: int
    batches: int
    """Number of batches it was learned from."""
    learned: str
    """Time of the first batch."""
    changed: str
    """Time of the last change."""
    note: str
    bytes: int


@dataclass(frozen=True)
class ModelInfo:
    """Summary of a served model."""

    name: str
    kind: str | None
    """Kind of items: images, texts or features; None before the first batch."""
    encoder: str | None
    width: int | None
    """Number of features."""
    classes: int
    samples: int
    version: int


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a model on labeled items."""

    accuracy: float | None
    count: int
    unknown_labels: list[Label]
    per_class: Mapping[Label, Mapping[str, int]]
    """``count`` and ``right`` per label."""
    confusions: list[list[Any]]
    """Rows of true label, predicted label and count."""
    unreadable: list[str]
    version: int = 0
    milliseconds: float = 0.0


class Ellipse(TypedDict):
    """One standard deviation of a class on a map."""

    a: float
    """Major semi-axis."""
    b: float
    """Minor semi-axis."""
    angle: float
    """Of the major axis, in radians."""


class MapPoint(TypedDict):
    """A class on a map."""

    label: Label
    count: int
    x: float
    y: float
    ellipse: Ellipse


@dataclass(frozen=True)
class ClassMap:
    """Classes projected to two dimensions."""

    points: list[MapPoint]
    explained: float | None
    """Share of the variance of the centroids that the two dimensions hold; None if it is 0."""
    version: int
