"""What is counted, for Prometheus; added up over all workers where there are several."""

from __future__ import annotations

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response

from fecam.service.engine import Engine

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The folder in which workers put their numbers together: the package looks for this name."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The numbers of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "fecam_requests", "Requests by path, method and status.",
            ("path", "method", "status"), registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "fecam_request_seconds", "How long requests took.",
            ("path",), buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.predicted = Counter(
            "fecam_predicted_items", "Items that were judged.", registry=self.registry
        )
        self.taught = Counter(
            "fecam_taught_items", "Items that were taught.", registry=self.registry
        )
        gauge = {"registry": self.registry, "multiprocess_mode": "livemax"}
        self._version = Gauge("fecam_model_version", "Of the model.", **gauge)  # type: ignore[arg-type]
        self._classes = Gauge("fecam_model_classes", "That the model knows.", **gauge)  # type: ignore[arg-type]
        self._samples = Gauge("fecam_model_samples", "That it was taught.", **gauge)  # type: ignore[arg-type]
        self._predict_workers = Gauge("fecam_predict_workers", "Processes that judge.", **gauge)  # type: ignore[arg-type]
        self._waiting = Gauge("fecam_waiting", "Requests that wait.", ("queue",), **gauge)  # type: ignore[arg-type]
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        """One request more; ``path`` is the route's, not what somebody made up."""
        found = self._known.get((path, method, status))
        if found is None:
            found = self._requests.labels(path, method, status), self._seconds.labels(path)
            self._known[path, method, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def response(self, engine: Engine) -> Response:
        """All numbers as Prometheus reads them."""
        view = engine.view
        self._version.set(view.version)
        self._classes.set(len(view.classes))
        self._samples.set(sum(one.count for one in view.classes))
        self._predict_workers.set(engine.predict_workers)
        for queue, count in engine.waiting.items():
            self._waiting.labels(queue).set(count)
        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
