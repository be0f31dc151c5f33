"""Metrics for Prometheus, summed over all workers."""

import os
from functools import partial

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
"""Environment variable of prometheus_client: the folder that workers share."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "fecam_requests", "Requests by path, method and status.",
            ("path", "method", "status"), registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "fecam_request_seconds", "Duration of requests.",
            ("path",), buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.predicted = Counter(
            "fecam_predicted_items", "Predicted items.", registry=self.registry
        )
        self.learned = Counter("fecam_taught_items", "Learned items.", registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livemax")
        self._version = gauge("fecam_model_version", "Version of the model.")
        self._classes = gauge("fecam_model_classes", "Classes of the model.")
        self._samples = gauge("fecam_model_samples", "Samples of the model.")
        self._waiting = gauge("fecam_waiting", "Waiting requests.", ("queue",))
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count one request; ``path`` is the path of the route."""
        children = self._children.get((path, method, status))
        if children is None:
            children = self._requests.labels(path, method, status), self._seconds.labels(path)
            self._children[path, method, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def response(self, engine: Engine) -> Response:
        """Return the metrics in the format of Prometheus."""
        served = engine.served
        self._version.set(served.version)
        self._classes.set(len(served.classes))
        self._samples.set(sum(record.count for record in served.classes))
        for queue, count in engine.queue_lengths.items():
            self._waiting.labels(queue).set(count)
        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
