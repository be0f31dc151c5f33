"""One clock for all who wait for a client: a clock for each would take longer than most waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

SWEEPS_PER_TIMEOUT = 20
"""How often in the time that somebody may wait it is looked whether that is over."""


class TimeoutSweeper:
    """Waits for at most about so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._looking = False

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """What it gives, or a `TimeoutError`."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "who waits is a task"
        if not self._looking:
            self._looking = True
            loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._look, loop)
        self._until[task] = loop.time() + self._seconds
        try:
            return await awaitable
        except asyncio.CancelledError:
            if task in self._late and not task.uncancel():
                raise TimeoutError from None
            raise
        finally:
            del self._until[task]
            self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, until in self._until.items():
            if until < now and task not in self._late:
                self._late.add(task)
                task.cancel()
        self._looking = bool(self._until)
        if self._looking:
            loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._look, loop)
