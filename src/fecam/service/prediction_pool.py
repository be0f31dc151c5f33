"""`PredictionPool`: predicts with the published model in worker processes, or in a thread.

A worker process predicts while this process reads requests and writes responses. It follows the
model's file. A version is published after all workers have loaded it, so a client that taught a
class gets answers that include it. While no worker runs, a thread of this process predicts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fecam.core.threads import n_cores
from fecam.model_file.snapshot import Snapshot
from fecam.service.frames import Outcomes
from fecam.service.logs import log
from fecam.service.problems import timeout_error
from fecam.service.served_model import Query, ServedModel, precompute, predict_batch
from fecam.service.settings import ServiceSettings
from fecam.service.worker_handle import WorkerHandle

RESTART_DELAY_S, MAX_RESTART_DELAY_S = 1.0, 60.0
"""Seconds before a dead worker is replaced; doubled after each failed start."""


def predict_worker_count(settings: ServiceSettings) -> int:
    """Return the number of prediction workers per service: by default 1 if a core is free."""
    if settings.predict_workers is not None:
        return settings.predict_workers
    return int(n_cores() >= 2 * settings.workers)


class PredictionPool:
    """Answers queries with ``n_workers`` processes; ``n_processes`` share the machine."""

    def __init__(
        self,
        path: Path,
        snapshot: Snapshot | None,
        *,
        n_workers: int,
        n_processes: int,
        seconds: float,
        search: str | None = None,
    ) -> None:
        self.served = ServedModel.from_snapshot(snapshot, search)
        self._path, self._n_processes, self._search = path, n_processes, search
        self._n_workers, self._seconds = n_workers, seconds
        self.startup_done = not n_workers
        """Whether all workers have started once, or one failed to start."""
        self._workers: list[WorkerHandle] = []
        self._publishing = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-predict")
        self._supervisors: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        """Start the workers in the background; called in the event loop."""
        self._supervisors = [asyncio.create_task(self._supervise()) for _ in range(self._n_workers)]

    async def close(self) -> None:
        """Stop the workers; no query may be pending."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        if self._supervisors:
            await asyncio.wait(self._supervisors)
        await asyncio.to_thread(self._thread.shutdown)

    async def predict(self, queries: Sequence[Query]) -> Outcomes:
        """Return the answers or an error for each query."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while workers := list(self._workers):  # a copy: `publish` removes workers in a thread
            worker = min(workers, key=len)
            try:
                return await worker.predict(queries)
            except ConnectionError:
                self._discard(worker)
            if loop.time() - start > self._seconds:
                return [timeout_error("a prediction worker died.")] * len(queries)
        return await loop.run_in_executor(self._thread, predict_batch, self.served, queries)

    def publish(self, snapshot: Snapshot | None) -> None:
        """Serve a snapshot, after all factors have been computed; for any thread."""
        with self._publishing:
            version = 0 if snapshot is None else snapshot.version
            for worker in list(self._workers):
                try:
                    worker.wait_for_version(version)
                except ConnectionError as error:
                    log.warning("a prediction worker cannot load version %d: %s", version, error)
                    self._discard(worker)
                    worker.kill()
            if not self._n_workers:
                precompute(snapshot)
            self.served = ServedModel.from_snapshot(snapshot, self._search)

    def _discard(self, worker: WorkerHandle) -> None:
        """Send no more queries to a worker; its supervisor starts another."""
        with suppress(ValueError):
            self._workers.remove(worker)
        worker.disconnect()

    async def _supervise(self) -> None:
        """Run a worker, and another when it exits."""
        delay = RESTART_DELAY_S
        while True:
            worker = WorkerHandle(self._path, self._n_processes, self._search)
            try:
                await worker.start()
                await asyncio.to_thread(self._add, worker)
                delay = RESTART_DELAY_S
                await worker.watch(self._seconds)
                log.warning("a prediction worker has exited; another is started")
            except OSError as error:  # includes ConnectionError
                log.warning("a prediction worker cannot be started: %s", error)
                self.startup_done, delay = True, min(2 * delay, MAX_RESTART_DELAY_S)
            finally:
                self._discard(worker)
                await asyncio.shield(asyncio.to_thread(worker.close))
            await asyncio.sleep(delay)

    def _add(self, worker: WorkerHandle) -> None:
        """Use a worker once it has loaded the published version."""
        with self._publishing:
            worker.wait_for_version(self.served.version)
            self._workers.append(worker)
            self.startup_done |= len(self._workers) >= self._n_workers
