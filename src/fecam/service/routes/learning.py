"""Routes: teach, forget, undo. They respond when the change is on disk."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from fecam.results import Step, to_json
from fecam.service.engine import Engine
from fecam.service.logs import event
from fecam.service.problems import without_paths
from fecam.service.request_bodies import invalid, read_labeled_request, read_object
from fecam.service.routes.predictions import respond
from fecam.service.schemas import (
    LABEL_FORM,
    LABELED_REQUESTS,
    TEACH_REQUESTS,
    Forgotten,
    LearnResponse,
    Undone,
    UndoRequest,
    body,
    responses,
)

router = APIRouter(prefix="/v1", tags=["teach"])

MAX_KEY = 200
MAX_UNDO = 20


@router.post(
    "/teach",
    responses=responses(LearnResponse),
    openapi_extra=body(*TEACH_REQUESTS, *LABELED_REQUESTS, form=LABEL_FORM),
)
async def teach(
    request: Request, idempotency_key: Annotated[str, Header(max_length=MAX_KEY)] = ""
) -> Response:
    """Teach examples of one class or of several.

    A request with an Idempotency-Key is applied once, however often it is sent.
    """
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    labeled = await read_labeled_request(request, engine.limits)
    result, version = await engine.learn(
        labeled.kind, labeled.items, labeled.labels, labeled.note, idempotency_key
    )
    model, count = engine.settings.model, sum(result.n_learned.values())
    request.app.state.metrics.learned.inc(count)
    event("learned", items=count, new_classes=len(result.new_classes), version=version)
    unreadable = [without_paths(reason, model) for reason in result.unreadable]
    body = {**to_json(result), "unreadable": unreadable}
    del body["seconds"]
    return respond(start, body, version)


@router.delete("/classes/{label:path}", responses=responses(Forgotten))
async def forget(request: Request, label: str, purge: bool = False) -> Response:
    """Remove a class; this can be undone unless ``purge`` is true."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    step, version = await engine.forget(label, purge=purge)
    event("forgotten", purge=purge, version=version)
    return respond(start, {"step": step.number, **step_json(step)}, version)


@router.post("/undo", responses=responses(Undone), openapi_extra=body(UndoRequest))
async def undo(request: Request) -> Response:
    """Undo the last steps."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    body = await read_object(request, engine.limits)
    count = body.pop("steps", 1)
    if body or type(count) is not int or not 1 <= count <= MAX_UNDO:
        raise invalid(f'the body must be {{"steps": n}}, n an integer from 1 to {MAX_UNDO}.')
    steps, version = await engine.undo(count)
    event("undone", steps=count, version=version)
    return respond(start, {"undone": [step_json(step) for step in steps]}, version)


def step_json(step: Step) -> dict[str, Any]:
    """Return a step as JSON."""
    return {name: value for name, value in to_json(step).items() if name != "idempotency_key"}
