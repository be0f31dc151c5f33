"""`PredictionPool`: predicts with the published model in worker processes, or in a thread.

Python runs one thread of a process at a time: while rows are judged, requests wait to be read and
answers to be written, and the other way round. In two processes both go on at once.

A prediction worker (`fecam.service.worker_handle`) follows the model's file. A version is published
only when all of them have taken it over, so whoever taught a class finds it there. Until they have
begun, and should they die, a thread of this process predicts, and others are started.
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
from fecam.service.served_model import Query, ServedModel, predict_batch, warm
from fecam.service.settings import ServiceSettings
from fecam.service.worker_handle import WorkerHandle

PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a process that has ended is replaced: twice as many if it does not begin."""


def predict_worker_count(settings: ServiceSettings) -> int:
    """How many processes judge for each service; if nothing is said, one if there is a core."""
    if settings.predict_workers is not None:
        return settings.predict_workers
    return int(n_cores() >= 2 * settings.workers)


class PredictionPool:
    """Answers queries, by so many processes if they can be had."""

    def __init__(
        self,
        path: Path,
        snapshot: Snapshot | None,
        *,
        predict_workers: int,
        share: int,
        seconds: float,
        search: str | None = None,
    ) -> None:
        self.view = ServedModel.of(snapshot, search)
        self._path, self._share, self._seconds, self._search = path, share, seconds, search
        self._predict_workers = predict_workers
        self.settled = not predict_workers
        """Whether those who should judge have begun once, or cannot be had."""
        self._ready: list[WorkerHandle] = []
        self._publishing = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-judge")
        self._keepers: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._ready)

    def start(self) -> None:
        """Begin; called where the event loop runs. The processes come when they are ready."""
        self._keepers = [asyncio.create_task(self._keep()) for _ in range(self._predict_workers)]

    async def close(self) -> None:
        """End; nobody may ask any more."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        await asyncio.to_thread(self._thread.shutdown)

    async def answer(self, queries: Sequence[Query]) -> Outcomes:
        """What becomes of each query."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while ready := list(self._ready):  # a thread that publishes may lose one
            process = min(ready, key=len)
            try:
                return await process.answer(queries)
            except ConnectionError:
                self._lose(process)
            if loop.time() - begun > self._seconds:
                return [timeout_error("a prediction worker was lost.")] * len(queries)
        return await loop.run_in_executor(self._thread, predict_batch, self.view, queries)

    def publish(self, snapshot: Snapshot | None) -> None:
        """Let answers come from a snapshot, once all is derived that they need; for any thread."""
        with self._publishing:
            version = 0 if snapshot is None else snapshot.version
            for process in list(self._ready):
                self._tell(process, version)
            if not self._predict_workers:
                warm(snapshot)
            self.view = ServedModel.of(snapshot, self._search)

    def _tell(self, process: WorkerHandle, version: int) -> None:
        try:
            process.reach(version)
        except ConnectionError as error:
            log.warning("a prediction worker knows no version %d: %s", version, error)
            self._lose(process)
            process.kill()

    def _lose(self, process: WorkerHandle) -> None:
        """Ask it no more; its keeper sees to another."""
        with suppress(ValueError):
            self._ready.remove(process)
        process.hang_up()

    async def _keep(self) -> None:
        """Have a process, and another when it ends."""
        pause = PAUSE
        while True:
            process = WorkerHandle(self._path, self._share, self._search)
            try:
                await process.start()
                await asyncio.to_thread(self._take, process)
                pause = PAUSE
                await process.ended(self._seconds)
                log.warning("a prediction worker has ended; another is started")
            except OSError as error:  # of which a lost connection is one
                log.warning("a prediction worker cannot be had: %s", error)
                self.settled, pause = True, min(2 * pause, LONGEST_PAUSE)
            finally:
                self._lose(process)
                await asyncio.shield(asyncio.to_thread(process.close))
            await asyncio.sleep(pause)

    def _take(self, process: WorkerHandle) -> None:
        """Let a process answer, once it knows what is known here."""
        with self._publishing:
            process.reach(self.view.version)
            self._ready.append(process)
            self.settled |= len(self._ready) >= self._predict_workers
