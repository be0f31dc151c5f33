"""`App`: the ASGI application, which joins engine, routes and middleware."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from fecam.core.threads import reserve_core
from fecam.service import logs
from fecam.service.access import Access
from fecam.service.engine import Engine
from fecam.service.metrics import Metrics
from fecam.service.request_middleware import RequestMiddleware
from fecam.service.routes import Routes
from fecam.service.settings import ServiceSettings, decode_settings

ENVIRONMENT = "FECAM_SERVICE"
"""Environment variable with the settings of worker processes."""


class App:
    """An application that serves one model."""

    def __init__(self, settings: ServiceSettings, engine: Engine | None = None) -> None:
        self.settings, self.engine = settings, engine or Engine(settings)
        metrics = Metrics()
        routes = Routes(self.engine, metrics, docs=settings.docs).routes
        # Formats all errors, so the layers of Starlette that do it are left out.
        self._entry: ASGIApp = RequestMiddleware(
            Router(routes, lifespan=self._lifespan),
            settings=settings,
            access=Access(self.engine.settings),
            metrics=metrics,
        )
        if settings.cors:
            self._entry = CORSMiddleware(
                self._entry,
                allow_origins=list(settings.cors),
                allow_methods=["GET", "POST", "DELETE", "PATCH"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
                expose_headers=["Retry-After", "X-Request-ID"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        scope["app"] = self
        await self._entry(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, router: Router) -> AsyncIterator[None]:
        with reserve_core(self.settings.workers):
            await self.engine.start()
            try:
                yield
            finally:
                await self.engine.close()


def app_from_environment() -> App:
    """Return the application of a worker process, with the settings of its environment."""
    settings = decode_settings(os.environ[ENVIRONMENT])
    logs.set_up(settings)
    app = App(settings)
    app.engine.owns_process = True
    return app
