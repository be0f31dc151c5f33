"""What a file tells about itself, its classes and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fecam.results import ClassRecord, Step


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
