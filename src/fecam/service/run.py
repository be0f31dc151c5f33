"""A service as a process, or as several that share a model's file."""

from __future__ import annotations

import os

import uvicorn

from fecam.service.app import ENVIRONMENT, create_app
from fecam.service.settings import ServiceSettings

GRACE = 60
"""Seconds that requests are given to finish after the signal to end."""


def run(settings: ServiceSettings) -> None:
    """Serve until a signal says to end; what was accepted is finished."""
    options = {
        "host": settings.host,
        "port": settings.port,
        "access_log": False,
        "server_header": False,
        "log_level": "warning",
        "timeout_graceful_shutdown": GRACE,
    }
    if settings.workers == 1:
        uvicorn.run(create_app(settings), **options)  # type: ignore[arg-type]
        return
    os.environ[ENVIRONMENT] = settings.to_json()
    uvicorn.run(
        "fecam.service.app:app_of_environment", factory=True, workers=settings.workers, **options
    )  # type: ignore[arg-type]
