"""The application: routes, middleware and the engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sklearn.exceptions import NotFittedError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fecam import __version__
from fecam.core.threads import reserve_core
from fecam.errors import FecamError
from fecam.service import logs
from fecam.service.access import Access
from fecam.service.engine import Engine
from fecam.service.metrics import Metrics
from fecam.service.problems import Problem, to_problem
from fecam.service.request_middleware import RequestMiddleware
from fecam.service.routes import learning, predictions, status
from fecam.service.schemas import request_schemas
from fecam.service.settings import ServiceSettings

ENVIRONMENT = "FECAM_SERVICE"
"""Environment variable with the settings of worker processes."""
DOCS = Path(__file__).parent / "docs"


class _App(FastAPI):
    """An application with `RequestMiddleware` outside of all layers of the framework."""

    entry: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.entry(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Return all layers but the outermost: `RequestMiddleware` formats the errors."""
        outermost = super().build_middleware_stack()
        assert isinstance(outermost, ServerErrorMiddleware), "the outermost layer of Starlette"
        return outermost.app


def create_app(settings: ServiceSettings, engine: Engine | None = None) -> FastAPI:
    """Return an application that serves one model."""
    engine = engine or Engine(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with reserve_core(settings.workers):
            await engine.start()
            try:
                yield
            finally:
                await engine.close()

    app = _App(
        title="fecam",
        version=__version__,
        summary="Teach a model new classes and predict.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.engine, app.state.metrics = engine, Metrics()
    app.entry = RequestMiddleware(
        super(_App, app).__call__,
        settings=settings,
        access=Access(engine.settings),
        metrics=app.state.metrics,
        bypass_routes={"/v1/predict": predictions.predict},
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
    _add_error_handlers(app, settings)
    for routes in (predictions, learning, status):
        app.include_router(routes.router)
    if settings.docs:
        swagger_ui = ("fastapi_offline", "static")
        app.mount("/docs", StaticFiles(directory=DOCS, packages=[swagger_ui], html=True))
    return app


def _describe(app: FastAPI) -> None:
    """Add the schemas of request bodies, which FastAPI does not parse, to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = generate()["components"]["schemas"]
            schemas.update(request_schemas())
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_error_handlers(app: FastAPI, settings: ServiceSettings) -> None:
    """Give all errors the form of `fecam.service.problems`."""

    async def on_problem(request: Request, error: Exception) -> Response:
        return to_problem(error, settings.model).response()

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for this class"
        messages = {
            404: "there is no such path. GET /openapi.json lists the paths.",
            405: "this path has no such method. GET /openapi.json lists the methods.",
        }
        message = messages.get(error.status_code, str(error.detail))
        return Problem(error.status_code, "http", message).response()

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError), "registered for this class"
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        return Problem(422, "invalid", f"{location}: {first['msg']}.").response()

    for kind in (Problem, FecamError, NotFittedError):
        app.add_exception_handler(kind, on_problem)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)


def app_from_environment() -> FastAPI:
    """Return the application of a worker process, with the settings of its environment."""
    settings = ServiceSettings.from_json(os.environ[ENVIRONMENT])
    logs.set_up(settings)
    app = create_app(settings)
    app.state.engine.owns_process = True
    return app
