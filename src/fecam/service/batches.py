"""`Batcher`: processes all queued jobs together; no job waits for a batch to fill.

Only the event loop touches the jobs, so there is no lock: after waiting for one, getting the GIL
back from a busy thread takes longer than predicting a row.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fecam.service.problems import queue_full_error, timeout_error

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Job(Generic[J]):
    payload: J
    size: int
    future: asyncio.Future[Any]


class Batcher(Generic[J, R]):
    """Runs the jobs of an event loop in batches of up to ``max_batch`` items.

    ``work`` returns a result or an error for each job. Up to ``max_inflight`` batches run at the
    same time. A started job is computed even if its client is gone.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[J]], Awaitable[Sequence[R | Exception]]],
        *,
        max_queue: int,
        max_batch: int,
        seconds: float,
        max_inflight: int = 1,
    ) -> None:
        self._name, self._work, self._seconds = name, work, seconds
        self._max_queue, self._max_batch, self._max_inflight = max_queue, max_batch, max_inflight
        self._queue: deque[_Job[J]] = deque()
        self._inflight: set[asyncio.Task[None]] = set()
        self._dispatch_scheduled = self._closing = False

    def __len__(self) -> int:
        return len(self._queue)

    async def run(self, payload: J, size: int = 1) -> R:
        """Return the result; raise `Problem` if the queue is full or the time is over."""
        if len(self._queue) >= self._max_queue or self._closing:
            raise queue_full_error(self._name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._queue.append(_Job(payload, size, future))
        if not self._dispatch_scheduled and len(self._inflight) < self._max_inflight:
            self._dispatch_scheduled = True
            loop.call_soon(self._dispatch)  # with all other jobs of this iteration of the loop
        try:
            async with asyncio.timeout(self._seconds):
                return await future
        except TimeoutError:
            raise timeout_error(f"there was no answer within {self._seconds:g} seconds.") from None

    async def close(self) -> None:
        """Finish all accepted jobs."""
        self._closing = True
        self._dispatch()
        while self._inflight:
            await asyncio.wait(self._inflight)

    def _dispatch(self) -> None:
        """Start batches of the queued jobs while there is capacity."""
        self._dispatch_scheduled = False
        while self._queue and len(self._inflight) < self._max_inflight:
            batch, size = list[_Job[J]](), 0
            while self._queue and (not batch or size + self._queue[0].size <= self._max_batch):
                job = self._queue.popleft()
                if not job.future.done():  # else it timed out
                    batch.append(job)
                    size += job.size
            if batch:
                self._inflight.add(asyncio.ensure_future(self._run(batch)))

    async def _run(self, batch: list[_Job[J]]) -> None:
        try:
            outcomes = await self._work([job.payload for job in batch])
        except Exception as error:  # any error goes to the waiting clients
            outcomes = [error] * len(batch)
        task = asyncio.current_task()
        assert task is not None, "run as a task"
        self._inflight.discard(task)
        self._dispatch()  # first, so that the next batch is computed meanwhile
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
