"""Run a service as one process, or as several that share a model file."""

import functools
import os
import socket
import tempfile
from typing import Any

import uvicorn

from fecam.errors import SettingsError
from fecam.service import logs
from fecam.service.app import ENVIRONMENT, App
from fecam.service.http_protocol import RequestDeadlineProtocol
from fecam.service.metrics import SHARED
from fecam.service.settings import ServiceSettings, encode_settings
from fecam.service.tokens import TokenFile

SHUTDOWN_TIMEOUT_S = 600
"""Seconds for accepted requests to finish after a signal: longer than any request takes."""
WORKER_TIMEOUT_S = 60
"""Seconds without a health check before a worker is restarted; importing torch blocks for long."""


def run(settings: ServiceSettings) -> None:
    """Serve until a signal; accepted requests are finished."""
    if settings.tokens is not None:
        TokenFile(settings.tokens).tokens()  # raises now if they are invalid
    logs.set_up(settings)
    listening = listen(settings)
    url = url_of(settings.host, listening.getsockname()[1])
    app = App(settings)  # raises now if the model is invalid
    app.engine.owns_process = True
    logs.event("serving", model=settings.model.name, url=url)
    if settings.workers == 1:
        uvicorn.Server(uvicorn.Config(app, **_options(settings))).run(sockets=[listening])
    else:
        app.engine.model.close()
        _run_workers(settings, listening)


def _run_workers(settings: ServiceSettings, listening: socket.socket) -> None:
    """Run several processes, which share their metrics in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fecam-metrics-") as folder:
        os.environ[ENVIRONMENT], os.environ[SHARED] = encode_settings(settings), folder
        host, port = listening.getsockname()[:2]
        listening.close()  # uvicorn opens its own socket
        uvicorn.run(
            "fecam.service.app:app_from_environment",
            factory=True,
            host=host,
            port=port,
            workers=settings.workers,
            timeout_worker_healthcheck=WORKER_TIMEOUT_S,
            **_options(settings),
        )


def _options(settings: ServiceSettings) -> dict[str, Any]:
    """Return the options of uvicorn."""
    return {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "http": functools.partial(RequestDeadlineProtocol, seconds=settings.limits.seconds),
        "ws": "none",
        "lifespan": "on",
        "timeout_graceful_shutdown": SHUTDOWN_TIMEOUT_S,
    }


def url_of(host: str, port: int) -> str:
    """Return the URL of a service.

    >>> url_of("::1", 8765)
    'http://[::1]:8765'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(settings: ServiceSettings) -> socket.socket:
    """Return a socket that listens on the host and port of the settings."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another "
            "port with --port, or stop the program that uses it."
        ) from None
    return listening
