"""What a model says about a lesson and about an item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fecam.model_file import Step
from fecam.model_file.records import Label


@dataclass(frozen=True)
class Lesson:
    """What became of items that were to be learnt or unlearnt."""

    step: Step | None
    """None if nothing was left to do."""
    taught: Mapping[Label, int]
    """How many items of each class were learnt, or unlearnt."""
    known: Mapping[Label, int]
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
class Judgement:
    """What a model makes of one item."""

    label: Label | None
    """None if it fits no class."""
    novelty: float
    nearest: list[Candidate]
