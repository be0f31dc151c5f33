"""All requests that wait at the same moment are worked on together.

A product of sixty-four rows takes little longer than a product of one. Nobody waits for a batch to
fill: whoever works takes what is there, and meanwhile the next batch gathers.

Jobs are only ever touched by the event loop, so there is nothing to lock: whoever waits for a lock
gives up the interpreter, and to get it back from a thread at work takes longer than judging a row.
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
class _Waiting(Generic[J]):
    job: J
    size: int
    future: asyncio.Future[Any]
    until: float


class Batcher(Generic[J, R]):
    """Jobs of an event loop in batches, and what became of each.

    ``work`` is given several jobs and returns an outcome for each: a result, or an error that is
    raised where that job is awaited. At most ``most`` wait, for at most about ``seconds``; a batch
    has up to ``size`` items. ``ahead`` batches are handed over before the first is done, so that
    whoever works need not wait for the next, but none while those have ``room`` items or more:
    what is handed over is worked on, even if nobody waits for it any more.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[J]], Awaitable[Sequence[R | Exception]]],
        *,
        most: int,
        size: int,
        seconds: float,
        ahead: int = 1,
        room: int | None = None,
    ) -> None:
        self._name, self._work, self._most, self._size = name, work, most, size
        self._seconds, self._ahead, self._room = seconds, ahead, room
        self._waiting: deque[_Waiting[J]] = deque()
        self._at_work: dict[asyncio.Task[None], list[_Waiting[J]]] = {}
        self._handed = 0
        self._due = self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin; called where the event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._look = self._loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._give_up)

    def submit(self, job: J, size: int = 1) -> asyncio.Future[R]:
        """A future of what becomes of the job; refused if too many wait already."""
        loop = self._loop
        assert loop is not None, "it was started"
        if len(self._waiting) >= self._most or self._closing:
            raise queue_full_error(self._name)
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append(_Waiting(job, size, future, loop.time() + self._seconds))
        if not self._due and self._may_hand_over():
            self._due = True
            loop.call_soon(self._hand_over)  # with all else that comes in this turn of the loop
        return future

    async def close(self) -> None:
        """Finish all jobs that were accepted, and end."""
        if self._loop is None:
            return
        self._closing = True
        self._hand_over()
        while self._at_work:
            await asyncio.wait(self._at_work)
        self._look.cancel()

    def _hand_over(self) -> None:
        """Give away all that wait, as far as they fit into a batch."""
        assert self._loop is not None, "it was started"
        self._due = False
        while self._waiting and self._may_hand_over():
            batch, size = list[_Waiting[J]](), 0
            while self._waiting and (not batch or size + self._waiting[0].size <= self._size):
                one = self._waiting.popleft()
                if not one.future.done():  # else it waited too long: nobody asks any more
                    batch.append(one)
                    size += one.size
            if batch:
                self._at_work[self._loop.create_task(self._run(batch))] = batch
                self._handed += size

    def _may_hand_over(self) -> bool:
        has_room = self._room is None or self._handed < self._room
        return has_room and len(self._at_work) < self._ahead

    async def _run(self, batch: list[_Waiting[J]]) -> None:
        try:
            outcomes = await self._work([one.job for one in batch])
        except Exception as error:  # whoever waits is told, whatever it is
            outcomes = [error] * len(batch)
        task = asyncio.current_task()
        assert task is not None, "it is one"
        del self._at_work[task]
        self._handed -= sum(one.size for one in batch)
        self._hand_over()  # first, so that the work goes on meanwhile
        for one, outcome in zip(batch, outcomes, strict=True):
            if one.future.done():
                continue
            if isinstance(outcome, Exception):
                one.future.set_exception(outcome)
            else:
                one.future.set_result(outcome)

    def _give_up(self) -> None:
        """Tell those that have waited too long. One clock for all is cheaper than one for each."""
        assert self._loop is not None, "it was started"
        now = self._loop.time()
        for some in (*self._at_work.values(), self._waiting):
            for one in some:
                if one.until < now and not one.future.done():
                    error = timeout_error(f"there was no answer within {self._seconds:g} seconds.")
                    one.future.set_exception(error)
        self._look = self._loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._give_up)
