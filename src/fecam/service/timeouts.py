"""One timer for all requests whose bodies are read: a timer per read costs more than most reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

SWEEPS_PER_TIMEOUT = 20
"""Checks per timeout, so that a timeout is late by at most 5 %."""


class TimeoutSweeper:
    """Waits with a timeout of about ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._sweeping = False

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Return its result, or raise `TimeoutError`."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "called in a task"
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._sweep, loop)
        self._deadlines[task] = loop.time() + self._seconds
        try:
            return await awaitable
        except asyncio.CancelledError:
            if task in self._expired and not task.uncancel():
                raise TimeoutError from None
            raise
        finally:
            del self._deadlines[task]
            self._expired.discard(task)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, deadline in self._deadlines.items():
            if deadline < now and task not in self._expired:
                self._expired.add(task)
                task.cancel()
        self._sweeping = bool(self._deadlines)
        if self._sweeping:
            loop.call_later(self._seconds / SWEEPS_PER_TIMEOUT, self._sweep, loop)
