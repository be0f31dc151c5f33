"""Routes: they parse the request and call the engine. Their docstrings are in the API document."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from fecam import api
from fecam.api import Operation
from fecam.results import ChangeResult, ClassMap, ModelInfo, Step, UnreadableItem
from fecam.service.access import AUTHOR
from fecam.service.analysis import explanations, groups
from fecam.service.engine import Engine
from fecam.service.evaluation import evaluate as evaluate_predictions
from fecam.service.logs import event
from fecam.service.metrics import Metrics
from fecam.service.openapi import openapi
from fecam.service.problems import json_response, without_paths
from fecam.service.request_bodies import check_count, invalid, labels_of, read_items, read_json

HERE = Path(__file__).parent
YES, NO = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
Handler = Callable[[Request], Awaitable[Any]]


class Routes:
    """The routes of one service."""

    def __init__(self, engine: Engine, metrics: Metrics, *, docs: bool) -> None:
        self._engine, self._metrics = engine, metrics
        operations: dict[Operation, Handler] = {
            api.PREDICT: self.predict,
            api.EXPLAIN: self.explain,
            api.DISCOVER: self.discover,
            api.EVALUATE: self.evaluate,
            api.TEACH: self.teach,
            api.FORGET: self.forget,
            api.RENAME: self.rename,
            api.JOIN: self.join,
            api.UNDO: self.undo,
            api.MODEL: self.model,
            api.CLASSES: self.classes,
            api.HISTORY: self.history,
            api.MAP: self.map,
            api.FILE: self.file,
            api.METRICS: self.metrics,
            api.HEALTH: self.healthz,
            api.READY: self.readyz,
        }
        document = openapi(
            {operation: handler.__doc__ for operation, handler in operations.items()}
        )

        async def describe(request: Request) -> Response:
            return json_response(document)

        async def page(request: Request) -> Response:
            return FileResponse(HERE / "page" / "index.html")

        self.routes: list[BaseRoute] = [
            _route(operation, handler) for operation, handler in operations.items()
        ]
        self.routes += [
            Route("/", page),
            Route("/openapi.json", describe),
            Mount("/page", StaticFiles(directory=HERE / "page")),
        ]
        if docs:
            self.routes.append(Mount("/docs", StaticFiles(directory=HERE / "docs", html=True)))

    async def predict(self, request: Request) -> tuple[Any, int]:
        """Predict images, texts or rows of features.

        The query parameters are for bodies of plain numbers, application/octet-stream.
        """
        engine = self._engine
        served = engine.served
        n_features = served.n_features if served.kind == "features" else None
        kind, items, body = await read_items(request, api.PredictRequest, engine.limits, n_features)
        if body.min_version is not None and body.min_version > engine.served.version:
            await engine.wait_for_version(body.min_version)
        top = 1 if body.top is None else body.top
        encoded = await engine.predict(kind, items, top, body.reject)
        self._metrics.count_answers(len(items), encoded)
        return Raw(encoded.json), encoded.version

    async def explain(self, request: Request) -> tuple[Any, int]:
        """Explain predictions: nearest classes, novelty, and what the distances consist of."""
        engine = self._engine
        kind, items, body = await read_items(request, api.ExplainRequest, engine.limits)
        check_count(len(items), api.MAX_EXPLAINED)
        encoded, served = await engine.encode(kind, items), engine.served
        answers = await engine.analysis.run(
            partial(explanations, served, encoded, len(items), body.top, body.explain)
        )
        return answers, served.version

    async def discover(self, request: Request) -> tuple[Any, int]:
        """Group the items that fit no class into candidates for new classes.

        Nothing is stored. To teach a group, send its items to ``POST /v1/teach``.
        """
        engine = self._engine
        kind, items, body = await read_items(request, api.DiscoverRequest, engine.limits)
        encoded, served = await engine.encode(kind, items), engine.served
        found = await engine.analysis.run(
            partial(groups, served, encoded, body.reject, body.min_size)
        )
        model = engine.settings.model
        unreadable = [
            UnreadableItem(item=one["item"], error=without_paths(one["error"], model))
            for one in found.unreadable
        ]
        return replace(found, unreadable=unreadable), served.version

    async def evaluate(self, request: Request) -> tuple[Any, int]:
        """Evaluate the model on labeled items, which are not stored."""
        engine = self._engine
        kind, items, body = await read_items(request, api.LabeledRequest, engine.limits)
        labels = engine.parse_labels(labels_of(body, len(items)))
        encoded = await engine.predict(kind, items)
        truths, predicted, unreadable = [], [], list[str]()
        for label, answer in zip(labels, encoded.answers, strict=True):
            if "error" in answer:
                unreadable.append(without_paths(answer["error"], engine.settings.model))
            else:
                truths.append(label)
                predicted.append(answer["label"])
        classes = {record.label for record in engine.served.classes}
        return evaluate_predictions(truths, predicted, classes, unreadable), encoded.version

    async def teach(self, request: Request) -> tuple[Any, int]:
        """Teach examples of one class or of several.

        A request with an Idempotency-Key is applied once, however often it is sent.
        """
        engine, key = self._engine, request.headers.get("idempotency-key", "")
        if len(key) > api.MAX_KEY:
            raise invalid(
                f"Idempotency-Key has {len(key)} characters; it may have at most {api.MAX_KEY}."
            )
        kind, items, body = await read_items(request, api.LabeledRequest, engine.limits)
        labels = labels_of(body, len(items))
        author = request.scope[AUTHOR]
        result, version = await engine.learn(kind, items, labels, body.note, key, author)
        count, model = sum(result.n_learned.values()), engine.settings.model
        self._metrics.learned.inc(count)
        event("learned", items=count, new_classes=len(result.new_classes), version=version)
        unreadable = [without_paths(reason, model) for reason in result.unreadable]
        return replace(result, unreadable=unreadable), version

    async def forget(self, request: Request) -> tuple[Any, int]:
        """Remove a class; this can be undone unless ``purge`` is true."""
        text = request.query_params.get("purge", "").lower()
        if text not in YES + NO:
            raise invalid(f"purge={text[:40]!r} must be true or false.")
        purge = text in YES
        label, author = request.path_params["label"], request.scope[AUTHOR]
        step, version = await self._engine.forget(label, purge=purge, author=author)
        event("forgotten", purge=purge, version=version)
        return _change_result(step, version)

    async def rename(self, request: Request) -> tuple[Any, int]:
        """Give a class another label; this can be undone."""
        body = await read_json(request, api.RenameRequest, self._engine.limits)
        label, author = request.path_params["label"], request.scope[AUTHOR]
        step, version = await self._engine.rename(label, body.label, author)
        event("renamed", version=version)
        return _change_result(step, version)

    async def join(self, request: Request) -> tuple[Any, int]:
        """Combine classes into one, with all their samples; this can be undone."""
        body = await read_json(request, api.JoinRequest, self._engine.limits)
        step, version = await self._engine.join(body.labels, body.label, request.scope[AUTHOR])
        event("joined", classes=len(body.labels), version=version)
        return _change_result(step, version)

    async def undo(self, request: Request) -> tuple[Any, int]:
        """Undo the last steps."""
        body = await read_json(request, api.UndoRequest, self._engine.limits)
        steps, version = await self._engine.undo(body.steps)
        event("undone", steps=body.steps, version=version)
        return steps, version

    async def model(self, request: Request) -> tuple[Any, int]:
        """Return the properties of the model; its kind is null while it has no classes."""
        served = self._engine.served
        info = ModelInfo(
            name=self._engine.settings.model.name,
            kind=served.kind,
            encoder=None if served.encoder is None else served.encoder.name,
            width=served.n_features,
            classes=len(served.classes),
            samples=sum(record.count for record in served.classes),
            version=served.version,
        )
        return info, served.version

    async def classes(self, request: Request) -> tuple[Any, int]:
        """Return a record per class."""
        served = self._engine.served
        return served.classes, served.version

    async def history(self, request: Request) -> tuple[Any, int]:
        """Return the steps of the model, the last one first."""
        return await self._engine.steps(), self._engine.served.version

    async def map(self, request: Request) -> tuple[Any, int]:
        """Return a map of the classes: means, and ellipses of one standard deviation."""
        points, version = await self._engine.map()
        return ClassMap(**points, version=version), version

    async def file(self, request: Request) -> Response:
        """Return a consistent copy of the model file."""
        name = self._engine.settings.model.name
        copy = await self._engine.copy()
        return TempFileResponse(copy, media_type="application/vnd.sqlite3", filename=name)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        return self._metrics.response(self._engine)

    async def healthz(self, request: Request) -> Response:
        """Return 200 while the process runs."""
        return json_response({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Return 503 until the encoder is loaded and all factors are computed."""
        if self._engine.ready:
            return json_response({"status": "ready"})
        failed = self._engine.encoder_error is not None
        status = "the encoder cannot be loaded" if failed else "loading"
        return json_response({"status": status}, 503, {"Retry-After": "1"})


class _Endpoint:
    """A handler as an ASGI application, without the layer for exceptions that Starlette adds."""

    def __init__(self, operation: Operation, handler: Handler) -> None:
        self._operation, self._handler = operation, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response of the handler, or its result with version and duration."""
        start = time.perf_counter()
        response = await self._handler(Request(scope, receive))
        if self._operation.result is not None:
            result, version = response
            milliseconds = round(1000 * (time.perf_counter() - start), 3)
            response = json_response(self._operation.response(result, version, milliseconds))
        await response(scope, receive, send)


def _change_result(step: Step, version: int) -> tuple[ChangeResult, int]:
    return ChangeResult(**vars(step), version=version, step=step.number), version


def _route(operation: Operation, handler: Handler) -> Route:
    path = operation.path.replace("{label}", "{label:path}")  # a label may contain a slash
    return Route(path, _Endpoint(operation, handler), methods=[operation.method])


class TempFileResponse(FileResponse):
    """A file that is removed after the response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file and remove it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)
