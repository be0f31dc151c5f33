"""Asking: predict, evaluate."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from fecam.service.engine import Engine
from fecam.service.problems import json_response
from fecam.service.uploads import read_question

router = APIRouter(prefix="/v1", tags=["ask"])


def answered(engine: Engine, begun: float, body: dict[str, Any], version: int) -> Response:
    """An answer with what every answer has."""
    body["version"] = version
    body["milliseconds"] = round(1000 * (time.perf_counter() - begun), 3)
    return json_response(body)


@router.post("/predict")
async def predict(request: Request) -> Response:
    """What the model makes of images, texts or rows of features."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    view = engine.view
    width = view.width if view.kind == "features" else None
    asked = await read_question(request, engine.limits, width)
    if asked.kind == "features":
        engine.check_features()
        found = await engine.predict(asked.items, asked.top, asked.reject, asked.min_version)
    else:
        found = await engine.predict_items(
            asked.kind, asked.items, asked.top, asked.reject, asked.min_version
        )
    return answered(engine, begun, {"answers": found.answers}, found.version)
