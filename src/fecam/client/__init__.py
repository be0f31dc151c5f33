"""Talk to a service that `fecam serve` has started: `Client`, and `AsyncClient` for asyncio."""

from fecam.client.answers import (
    Answer,
    Candidate,
    ClassInfo,
    ClassMap,
    Evaluation,
    Forgotten,
    History,
    ModelInfo,
    Predictions,
    StepInfo,
    Taught,
    Undone,
)
from fecam.client.client import AsyncClient, Client
from fecam.errors import ServiceError

__all__ = [
    "Answer",
    "AsyncClient",
    "Candidate",
    "ClassInfo",
    "ClassMap",
    "Client",
    "Evaluation",
    "Forgotten",
    "History",
    "ModelInfo",
    "Predictions",
    "ServiceError",
    "StepInfo",
    "Taught",
    "Undone",
]
