"""Changing: teach, forget, undo. Answered only when it is on the disk."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from fecam.model_file import Step
from fecam.service.engine import Engine
from fecam.service.logs import event
from fecam.service.problems import without_paths
from fecam.service.request_bodies import invalid, read_labeled_request, read_object
from fecam.service.routes.predictions import answered
from fecam.service.schemas import (
    LABEL_FORM,
    LABELLED,
    LESSONS,
    Forgotten,
    Taught,
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
    responses=responses(Taught),
    openapi_extra=body(*LESSONS, *LABELLED, form=LABEL_FORM),
)
async def teach(
    request: Request, idempotency_key: Annotated[str, Header(max_length=MAX_KEY)] = ""
) -> Response:
    """Teach examples of one class, or of several; answered when the lesson is on the disk.

    A lesson with an Idempotency-Key is taught once, however often it is sent.
    """
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    given = await read_labeled_request(request, engine.limits)
    lesson, version = await engine.teach(
        given.kind, given.items, given.labels, given.note, idempotency_key
    )
    model, count = engine.settings.model, sum(lesson.n_learned.values())
    request.app.state.metrics.taught.inc(count)
    event("taught", items=count, new_classes=len(lesson.new_classes), version=version)
    found = {
        "step": None if lesson.step is None else lesson.step.number,
        "learned": {str(label): count for label, count in lesson.n_learned.items()},
        "duplicates": {str(label): count for label, count in lesson.n_duplicates.items()},
        "unreadable": [without_paths(why, model) for why in lesson.unreadable],
        "new_classes": list(lesson.new_classes),
    }
    return answered(begun, found, version)


@router.delete("/classes/{label:path}", responses=responses(Forgotten))
async def forget(request: Request, label: str, purge: bool = False) -> Response:
    """Remove a class; it can be undone, unless ``purge`` is true."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    step, version = await engine.forget(label, purge=purge)
    event("forgotten", purge=purge, version=version)
    return answered(begun, {"step": step.number, **told(step)}, version)


@router.post("/undo", responses=responses(Undone), openapi_extra=body(UndoRequest))
async def undo(request: Request) -> Response:
    """Take back the last steps."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    asked = await read_object(request, engine.limits)
    count = asked.pop("steps", 1)
    if asked or type(count) is not int or not 1 <= count <= MAX_UNDO:
        raise invalid(f'the body must be {{"steps": n}}, n a whole number from 1 to {MAX_UNDO}.')
    steps, version = await engine.undo(count)
    event("undone", steps=count, version=version)
    return answered(begun, {"undone": [told(step) for step in steps]}, version)


def told(step: Step) -> dict[str, Any]:
    """A step, as answers have it."""
    return {
        "number": step.number,
        "time": step.time,
        "what": step.what,
        "note": step.note,
        "counts": {str(label): count for label, count in step.counts.items()},
        "undone": step.undone,
        "can_undo": step.can_undo,
    }
