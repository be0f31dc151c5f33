"""`Batcher`: processes all queued jobs together; no job waits for a batch to fill.

Only the event loop touches the jobs, so there is no lock: after waiting for one, getting the GIL
back from a busy thread takes longer than predicting a row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fecam.service.problems import queue_full_error, timeout_error
from fecam.service.timeouts import SWEEPS_PER_TIMEOUT

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Job(Generic[J]):
    payload: J
    size: int
    future: asyncio.Future[Any]
    deadline: float


class Batcher(Generic[J, R]):
    """Runs the jobs of an event loop in batches of up to ``max_batch`` items.

    ``work`` returns a result or an error for each job. Up to ``max_inflight_batches`` run at the
    same time, but none starts while they have ``max_inflight_items`` items or more: a started job
    is computed even if its client is gone.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[J]], Awaitable[Sequence[R | Exception]]],
        *,
        max_queue: int,
        max_batch: int,
        seconds: float,
        max_inflight_batches: int = 1,
        max_inflight_items: int | None = None,
    ) -> None:
        self._name, self._work, self._seconds = name, work, seconds
        self._max_queue, self._max_batch = max_queue, max_batch
        self._max_inflight_batches = max_inflight_batches
        self._max_inflight_items = max_inflight_items
        self._queue: deque[_Job[J]] = deque()
        self._inflight: dict[asyncio.Task[None], list[_Job[J]]] = {}
        self._n_inflight_items = 0
        self._dispatch_scheduled = self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Start the timeouts; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._sweep = self._loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._expire)

    def submit(self, payload: J, size: int = 1) -> asyncio.Future[R]:
        """Return a future of the result; raise `Problem` if the queue is full."""
        loop = self._loop
        assert loop is not None, "started"
        if len(self._queue) >= self._max_queue or self._closing:
            raise queue_full_error(self._name)
        future: asyncio.Future[R] = loop.create_future()
        self._queue.append(_Job(payload, size, future, loop.time() + self._seconds))
        if not self._dispatch_scheduled and self._has_capacity():
            self._dispatch_scheduled = True
            loop.call_soon(self._dispatch)  # with all other jobs of this iteration of the loop
        return future

    async def close(self) -> None:
        """Finish all accepted jobs."""
        if self._loop is None:
            return
        self._closing = True
        self._dispatch()
        while self._inflight:
            await asyncio.wait(self._inflight)
        self._sweep.cancel()

    def _dispatch(self) -> None:
        """Start batches of the queued jobs while there is capacity."""
        assert self._loop is not None, "started"
        self._dispatch_scheduled = False
        while self._queue and self._has_capacity():
            batch, size = list[_Job[J]](), 0
            while self._queue and (not batch or size + self._queue[0].size <= self._max_batch):
                job = self._queue.popleft()
                if not job.future.done():  # else it timed out
                    batch.append(job)
                    size += job.size
            if batch:
                self._inflight[self._loop.create_task(self._run(batch))] = batch
                self._n_inflight_items += size

    def _has_capacity(self) -> bool:
        limit = self._max_inflight_items
        return len(self._inflight) < self._max_inflight_batches and (
            limit is None or self._n_inflight_items < limit
        )

    async def _run(self, batch: list[_Job[J]]) -> None:
        try:
            outcomes = await self._work([job.payload for job in batch])
        except Exception as error:  # any error goes to the waiting clients
            outcomes = [error] * len(batch)
        task = asyncio.current_task()
        assert task is not None, "run as a task"
        del self._inflight[task]
        self._n_inflight_items -= sum(job.size for job in batch)
        self._dispatch()  # first, so that the next batch is computed meanwhile
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _expire(self) -> None:
        """Fail the jobs past their deadline. One timer for all is cheaper than one per job."""
        assert self._loop is not None, "started"
        now = self._loop.time()
        for jobs in (*self._inflight.values(), self._queue):
            for job in jobs:
                if job.deadline < now and not job.future.done():
                    error = timeout_error(f"there was no answer within {self._seconds:g} seconds.")
                    job.future.set_exception(error)
        self._sweep = self._loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._expire)
