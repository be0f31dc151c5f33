"""A service as a process, or as several that share a model's file."""

from __future__ import annotations

import os
import socket
import tempfile

import uvicorn
from uvicorn.supervisors import Multiprocess

from fecam.errors import SettingsError
from fecam.service import logs
from fecam.service.app import ENVIRONMENT, create_app
from fecam.service.metrics import SHARED
from fecam.service.settings import ServiceSettings
from fecam.service.tokens import TokenFile

GRACE = 600
"""Seconds that requests are given to finish after the signal to end: longer than any takes."""


def run(settings: ServiceSettings) -> None:
    """Serve until a signal says to end; what was accepted is finished."""
    if settings.tokens is not None:
        TokenFile(settings.tokens).tokens()  # what is wrong with them is told now
    logs.set_up(settings)
    listening = _listen(settings)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    logs.event("serving", model=settings.model.name, url=f"http://{host}:{port}")
    if settings.workers == 1:
        _server(create_app(settings)).run(sockets=[listening])
    else:
        _run_workers(settings, listening)


def _run_workers(settings: ServiceSettings, listening: socket.socket) -> None:
    """Several processes; what they count is put together in a folder that goes with them."""
    create_app(settings).state.engine.model.close()  # what is wrong is told once, here
    with tempfile.TemporaryDirectory(prefix="fecam-metrics-") as folder:
        os.environ[ENVIRONMENT], os.environ[SHARED] = settings.to_json(), folder
        server = _server("fecam.service.app:app_of_environment", workers=settings.workers)
        Multiprocess(server.config, target=server.run, sockets=[listening]).run()


def _server(app: object, workers: int = 1) -> uvicorn.Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        factory=isinstance(app, str),
        workers=workers,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def _listen(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}. Choose another "
            "with --port, or end the program that has it."
        ) from None
    listening.set_inheritable(True)
    return listening
