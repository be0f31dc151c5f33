"""A prediction worker, from within: see `fecam.service.worker_handle`.

It takes all questions that have come, so that the more there are, the more share a product.
"""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections import deque
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

from fecam.core.threads import blas_threads, n_blas_threads, n_cores, reserve_core
from fecam.errors import FecamError
from fecam.model import Model, open_model
from fecam.service.frames import Batch, decode_batch, got, put
from fecam.service.served_model import BLOCK_ROWS, Query, ServedModel, predict_batch, warm

SIGNALS = {signal.SIGINT, signal.SIGTERM}
"""What ends a service: the other side sees to that."""
MANY = 64
"""Rows a query from which on all cores are taken: then little else is to be done meanwhile."""
FEW = 16
"""Rows that are not worth sharing out: they take little longer than one."""


def run(
    path: Path, share: int, search: str | None, questions: socket.socket, news: Connection
) -> None:
    """Predict until the other side is gone."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    try:
        model = open_model(path)
    except (FecamError, OSError) as error:
        news.send(str(error))
        return
    gc.collect()
    gc.freeze()
    most = max(1, min(n_blas_threads(), n_cores() // share))
    with reserve_core(share), model, questions:
        known, inbox = ModelFollower(model, search), RequestQueue(questions)
        threading.Thread(target=known.follow, args=(news,), daemon=True).start()
        threading.Thread(target=inbox.fill, daemon=True).start()
        while asked := inbox.take():
            queries = [query for some in asked for query in some]
            with blas_threads(most) if _are_large(queries) else nullcontext():
                outcomes = predict_batch(known.view, queries)
            try:
                for some in asked:
                    put(questions.sendall, outcomes[: len(some)])
                    del outcomes[: len(some)]
            except OSError:
                break


class RequestQueue:
    """What is asked, as it comes in."""

    def __init__(self, questions: socket.socket) -> None:
        self._questions = questions
        self._messages: SimpleQueue[Batch | None] = SimpleQueue()
        self._waiting: deque[list[Query]] = deque()
        self._taken = 0

    def fill(self) -> None:
        """Read while the other side is there."""
        with self._questions.makefile("rb") as lines:
            while (message := got(lines)) is not None:
                self._messages.put(message)
        self._messages.put(None)

    def take(self) -> list[list[Query]]:
        """The queries of messages that have come, waiting for one; nothing at the end.

        Those who ask again when they have an answer come back together. Would all be taken that
        have come, a few and very many would take turns for ever, and while the few are judged the
        service has more to do than there is time for. So it is the mean of those and the last. Of
        large queries twice as many rows are taken: two cores judge one block each.
        """
        self._gather()
        mean = (sum(map(_rows, self._waiting)) + self._taken + 1) // 2
        large = bool(self._waiting) and _are_large(self._waiting[0])
        most = min(max(mean, FEW), (1 + large) * BLOCK_ROWS)
        messages, self._taken = list[list[Query]](), 0
        while self._waiting and (not messages or self._taken < most):
            messages.append(self._waiting.popleft())
            self._taken += _rows(messages[-1])
        return messages

    def _gather(self) -> None:
        """Get all messages that have come, and one at least, if there will be one."""
        with suppress(Empty):
            while (message := self._messages.get(block=not self._waiting)) is not None:
                self._waiting.append(decode_batch(message))
            self._messages.put(None)  # it is the last there is, also for who asks again


def _rows(queries: list[Query]) -> int:
    return sum(len(query.rows) for query in queries)


def _are_large(queries: list[Query]) -> bool:
    return _rows(queries) >= MANY * len(queries)


class ModelFollower:
    """What the process knows."""

    def __init__(self, model: Model, search: str | None) -> None:
        self._model, self._search = model, search
        self.view = ServedModel.of(model.snapshot, search)

    def follow(self, news: Connection) -> None:
        """Take over each version that is told of, and say so, or what the trouble is."""
        try:
            news.send(None)
            while True:
                news.send(self._trouble(news.recv()))
        except (OSError, EOFError):
            return

    def _trouble(self, version: int) -> str | None:
        try:
            self._model.reload()
            snapshot = self._model.snapshot
            warm(snapshot)
            self.view = ServedModel.of(snapshot, self._search)
        except (FecamError, OSError) as error:
            return str(error)
        return None if self.view.version >= version else "it does not find it in the file"
