"""`ServedModel`: one version of the model, and predictions that never wait for a writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.errors import FecamError, InputError
from fecam.labels import LabelKind, first_kind
from fecam.model_file import EncoderRecord
from fecam.model_file.snapshot import Snapshot
from fecam.results import ClassRecord, Label
from fecam.service.problems import model_empty_error

Answer = dict[str, Any]

BLOCK_ROWS = 256
"""Rows in one matrix product."""


@dataclass(frozen=True)
class ServedModel:
    """A snapshot, and a copy of its classifier that only the predicting thread uses."""

    snapshot: Snapshot | None
    classifier: FeCAMClassifier | None

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot | None, search: str | None = None) -> ServedModel:
        """Return the model to serve; ``search`` overrides the search of the snapshot."""
        if snapshot is None:
            return cls(None, None)
        classifier = snapshot.classifier.copy()
        classifier.search = search or classifier.search
        return cls(snapshot, classifier)

    @cached_property
    def version(self) -> int:
        """Version of the model; 0 if it is empty."""
        return 0 if self.snapshot is None else self.snapshot.version

    @cached_property
    def encoder(self) -> EncoderRecord | None:
        """The encoder that computes the features."""
        return None if self.snapshot is None else self.snapshot.encoder

    @cached_property
    def kind(self) -> str | None:
        """Kind of the items: images, texts or features; None if the model is empty."""
        if self.snapshot is None:
            return None
        return "features" if self.encoder is None else self.encoder.kind

    @cached_property
    def classes(self) -> list[ClassRecord]:
        """A record per class."""
        return [] if self.snapshot is None else self.snapshot.classes

    @cached_property
    def n_features(self) -> int | None:
        """Number of features; None if the model is empty."""
        return None if self.snapshot is None else self.snapshot.layout.n_features_in

    @cached_property
    def label_kind(self) -> LabelKind | None:
        """Kind of the labels; None if the model is empty."""
        return first_kind(record.label for record in self.classes)

    def error_of(self, rows: NDArray[Any]) -> InputError | None:
        """Return the error of rows with another number of features, else None."""
        if rows.shape[1] == self.n_features:
            return None
        return InputError(
            f"the features have {rows.shape[1]} columns; the model has {self.n_features}. Use the "
            "same encoder."
        )


@dataclass(frozen=True, slots=True)
class Query:
    """Rows of features, the number of classes to return, and the share to reject."""

    rows: NDArray[np.float32]
    top: int = 1
    reject: float | None = None


class EncodedAnswers(NamedTuple):
    """Answers as JSON, and the version of the model. The predicting thread encodes them."""

    json: bytes
    version: int
    nearest: Sequence[Label] = ()
    """The nearest class of each readable item, for the metrics, and its novelty."""
    novelty: Sequence[float] = ()
    n_rejected: int = 0

    @classmethod
    def encode(cls, answers: list[Answer], version: int) -> EncodedAnswers:
        """Encode answers."""
        return cls(msgspec.json.encode(answers), version)

    @property
    def answers(self) -> list[Answer]:
        """The decoded answers, one per row."""
        return list(msgspec.json.decode(self.json))


def predict_batch(
    served: ServedModel, queries: Sequence[Query]
) -> list[EncodedAnswers | Exception]:
    """Return the answers or an error for each query; queries with equal top share one product."""
    n_classes = 0 if served.classifier is None else len(served.classifier.state_.classes)
    outcomes: list[EncodedAnswers | Exception] = [model_empty_error()] * len(queries)
    if served.classifier is None or not n_classes:
        return outcomes
    groups: dict[int, list[int]] = {}
    for i, query in enumerate(queries):
        if error := served.error_of(query.rows):
            outcomes[i] = error
        else:
            groups.setdefault(min(query.top, n_classes), []).append(i)
    for top, indices in groups.items():
        group = [queries[i] for i in indices]
        for i, outcome in zip(indices, _predict_group(served, group, top), strict=True):
            outcomes[i] = outcome
    return outcomes


def _predict_group(
    served: ServedModel, queries: Sequence[Query], top: int
) -> Sequence[EncodedAnswers | Exception]:
    assert served.classifier is not None, "checked by the caller"
    rows = queries[0].rows if len(queries) == 1 else np.concatenate([q.rows for q in queries])
    try:
        predictions = served.classifier.predict_detailed(rows, max(top, 1), probabilities=top > 0)
    except (FecamError, ValueError) as error:
        if len(queries) == 1:
            return [error]
        # One query has invalid rows: bisect, so that the others succeed.
        half = len(queries) // 2
        return [
            *_predict_group(served, queries[:half], top),
            *_predict_group(served, queries[half:], top),
        ]
    columns = [values.tolist() for values in predictions]  # one call is faster than one per query
    start, outcomes = 0, list[EncodedAnswers | Exception]()
    for query in queries:
        end = start + len(query.rows)
        try:
            names, *_, novelty = own = [values[start:end] for values in columns]
            answers = _answers(query, *own)
            outcomes.append(
                EncodedAnswers.encode(answers, served.version)._replace(
                    nearest=[row[0] for row in names],
                    novelty=novelty,
                    n_rejected=sum(answer["label"] is None for answer in answers),
                )
            )
        except FecamError as error:
            outcomes.append(error)
        start = end
    return outcomes


def _answers(
    query: Query,
    labels: list[list[Label]],
    distances: list[list[float]],
    probabilities: list[list[float]],
    novelty: list[float],
) -> list[Answer]:
    threshold = np.inf if query.reject is None else novelty_threshold(query.reject)
    return [
        {
            "label": None if row_novelty > threshold else names[0],
            "novelty": row_novelty,
            "nearest": [
                {"label": name, "probability": probability, "distance": distance}
                for name, probability, distance in zip(names, shares, row, strict=True)
            ]
            if query.top
            else [],
        }
        for names, row, shares, row_novelty in zip(
            labels, distances, probabilities, novelty, strict=True
        )
    ]
