"""Routes: the model, its classes and history; metrics and health; the page and its files."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from fecam.service.engine import Engine
from fecam.service.problems import json_response
from fecam.service.routes.learning import step_json
from fecam.service.routes.predictions import respond
from fecam.service.schemas import Classes, History, Map, ModelAnswer, Status, responses

PAGE = Path(__file__).parent.parent / "page"

router = APIRouter()
router.mount("/page", StaticFiles(directory=PAGE), name="page")


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """Return the page."""
    return FileResponse(PAGE / "index.html")


@router.get("/v1/model", tags=["look"], responses=responses(ModelAnswer))
async def model(request: Request) -> Response:
    """Return the properties of the model; its kind is null while it has no classes."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    served = engine.served
    body = {
        "name": engine.settings.model.name,
        "kind": served.kind,
        "encoder": None if served.encoder is None else served.encoder.name,
        "width": served.n_features,
        "classes": len(served.classes),
        "samples": sum(record.count for record in served.classes),
    }
    return respond(start, body, served.version)


@router.get("/v1/classes", tags=["look"], responses=responses(Classes))
async def classes(request: Request) -> Response:
    """Return a record per class."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    served = engine.served
    return respond(start, {"classes": list(map(asdict, served.classes))}, served.version)


@router.get("/v1/history", tags=["look"], responses=responses(History))
async def history(request: Request) -> Response:
    """Return the steps of the model, the last one first."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    steps = [step_json(step) for step in await engine.steps()]
    return respond(start, {"steps": steps}, engine.served.version)


@router.get("/v1/map", tags=["look"], responses=responses(Map))
async def class_map(request: Request) -> Response:
    """Return a map of the classes: means, and ellipses of one standard deviation."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    body, version = await engine.map()
    return respond(start, dict(body), version)


@router.get("/v1/model/file", tags=["look"], response_class=FileResponse)
async def file(request: Request) -> Response:
    """Return a consistent copy of the model file."""
    engine: Engine = request.app.state.engine
    return TempFileResponse(
        await engine.copy(),
        media_type="application/vnd.sqlite3",
        filename=engine.settings.model.name,
    )


class TempFileResponse(FileResponse):
    """A file that is removed after the response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file and remove it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)


@router.get("/metrics", tags=["run"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    response: Response = request.app.state.metrics.response(request.app.state.engine)
    return response


@router.get("/healthz", tags=["run"], responses={200: {"model": Status}})
async def health() -> Response:
    """Return 200 while the process runs."""
    return json_response({"status": "ok"})


@router.get("/readyz", tags=["run"], responses={200: {"model": Status}, 503: {"model": Status}})
async def ready(request: Request) -> Response:
    """Return 503 until the encoder is loaded and all factors are computed."""
    engine: Engine = request.app.state.engine
    if engine.ready:
        return json_response({"status": "ready"})
    status = "loading" if engine.encoder_error is None else "the encoder cannot be loaded"
    return json_response({"status": status}, 503, {"Retry-After": "1"})
