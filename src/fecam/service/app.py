"""The application: routes, what guards them, and the engine behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sklearn.exceptions import NotFittedError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fecam import __version__
from fecam.errors import FecamError
from fecam.service.engine import Engine
from fecam.service.problems import Problem, problem_of
from fecam.service.routes import answers, files, lessons, state
from fecam.service.settings import ServiceSettings

ENVIRONMENT = "FECAM_SERVICE"
"""Where worker processes find the settings."""


def create_app(settings: ServiceSettings) -> FastAPI:
    """An application that serves one model."""
    engine = Engine(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()

    app = FastAPI(
        title="fecam",
        version=__version__,
        summary="Teach a model new classes, and ask it.",
        lifespan=lifespan,
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
    )
    app.state.engine, app.state.settings = engine, settings
    _explain_errors(app, settings)
    for routes in (answers, lessons, state, files):
        app.include_router(routes.router)
    return app


def _explain_errors(app: FastAPI, settings: ServiceSettings) -> None:
    """All that goes wrong has one form: see `fecam.service.problems`."""

    async def explain(request: Request, error: Exception) -> Response:
        return problem_of(error, settings.model).response()

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "it is registered for these"
        words = {
            404: "there is no such path. GET /openapi.json lists them.",
            405: "this path knows other methods. GET /openapi.json lists them.",
        }
        message = words.get(error.status_code, str(error.detail))
        return Problem(error.status_code, "http", message).response()

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError), "it is registered for these"
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return Problem(422, "invalid", f"{where}: {first['msg']}.").response()

    for kind in (Problem, FecamError, NotFittedError):
        app.add_exception_handler(kind, explain)
    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(RequestValidationError, invalid)


def app_of_environment() -> FastAPI:
    """The application of a worker process, whose settings are in its environment."""
    return create_app(ServiceSettings.from_json(os.environ[ENVIRONMENT]))
