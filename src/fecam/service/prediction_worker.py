"""Main loop of a prediction worker: see `fecam.service.worker_handle`."""

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
from fecam.model import Model
from fecam.service.frames import Batch, decode_batch, read_frame, write_frame
from fecam.service.served_model import BLOCK_ROWS, Query, ServedModel, precompute, predict_batch

SIGNALS = {signal.SIGINT, signal.SIGTERM}
"""Signals that stop a service. Workers ignore them: the service stops its workers."""
ALL_CORES_ROWS = 64
"""Rows per query from which a worker uses all cores: the service has little to do meanwhile."""
MIN_ROWS = 16
"""Rows that one product always takes: 16 take little longer than one."""


def run(
    path: Path, n_processes: int, search: str | None, requests: socket.socket, control: Connection
) -> None:
    """Predict until the service closes the socket; ``n_processes`` share the machine."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    try:
        model = Model(path)
    except (FecamError, OSError) as error:
        control.send(str(error))
        return
    gc.collect()
    gc.freeze()  # full collections do not traverse the imported modules
    max_threads = max(1, min(n_blas_threads(), n_cores() // n_processes))
    with reserve_core(n_processes), model, requests:
        follower, queue = ModelFollower(model, search), RequestQueue(requests)
        threading.Thread(target=follower.follow, args=(control,), daemon=True).start()
        threading.Thread(target=queue.fill, daemon=True).start()
        while batches := queue.next_batches():
            queries = [query for batch in batches for query in batch]
            with blas_threads(max_threads) if _use_all_cores(queries) else nullcontext():
                outcomes = predict_batch(follower.served, queries)
            try:
                for batch in batches:
                    write_frame(requests.sendall, outcomes[: len(batch)])
                    del outcomes[: len(batch)]
            except OSError:
                break


class RequestQueue:
    """The batches of queries that arrive on a socket."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._frames: SimpleQueue[Batch | None] = SimpleQueue()
        self._waiting: deque[list[Query]] = deque()
        self._n_taken = 0

    def fill(self) -> None:
        """Read frames until the socket is closed."""
        with self._requests.makefile("rb") as file:
            while (frame := read_frame(file)) is not None:
                self._frames.put(frame)
        self._frames.put(None)

    def next_batches(self) -> list[list[Query]]:
        """Return queued batches and wait for the first; an empty list at the end.

        The number of rows is the mean of the queue and the last product: if all were taken, small
        and large products would alternate. Large queries get two blocks, one per core.
        """
        self._receive()
        mean = (sum(map(_n_rows, self._waiting)) + self._n_taken + 1) // 2
        large = bool(self._waiting) and _use_all_cores(self._waiting[0])
        max_rows = min(max(mean, MIN_ROWS), (1 + large) * BLOCK_ROWS)
        batches, self._n_taken = list[list[Query]](), 0
        while self._waiting and (not batches or self._n_taken < max_rows):
            batches.append(self._waiting.popleft())
            self._n_taken += _n_rows(batches[-1])
        return batches

    def _receive(self) -> None:
        """Move all frames that have arrived to the queue; wait for one if the queue is empty."""
        with suppress(Empty):
            while (frame := self._frames.get(block=not self._waiting)) is not None:
                self._waiting.append(decode_batch(frame))
            self._frames.put(None)  # the end stays the end for later calls


def _n_rows(queries: list[Query]) -> int:
    return sum(len(query.rows) for query in queries)


def _use_all_cores(queries: list[Query]) -> bool:
    return _n_rows(queries) >= ALL_CORES_ROWS * len(queries)


class ModelFollower:
    """The model that a worker serves; it reloads the file on request."""

    def __init__(self, model: Model, search: str | None) -> None:
        self._model, self._search = model, search
        self.served = ServedModel.from_snapshot(model.snapshot, search)

    def follow(self, control: Connection) -> None:
        """Load each requested version; reply with None or an error message."""
        try:
            control.send(None)
            while True:
                control.send(self._reload_error(control.recv()))
        except (OSError, EOFError):
            return

    def _reload_error(self, version: int) -> str | None:
        try:
            self._model.reload()
            snapshot = self._model.snapshot
            precompute(snapshot)
            self.served = ServedModel.from_snapshot(snapshot, self._search)
        except (FecamError, OSError) as error:
            return str(error)
        return None if self.served.version >= version else f"the file has no version {version}"
