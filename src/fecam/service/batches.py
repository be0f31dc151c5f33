"""One thread that works on all requests that wait at the same moment together.

A product of sixty-four rows takes little longer than a product of one. Nobody waits for a batch to
fill: the thread takes what is there, and while it works the next batch gathers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fecam.service.problems import busy

J = TypeVar("J")
R = TypeVar("R")


@dataclass(slots=True)
class _Waiting(Generic[J]):
    job: J
    size: int
    future: asyncio.Future[Any]


class Batcher(Generic[J, R]):
    """Jobs from an event loop to a thread, and what became of each back again.

    ``work`` is given several jobs and returns an outcome for each: a result, or an error that is
    raised where that job is awaited. At most ``most`` wait; a batch has up to ``size`` items.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[J]], Sequence[R | Exception]],
        *,
        most: int,
        size: int,
    ) -> None:
        self._name, self._work, self._most, self._size = name, work, most, size
        self._waiting: deque[_Waiting[J]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"fecam-{name}", daemon=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin; called where the event loop runs."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, job: J, size: int = 1) -> asyncio.Future[R]:
        """A future of what becomes of the job; refused if too many wait already."""
        assert self._loop is not None, "it was started"
        if len(self._waiting) >= self._most or self._closing:
            raise busy(self._name)
        future: asyncio.Future[R] = self._loop.create_future()
        with self._wake:
            self._waiting.append(_Waiting(job, size, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Finish all jobs that were accepted, and end."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            try:
                outcomes: Sequence[R | Exception] = self._work([one.job for one in batch])
            except Exception as error:  # whoever waits is told, whatever it is
                outcomes = [error] * len(batch)
            loop = self._loop
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, batch, outcomes)

    def _next(self) -> list[_Waiting[J]]:
        """All that wait, as far as they fit into a batch; nothing at the end."""
        with self._wake:
            while True:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                batch, size = list[_Waiting[J]](), 0
                while self._waiting and (not batch or size + self._waiting[0].size <= self._size):
                    one = self._waiting.popleft()
                    if not one.future.cancelled():  # else it waited too long: nobody asks any more
                        batch.append(one)
                        size += one.size
                if batch or self._closing:
                    return batch


def _deliver(batch: list[_Waiting[Any]], outcomes: Sequence[Any]) -> None:
    for one, outcome in zip(batch, outcomes, strict=True):
        if one.future.done():
            continue
        if isinstance(outcome, Exception):
            one.future.set_exception(outcome)
        else:
            one.future.set_result(outcome)
