"""What a file tells about itself, its classes and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Label = int | str


@dataclass(frozen=True)
class EncoderRecord:
    """The encoder that a model's features come from."""

    name: str
    """As `fecam.encoders.load` knows it."""
    fingerprint: str
    kind: str
    """What goes in: images or texts."""
    width: int


@dataclass(frozen=True)
class ClassRecord:
    """What a file says about one class; times are in UTC, as ISO 8601 writes them."""

    label: Label
    count: int
    batches: int
    learned: str
    changed: str
    note: str
    bytes: int


@dataclass(frozen=True)
class Step:
    """One change of a model."""

    number: int
    time: str
    what: str
    """learn, unlearn, forget, merge or save."""
    note: str
    key: str
    """By which whoever asked for it knows it again; empty if nobody cares."""
    counts: Mapping[Label, int]
    """Of each class that it touched, how many samples came, or went where negative."""
    undone: bool = False
    can_undo: bool = True


@dataclass(frozen=True)
class FileInfo:
    """What a file is made of, told without reading a matrix."""

    format_version: int
    bytes: int
    free_bytes: int
    history_bytes: int
    """What is kept only to undo."""
    model_version: int
    settings: Mapping[str, Any]
    encoder: EncoderRecord | None
    classes: list[ClassRecord]
    steps: list[Step]
