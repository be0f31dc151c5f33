"""Routes: predict, evaluate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from fecam.results import Label, label_type
from fecam.service.engine import Engine
from fecam.service.problems import json_response, without_paths
from fecam.service.request_bodies import read_labeled_request, read_predict_request
from fecam.service.schemas import (
    LABEL_FORM,
    LABELED_REQUESTS,
    PREDICT_FORM,
    PREDICT_REQUESTS,
    TEACH_REQUESTS,
    Evaluation,
    Prediction,
    body,
    responses,
)

router = APIRouter(prefix="/v1", tags=["ask"])

_QUERY = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in PREDICT_FORM.items()
]


def respond(start: float, body: dict[str, Any], version: int) -> Response:
    """Return a JSON response with the version and the time since ``start``."""
    body["version"] = version
    body["milliseconds"] = round(1000 * (time.perf_counter() - start), 3)
    return json_response(body)


@router.post(
    "/predict",
    responses=responses(Prediction),
    openapi_extra=body(*PREDICT_REQUESTS, form=PREDICT_FORM, raw=True) | {"parameters": _QUERY},
)
async def predict(request: Request) -> Response:
    """Predict images, texts or rows of features.

    The query parameters are for bodies of plain numbers, application/octet-stream.
    """
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    served = engine.served
    n_features = served.n_features if served.kind == "features" else None
    query = await read_predict_request(request, engine.limits, n_features)
    if query.min_version is not None and query.min_version > engine.served.version:
        await engine.wait_for_version(query.min_version)
    encoded = await engine.predict(query.kind, query.items, query.top, query.reject)
    request.app.state.metrics.predicted.inc(len(query.items))
    return respond(start, {"answers": orjson.Fragment(encoded.json)}, encoded.version)


@router.post(
    "/evaluate",
    responses=responses(Evaluation),
    openapi_extra=body(*LABELED_REQUESTS, *TEACH_REQUESTS, form=LABEL_FORM),
)
async def evaluate(request: Request) -> Response:
    """Evaluate the model on labeled items, which are not stored."""
    start = time.perf_counter()
    engine: Engine = request.app.state.engine
    labeled = await read_labeled_request(request, engine.limits)
    labels, unreadable = engine.parse_labels(labeled.labels), list[str]()
    encoded = await engine.predict(labeled.kind, labeled.items)
    truths, predicted = [], []
    for label, answer in zip(labels, encoded.answers, strict=True):
        if "error" in answer:
            unreadable.append(without_paths(answer["error"], engine.settings.model))
        else:
            truths.append(label)
            predicted.append(answer["label"])
    classes = {record.label for record in engine.served.classes}
    result = {**evaluation(truths, predicted, classes), "unreadable": unreadable}
    return respond(start, result, encoded.version)


def evaluation(
    truths: Sequence[Label], predicted: Sequence[Label], classes: Collection[Label]
) -> dict[str, Any]:
    """Return the body of an evaluation; labels that are not in ``classes`` count as wrong.

    >>> result = evaluation(["tit", "tit", "owl"], ["tit", "wren", "tit"], {"tit", "wren"})
    >>> result["accuracy"], result["unknown_labels"], result["confusions"]
    (0.3333333333333333, ['owl'], [['owl', 'tit', 1], ['tit', 'wren', 1]])
    """
    pairs, counts = Counter(zip(truths, predicted, strict=True)), Counter(truths)
    right = {label: pairs[label, label] for label in counts}
    wrong = [(truth, other, n) for (truth, other), n in pairs.items() if truth != other]
    wrong.sort(key=lambda confusion: (-confusion[2], str(confusion[0]), str(confusion[1])))
    return {
        "accuracy": sum(right.values()) / len(truths) if truths else None,
        "count": len(truths),
        "unknown_labels": sorted(set(counts) - set(classes), key=str),
        "per_class": {
            str(label): {"count": counts[label], "right": right[label]}
            for label in sorted(counts, key=str)
        },
        "confusions": list(map(list, wrong)),
        **label_type(counts),
    }
