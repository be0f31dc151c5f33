"""Explanations and groups of unknown items: slow computations, in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fecam.classifier import FeCAMClassifier
from fecam.discovery import discover
from fecam.features.extraction import Encoded
from fecam.labels import parse_label
from fecam.results import Discovery, Group, UnreadableItem
from fecam.service.problems import model_empty_error, queue_full_error, timeout_error
from fecam.service.served_model import Answer, ServedModel
from fecam.service.settings import Limits

T = TypeVar("T")


class AnalysisThread:
    """Runs one computation at a time, so that predictions keep a processor."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._n_waiting = limits, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-analysis")

    async def run(self, compute: Callable[[], T]) -> T:
        """Return the result of a computation; raise if too many wait, or if it takes too long."""
        if self._n_waiting >= self._limits.queue:
            raise queue_full_error("an explanation")
        self._n_waiting += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, compute)
            return await asyncio.wait_for(future, self._limits.seconds)
        except TimeoutError:
            raise timeout_error("the computation takes too long.") from None
        finally:
            self._n_waiting -= 1

    async def close(self) -> None:
        """Finish all accepted computations."""
        await asyncio.to_thread(self._thread.shutdown)


def explanations(
    served: ServedModel, encoded: Encoded, n_items: int, top: int, explained: str | None
) -> list[Answer]:
    """Return an explanation per item; an unreadable item has an error."""
    classifier = _classifier(served, encoded)
    label = None if explained is None else parse_label(explained, served.label_kind, "this model")
    answers: list[Answer] = [{"error": encoded.failed.get(i, "")} for i in range(n_items)]
    for i, row in zip(encoded.rows, encoded.features, strict=True):
        answers[i] = {**vars(classifier.explain(row, k=top, label=label))}
        del answers[i]["error"]
    return answers


def groups(served: ServedModel, encoded: Encoded, reject: float, min_size: int) -> Discovery:
    """Return the groups of the items that fit no class; positions are those of the request."""
    unreadable = [UnreadableItem(item=i, error=text) for i, text in encoded.failed.items()]
    if not encoded.rows:
        return Discovery([], [], 0, unreadable)
    classifier = _classifier(served, encoded)
    found = discover(classifier, encoded.features, reject=reject, min_size=min_size)
    rows = encoded.rows
    moved = [
        Group(**{**vars(group), "items": [rows[i] for i in group.items]}) for group in found.groups
    ]
    return Discovery(moved, [rows[i] for i in found.single], found.n_known, unreadable)


def _classifier(served: ServedModel, encoded: Encoded) -> FeCAMClassifier:
    """Return a copy of the classifier for this thread, if it takes these features."""
    if served.snapshot is None or not served.snapshot.classifier.state_.classes:
        raise model_empty_error()
    if error := served.error_of(encoded.features):
        raise error
    return served.snapshot.classifier.copy()
