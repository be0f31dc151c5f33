"""A service as a process, or as several that share a model's file."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from typing import Any

import uvicorn

from fecam.errors import SettingsError
from fecam.service import logs
from fecam.service.app import ENVIRONMENT, create_app
from fecam.service.http_protocol import RequestDeadlineProtocol
from fecam.service.metrics import SHARED
from fecam.service.settings import ServiceSettings
from fecam.service.tokens import TokenFile

GRACE = 600
"""Seconds that requests are given to finish after the signal to end: longer than any takes."""
BUSY = 60
"""Seconds that a worker may be silent, as while torch is loaded, before it is taken for dead."""


def run(settings: ServiceSettings) -> None:
    """Serve until a signal says to end; what was accepted is finished."""
    if settings.tokens is not None:
        TokenFile(settings.tokens).tokens()  # what is wrong with them is told now
    logs.set_up(settings)
    listening = listen(settings)
    url = url_of(settings.host, listening.getsockname()[1])
    app = create_app(settings)  # what is wrong with the model is told now
    app.state.engine.alone = True
    logs.event("serving", model=settings.model.name, url=url)
    if settings.workers == 1:
        uvicorn.Server(uvicorn.Config(app, **_options(settings))).run(sockets=[listening])
    else:
        app.state.engine.model.close()
        _run_workers(settings, listening)


def _run_workers(settings: ServiceSettings, listening: socket.socket) -> None:
    """Several processes; what they count is put together in a folder that goes with them."""
    with tempfile.TemporaryDirectory(prefix="fecam-metrics-") as folder:
        os.environ[ENVIRONMENT], os.environ[SHARED] = settings.to_json(), folder
        host, port = listening.getsockname()[:2]
        listening.close()  # the workers' parent listens itself
        uvicorn.run(
            "fecam.service.app:app_of_environment",
            factory=True,
            host=host,
            port=port,
            workers=settings.workers,
            timeout_worker_healthcheck=BUSY,
            **_options(settings),
        )


def _options(settings: ServiceSettings) -> dict[str, Any]:
    """What the server is told, whoever starts it."""
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "http": functools.partial(RequestDeadlineProtocol, seconds=settings.limits.seconds),
        "ws": "none",
        "lifespan": "on",
        "timeout_graceful_shutdown": GRACE,
    }


def url_of(host: str, port: int) -> str:
    """Where a service is found.

    >>> url_of("::1", 8765)
    'http://[::1]:8765'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(settings: ServiceSettings) -> socket.socket:
    """A socket at the host and port that are asked for."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another "
            "with --port, or end the program that has it."
        ) from None
    return listening
