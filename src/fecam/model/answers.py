"""What a model says about a lesson and about an item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier, novelty_threshold
from fecam.errors import InputError
from fecam.model_file import Step
from fecam.model_file.records import Label


@dataclass(frozen=True)
class LearnResult:
    """What became of items that were to be learnt or unlearnt."""

    step: Step | None
    """None if nothing was left to do."""
    n_learned: Mapping[Label, int]
    """How many items of each class were learnt, or unlearnt."""
    n_duplicates: Mapping[Label, int]
    """How many were left out, because the very same items were taught before."""
    unreadable: list[str]
    new_classes: list[Label]
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """A class that an item may belong to."""

    label: Label
    probability: float
    distance: float
    """Squared, as `FeCAMClassifier.decision_function` has it with a minus."""


@dataclass(frozen=True)
class Prediction:
    """What a model makes of one item."""

    label: Label | None
    """None if it fits no class."""
    novelty: float
    nearest: list[Candidate]


def predictions_of(
    classifier: FeCAMClassifier, X: Any, k: int = 1, reject: float | None = None
) -> list[Prediction]:
    """What a classifier makes of each row of features: its ``k`` nearest classes, or all it has."""
    if type(k) is not int or k < 1:
        raise InputError(f"k={k!r} must be a whole number of at least 1.")
    found = classifier.predict_detailed(X, min(k, len(classifier.state_.classes)))
    limit = np.inf if reject is None else novelty_threshold(reject)
    rows = zip(*(values.tolist() for values in found), strict=True)
    return [
        Prediction(
            None if novelty > limit else labels[0],
            novelty,
            [Candidate(*one) for one in zip(labels, shares, distances, strict=True)],
        )
        for labels, distances, shares, novelty in rows
    ]
