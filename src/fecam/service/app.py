"""The application: routes, what guards them, and the engine behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sklearn.exceptions import NotFittedError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fecam import __version__
from fecam.core.threads import reserve_core
from fecam.errors import FecamError
from fecam.service import logs
from fecam.service.access import Access
from fecam.service.engine import Engine
from fecam.service.metrics import Metrics
from fecam.service.problems import Problem, problem_of
from fecam.service.request_middleware import RequestMiddleware
from fecam.service.routes import learning, page, predictions, status
from fecam.service.schemas import request_schemas
from fecam.service.settings import ServiceSettings
from fecam.service.timeouts import TimeoutSweeper

ENVIRONMENT = "FECAM_SERVICE"
"""Where worker processes find the settings."""


class _Guarded(FastAPI):
    """An application that requests reach through its guard, before the framework sees them."""

    entry: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.entry(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """All layers but the outermost, which would answer what the guard answers in our form."""
        outermost = super().build_middleware_stack()
        assert isinstance(outermost, ServerErrorMiddleware), "it is the framework's last resort"
        return outermost.app


def create_app(settings: ServiceSettings, engine: Engine | None = None) -> FastAPI:
    """An application that serves one model."""
    engine = engine or Engine(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with reserve_core(settings.workers):
            await engine.start()
            try:
                yield
            finally:
                await engine.close()

    app = _Guarded(
        title="fecam",
        version=__version__,
        summary="Teach a model new classes, and ask it.",
        lifespan=lifespan,
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
    )
    app.state.engine, app.state.metrics = engine, Metrics()
    app.state.patience = TimeoutSweeper(engine.limits.seconds)
    app.entry = RequestMiddleware(
        super(_Guarded, app).__call__,
        settings=settings,
        access=Access(engine.settings),
        metrics=app.state.metrics,
        direct={"/v1/predict": predictions.predict},
    )
    if settings.cors:
        app.entry = CORSMiddleware(
            app.entry,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )
    _describe(app)
    _explain_errors(app, settings)
    for routes in (predictions, learning, status, page):
        app.include_router(routes.router)
    return app


def _describe(app: FastAPI) -> None:
    """Put the bodies of requests, which are read by hand, into the OpenAPI document."""
    made = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = made()["components"]["schemas"]
            schemas.update(request_schemas())
        return made()

    app.openapi = described  # type: ignore[method-assign]


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
    settings = ServiceSettings.from_json(os.environ[ENVIRONMENT])
    logs.set_up(settings)
    app = create_app(settings)
    app.state.engine.alone = True
    return app
