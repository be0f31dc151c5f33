"""Results of predictions and changes: one set of types for models, the service and its client.

The service sends them as JSON objects. The names in JSON are those of the fields, without ``n_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

Label = int | str


class Result:
    """Conversion of a dataclass from and to decoded JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; labels that are keys become strings."""
        return {name.removeprefix("n_"): _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], **values: Any) -> Self:
        """Build a result from decoded JSON.

        Parameters
        ----------
        content : mapping
            The fields. Unknown ones are ignored, missing ones raise TypeError.
        **values : object
            Fields that replace those of ``content``.

        Returns
        -------
        Result
            An instance of this class.

        Examples
        --------
        >>> Candidate.from_json({"label": "tit", "probability": 1.0, "distance": 0.5, "new": 1})
        Candidate(label='tit', probability=1.0, distance=0.5)
        """
        names = {field.name: field.name.removeprefix("n_") for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: content[key] for name, key in names.items() if key in content} | values)


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Candidate(Result):
    """A class that an item may belong to.

    Parameters
    ----------
    label : str or int
        The class.
    probability : float
        Its probability among all classes.
    distance : float
        Squared Mahalanobis distance: minus the value of `FeCAMClassifier.decision_function`.
    """

    label: Label
    probability: float
    distance: float


@dataclass(frozen=True)
class Prediction(Result):
    """The prediction for one item.

    Parameters
    ----------
    label : str, int or None
        Nearest class; None if the item is rejected or cannot be read.
    novelty : float
        How little the item fits that class: see `FeCAMClassifier.novelty`.
    nearest : list of Candidate
        Nearest classes, nearest first.
    error : str, optional
        Why the item cannot be read; only the service sends it.
    """

    label: Label | None
    novelty: float
    nearest: list[Candidate]
    error: str | None = None


@dataclass(frozen=True)
class LearnResult(Result):
    """The result of learning or unlearning a batch of items.

    Parameters
    ----------
    step : int or None
        Number of the step in the history; None if nothing was left to do.
    n_learned : mapping
        Number of items per class that were learned, or unlearned.
    n_duplicates : mapping
        Number of items per class that were skipped because they were learned before.
    unreadable : list of str
        One message per item that could not be read.
    new_classes : list
        Labels that the model did not have before.
    seconds : float
        Time it took.
    version : int
        Version of the model after the step.
    """

    step: int | None
    n_learned: Mapping[Label, int]
    n_duplicates: Mapping[Label, int]
    unreadable: list[str]
    new_classes: list[Label]
    seconds: float = 0.0
    version: int = 0


@dataclass(frozen=True)
class Step(Result):
    """One change of a model."""

    number: int
    time: str
    """UTC, ISO 8601."""
    what: str
    """learn, unlearn, forget, merge or save."""
    note: str
    counts: Mapping[Label, int]
    """Number of samples per class that were added; negative if they were removed."""
    undone: bool = False
    can_undo: bool = True
    idempotency_key: str = ""


@dataclass(frozen=True)
class ForgetResult(Step):
    """The step that removed a class, and the version of the model after it."""

    version: int = 0


@dataclass(frozen=True)
class ClassRecord(Result):
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
class ModelInfo(Result):
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
class Evaluation(Result):
    """Accuracy of a model on labeled items."""

    accuracy: float | None
    count: int
    unknown_labels: list[Label]
    per_class: Mapping[str, Mapping[str, int]]
    """``count`` and ``right`` per label."""
    confusions: list[list[Any]]
    """Rows of true label, predicted label and count."""
    unreadable: list[str]
    version: int = 0
    milliseconds: float = 0.0


@dataclass(frozen=True)
class ClassMap(Result):
    """Classes projected to two dimensions."""

    points: list[Mapping[str, Any]]
    explained: float
    """Share of the variance of the centroids that the two dimensions hold."""
    version: int
