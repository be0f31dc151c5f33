"""Asking: predict, evaluate."""

from __future__ import annotations

import time
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from fecam.service.engine import Engine
from fecam.service.evaluation import evaluation
from fecam.service.problems import json_response, without_paths
from fecam.service.request_bodies import read_labeled_request, read_predict_request
from fecam.service.schemas import (
    LABEL_FORM,
    LABELLED,
    LESSONS,
    QUESTION_FORM,
    QUESTIONS,
    Evaluation,
    Prediction,
    body,
    responses,
)

router = APIRouter(prefix="/v1", tags=["ask"])

_QUERY = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in QUESTION_FORM.items()
]


def answered(begun: float, found: dict[str, Any], version: int) -> Response:
    """An answer with what every answer has."""
    found["version"] = version
    found["milliseconds"] = round(1000 * (time.perf_counter() - begun), 3)
    return json_response(found)


@router.post(
    "/predict",
    responses=responses(Prediction),
    openapi_extra=body(*QUESTIONS, form=QUESTION_FORM, raw=True) | {"parameters": _QUERY},
)
async def predict(request: Request) -> Response:
    """What the model makes of images, texts or rows of features.

    The parameters in the query are for bodies of plain numbers, application/octet-stream.
    """
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    view = engine.view
    width = view.width if view.kind == "features" else None
    asked = await read_predict_request(request, engine.limits, width)
    if asked.min_version is not None and asked.min_version > engine.view.version:
        await engine.reach(asked.min_version)
    if asked.kind == "features":
        engine.check_kind("features")
        found = await engine.predict(asked.items, asked.top, asked.reject)
    else:
        found = await engine.predict_items(asked.kind, asked.items, asked.top, asked.reject)
    request.app.state.metrics.predicted.inc(len(asked.items))
    return answered(begun, {"answers": orjson.Fragment(found.json)}, found.version)


@router.post(
    "/evaluate",
    responses=responses(Evaluation),
    openapi_extra=body(*LABELLED, *LESSONS, form=LABEL_FORM),
)
async def evaluate(request: Request) -> Response:
    """How well the model does on labelled items. Nothing is kept of them."""
    begun = time.perf_counter()
    engine: Engine = request.app.state.engine
    given = await read_labeled_request(request, engine.limits)
    labels, unreadable = engine.labels(given.labels), list[str]()
    if given.kind == "features":
        engine.check_kind("features")
        judged = await engine.predict(given.items)
    else:
        judged = await engine.predict_items(given.kind, given.items)
    truths, said = [], []
    for label, answer in zip(labels, judged.answers, strict=True):
        if "error" in answer:
            unreadable.append(without_paths(answer["error"], engine.settings.model))
        else:
            truths.append(label)
            said.append(answer["label"])
    known = {one.label for one in engine.view.classes}
    found = {**evaluation(truths, said, known), "unreadable": unreadable}
    return answered(begun, found, judged.version)
