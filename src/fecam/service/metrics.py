"""Metrics for Prometheus, summed over all workers."""

import math
import os
from asyncio import get_running_loop
from collections import Counter as CountOf
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

from fecam.results import Label
from fecam.service.drift import DriftMonitor
from fecam.service.engine import Engine
from fecam.service.served_model import EncodedAnswers

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client: the folder that workers share."""
MAX_LABELS = 1000
"""Classes with a series of their own in one process: each takes memory here and in Prometheus."""
OTHER = "(other classes)"
DELAY = 0.2
"""Seconds after which answers are counted, many at once: each lock costs as much as an answer."""
_NOVELTY = (-3.0, -2.0, -1.0, 0.0, 1.0, 1.64, 2.33, 3.0, 4.0, 6.0, 10.0)
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
        self._predicted = Counter(
            "fecam_predicted_items", "Predicted items.", registry=self.registry
        )
        self._rejected = Counter("fecam_rejected_items", "Rejected items.", registry=self.registry)
        self._answers = Counter(
            "fecam_answers", "Predicted items by nearest class.", ("label",), registry=self.registry
        )
        self._novelty = Histogram(
            "fecam_novelty", "Novelty of predicted items; 5 % of known items are above 1.64.",
            buckets=_NOVELTY, registry=self.registry,
        )  # fmt: skip
        self.learned = Counter("fecam_taught_items", "Learned items.", registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livemax")
        self._version = gauge("fecam_model_version", "Version of the model.")
        self._classes = gauge("fecam_model_classes", "Classes of the model.")
        self._samples = gauge("fecam_model_samples", "Samples of the model.")
        self._waiting = gauge("fecam_waiting", "Waiting requests.", ("queue",))
        self._drift_share = gauge(
            "fecam_drift_share",
            "Share of items above the 5 % point of novelty, last window of a class.",
            ("label",),
        )
        self._drift_alarm = gauge(
            "fecam_drift_alarm", "1 if the last window of a class gave an alarm.", ("label",)
        )
        self._drift = DriftMonitor()
        self._series_of: dict[str, Counter] = {}  # a look-up by label takes a lock
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._n_predicted = self._n_rejected = 0
        self._nearest: list[Label] = []
        self._novelties: list[float] = []

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count one request; ``path`` is the path of the route."""
        children = self._children.get((path, method, status))
        if children is None:
            children = self._requests.labels(path, method, status), self._seconds.labels(path)
            self._children[path, method, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def count_answers(self, n_items: int, answers: EncodedAnswers) -> None:
        """Note the answers of one request, which `_count_noted` counts `DELAY` seconds later."""
        if not self._n_predicted:
            get_running_loop().call_later(DELAY, self._count_noted)
        self._n_predicted += n_items
        self._n_rejected += answers.n_rejected
        self._nearest += answers.nearest
        self._novelties += answers.novelty

    def _count_noted(self) -> None:
        """Count the noted answers together, and update the drift of their classes."""
        labels = [self._series(str(label)) for label in self._nearest]
        for label, count in CountOf(labels).items():
            self._series_of[label].inc(count)
        for novelty in self._novelties:
            if not math.isnan(novelty):
                self._novelty.observe(novelty)
        for window in self._drift.observe(labels, self._novelties):
            self._drift_share.labels(window.label).set(window.share)
            self._drift_alarm.labels(window.label).set(float(window.alarm))
        self._predicted.inc(self._n_predicted)
        self._rejected.inc(self._n_rejected)
        self._n_predicted = self._n_rejected = 0
        self._nearest, self._novelties = [], []

    def _series(self, label: str) -> str:
        """Return the label of a series: later classes than the first `MAX_LABELS` share one."""
        if label not in self._series_of:
            if len(self._series_of) >= MAX_LABELS:
                label = OTHER
            self._series_of[label] = self._answers.labels(label)
        return label

    def response(self, engine: Engine) -> Response:
        """Return the metrics in the format of Prometheus."""
        self._count_noted()
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
