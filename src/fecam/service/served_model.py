"""What a model knows at one moment, and answers from it: nothing here waits for a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier, novelty_threshold
from fecam.errors import FecamError, InputError
from fecam.model_file import ClassRecord, EncoderRecord
from fecam.model_file.records import Label
from fecam.model_file.snapshot import Snapshot
from fecam.service.problems import model_empty_error

Answer = dict[str, Any]

BLOCK_ROWS = 256
"""Rows in one product."""


@dataclass(frozen=True)
class ServedModel:
    """A snapshot, and a classifier that only the predicting thread uses."""

    snapshot: Snapshot | None
    classifier: FeCAMClassifier | None

    @classmethod
    def of(cls, snapshot: Snapshot | None, search: str | None = None) -> ServedModel:
        """A view; its classifier derives for itself, so that no thread sees another's half.

        It searches as it is told to, or as the model says.
        """
        if snapshot is None:
            return cls(None, None)
        classifier = snapshot.classifier.copy()
        classifier.search = search or classifier.search
        return cls(snapshot, classifier)

    @cached_property
    def version(self) -> int:
        """Of the model; 0 if there is none yet."""
        return 0 if self.snapshot is None else self.snapshot.version

    @cached_property
    def encoder(self) -> EncoderRecord | None:
        """The encoder that the features come from."""
        return None if self.snapshot is None else self.snapshot.encoder

    @cached_property
    def kind(self) -> str | None:
        """What goes in; None if nothing is taught yet."""
        if self.snapshot is None:
            return None
        return "features" if self.encoder is None else self.encoder.kind

    @cached_property
    def classes(self) -> list[ClassRecord]:
        """What is known about each class."""
        return [] if self.snapshot is None else self.snapshot.classes

    @cached_property
    def width(self) -> int | None:
        """How many features there are."""
        return None if self.snapshot is None else self.snapshot.layout.width

    @cached_property
    def numbered(self) -> bool:
        """Whether the labels are whole numbers."""
        return any(isinstance(one.label, int) for one in self.classes)


@dataclass(frozen=True, slots=True)
class Query:
    """Rows of features, and what is asked about them."""

    rows: NDArray[np.float32]
    top: int = 1
    reject: float | None = None


class EncodedAnswers(NamedTuple):
    """What was found out, and by which version of the model.

    It is kept as the JSON that it will be sent as: that is made where the rows are judged, and
    passes from process to process faster than what it stands for.
    """

    json: bytes
    version: int

    @classmethod
    def of(cls, answers: list[Answer], version: int) -> EncodedAnswers:
        """Of these answers."""
        return cls(orjson.dumps(answers), version)

    @property
    def answers(self) -> list[Answer]:
        """An answer for each row."""
        return list(orjson.loads(self.json))


def warm(snapshot: Snapshot | None) -> None:
    """Derive all that an answer needs, so that the first one comes as fast as the others."""
    if snapshot is not None and snapshot.classifier.state_.classes:
        snapshot.classifier.warm_up()


def predict_batch(view: ServedModel, queries: Sequence[Query]) -> list[EncodedAnswers | Exception]:
    """An answer, or an error, for each query; those that ask alike are judged in one product."""
    known = 0 if view.classifier is None else len(view.classifier.state_.classes)
    if view.classifier is None or not known:
        return [model_empty_error()] * len(queries)
    found: list[EncodedAnswers | Exception] = [model_empty_error()] * len(queries)
    groups: dict[int, list[int]] = {}
    for at, query in enumerate(queries):
        if query.rows.shape[1] != view.width:
            found[at] = InputError(
                f"the features have {query.rows.shape[1]} columns; the model was taught with "
                f"{view.width}. Use the same encoder."
            )
        else:
            groups.setdefault(min(query.top, known), []).append(at)
    for top, places in groups.items():
        some = [queries[at] for at in places]
        for at, outcome in zip(places, _judged(view, some, top), strict=True):
            found[at] = outcome
    return found


def _judged(
    view: ServedModel, queries: Sequence[Query], top: int
) -> Sequence[EncodedAnswers | Exception]:
    assert view.classifier is not None, "it was looked at"
    rows = queries[0].rows if len(queries) == 1 else np.concatenate([q.rows for q in queries])
    try:
        judged = view.classifier.predict_detailed(rows, max(top, 1), probabilities=top > 0)
    except (FecamError, ValueError) as error:
        if len(queries) == 1:
            return [error]
        # Somebody's rows cannot be judged: the others should not suffer from it, nor wait for long.
        half = len(queries) // 2
        return [*_judged(view, queries[:half], top), *_judged(view, queries[half:], top)]
    listed = [values.tolist() for values in judged]  # once: a call for each query would take longer
    start, outcomes = 0, list[EncodedAnswers | Exception]()
    for query in queries:
        end = start + len(query.rows)
        try:
            answers = _answers(query, *(values[start:end] for values in listed))
            outcomes.append(EncodedAnswers.of(answers, view.version))
        except FecamError as error:
            outcomes.append(error)
        start = end
    return outcomes


def _answers(
    query: Query,
    labels: list[list[Label]],
    distances: list[list[float]],
    shares: list[list[float]],
    novelty: list[float],
) -> list[Answer]:
    limit = np.inf if query.reject is None else novelty_threshold(query.reject)
    return [
        {
            "label": None if novel > limit else names[0],
            "novelty": novel,
            "nearest": [
                {"label": name, "probability": share, "distance": distance}
                for name, share, distance in zip(names, of_row, far, strict=True)
            ]
            if query.top
            else [],
        }
        for names, far, of_row, novel in zip(labels, distances, shares, novelty, strict=True)
    ]
