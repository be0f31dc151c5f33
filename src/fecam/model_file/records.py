"""Descriptions of a file and its encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fecam.results import ClassRecord, Step


@dataclass(frozen=True)
class EncoderRecord:
    """The encoder of a model's features.

    Parameters
    ----------
    name : str
        Name for `fecam.encoders.load`.
    fingerprint : str
        Hash of the weights and settings.
    kind : str
        Kind of its inputs: ``"images"`` or ``"texts"``.
    width : int
        Number of features.
    """

    name: str
    fingerprint: str
    kind: str
    width: int


@dataclass(frozen=True)
class FileInfo:
    """Description of a file."""

    format_version: int
    model_version: int
    bytes: int
    free_bytes: int
    history_bytes: int
    """Size of what is kept only to undo."""
    prior_bytes: int
    """Size of the pooled matrices, those of the history included."""
    settings: Mapping[str, Any]
    encoder: EncoderRecord | None
    classes: list[ClassRecord]
    steps: list[Step]
    n_components: int | None = None
    """Directions that a compressed model keeps; None if it is not compressed."""
