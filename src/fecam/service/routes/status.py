"""Looking: the model, its classes, its history; whether the service lives."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fecam.service.engine import Engine
from fecam.service.problems import json_response
from fecam.service.routes.learning import told
from fecam.service.routes.predictions import answered
from fecam.service.schemas import Classes, History, Map, ModelAnswer, Status, responses

router = APIRouter()


@router.get("/v1/model", tags=["look"], responses=responses(ModelAnswer))
async def model(request: Request) -> Response:
    """What the model is; its kind is null if nothing is taught yet."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    view = engine.view
    body = {
        "name": engine.settings.model.name,
        "kind": view.kind,
        "encoder": None if view.encoder is None else view.encoder.name,
        "width": view.width,
        "classes": len(view.classes),
        "samples": sum(one.count for one in view.classes),
    }
    return answered(begun, body, view.version)


@router.get("/v1/classes", tags=["look"], responses=responses(Classes))
async def classes(request: Request) -> Response:
    """What is known about each class."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    view = engine.view
    return answered(begun, {"classes": list(map(asdict, view.classes))}, view.version)


@router.get("/v1/history", tags=["look"], responses=responses(History))
async def history(request: Request) -> Response:
    """What happened to the model, the last step first."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    steps = [told(step) for step in await engine.steps()]
    return answered(begun, {"steps": steps}, engine.view.version)


@router.get("/v1/map", tags=["look"], responses=responses(Map))
async def class_map(request: Request) -> Response:
    """The classes in the plane: prototypes, and ellipses for how their samples spread."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    found, version = await engine.map()
    return answered(begun, dict(found), version)


@router.get("/v1/model/file", tags=["look"], response_class=FileResponse)
async def file(request: Request) -> Response:
    """The model's file itself, a consistent copy."""
    engine: Engine = request.app.state.engine
    return _Removed(
        await engine.copy(),
        media_type="application/vnd.sqlite3",
        filename=engine.settings.model.name,
    )


class _Removed(FileResponse):
    """A file that is gone when the answer is over, whatever comes of it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)


@router.get("/metrics", tags=["run"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    found: Response = request.app.state.metrics.response(request.app.state.engine)
    return found


@router.get("/healthz", tags=["run"], responses={200: {"model": Status}})
async def health() -> Response:
    """Whether the process lives."""
    return json_response({"status": "ok"})


@router.get("/readyz", tags=["run"], responses={200: {"model": Status}, 503: {"model": Status}})
async def ready(request: Request) -> Response:
    """Whether answers come at once: 503 until the encoder is loaded, and the workers began."""
    engine: Engine = request.app.state.engine
    if engine.ready:
        return json_response({"status": "ready"})
    status = "loading" if engine.trouble is None else "the encoder cannot be loaded"
    return json_response({"status": status}, 503, {"Retry-After": "1"})
