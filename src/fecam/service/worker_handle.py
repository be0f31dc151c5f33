"""`WorkerHandle`: a prediction worker, and two lines to it, one for questions and one for news.

It never writes. It ends by itself when the other side is gone, however that ended; signals that
mean to end a service are left to the other side, which first finishes what was accepted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from fecam.service.frames import LENGTH, Batch, Outcomes, encode_batch, put
from fecam.service.prediction_worker import SIGNALS, run
from fecam.service.served_model import Query
from fecam.service.timeouts import SWEEPS_PER_TIMEOUT

START, DERIVE, END = 60.0, 300.0, 5.0
"""Seconds that a process may take to begin, to take over a version, and to end."""


class WorkerHandle:
    """The process, seen from the service; ``share`` of them share the machine."""

    def __init__(self, path: Path, share: int, search: str | None = None) -> None:
        self._path, self._share, self._search = path, share, search
        self._line: _Channel | None = None
        self._news: Connection | None = None
        self._process: BaseProcess | None = None

    def __len__(self) -> int:
        """How many messages it has not answered yet."""
        return 0 if self._line is None else len(self._line.asked)

    async def start(self) -> None:
        """Start it, and wait until it lives."""
        loop = asyncio.get_running_loop()
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        try:
            ours = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            while not spawning.done():  # nothing may be left behind that nobody knows
                self.kill()
                await asyncio.wait({spawning}, timeout=0.1)
            if spawning.exception() is None:
                spawning.result().close()
            raise
        _, self._line = await loop.create_connection(_Channel, sock=ours)

    def _spawn(self) -> socket.socket:
        # Threads of BLAS that have nothing to do must sleep, for others need their core.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        self._news, news = context.Pipe()
        try:
            with theirs, news, _deaf():
                told = self._path, self._share, self._search, theirs, news
                self._process = context.Process(target=run, args=told, daemon=True)
                self._process.start()
            self._hear(START)
        except BaseException:
            ours.close()
            raise
        return ours

    async def answer(self, queries: Sequence[Query]) -> Outcomes:
        """What becomes of each query."""
        assert self._line is not None, "it was started"
        return cast(Outcomes, await self._line.ask(encode_batch(queries)))

    def reach(self, version: int) -> None:
        """Wait until answers come from this version or a later one; for one thread at a time."""
        assert self._news is not None, "it was started"
        try:
            self._news.send(version)
        except OSError as error:
            raise ConnectionError(str(error)) from None
        self._hear(DERIVE)

    def _hear(self, seconds: float) -> None:
        assert self._news is not None, "it was started"
        try:
            if not self._news.poll(seconds):
                raise ConnectionError(f"it was silent for {seconds:g} seconds")
            trouble = self._news.recv()
        except ConnectionError:
            raise
        except (OSError, EOFError):
            raise ConnectionError("it has ended") from None
        if trouble is not None:
            raise ConnectionError(trouble)

    async def ended(self, seconds: float) -> None:
        """Wait until it has ended; if it is silent for so long, end it.

        A long queue is no silence, and somebody who only teaches must not wait for it either: so
        where nobody asks anything, it is asked nothing, and has to answer that.
        """
        assert self._line is not None, "it was started"
        line = self._line
        while not line.lost.done():
            await asyncio.wait({line.lost}, timeout=seconds / SWEEPS_PER_TIMEOUT)
            if not line.asked:
                line.ask(encode_batch([])).add_done_callback(lambda found: found.exception())
            elif line.silence > seconds:
                self.kill()

    def hang_up(self) -> None:
        """Ask nothing more, so that it ends; for any thread."""
        if self._line is not None:
            self._line.close()

    def kill(self) -> None:
        """End it, whatever it does; for any thread. Who waits for it hears of it."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()

    def close(self) -> None:
        """Wait until it has ended."""
        self.hang_up()
        if self._process is not None and self._process.pid is not None:
            self._process.join(END)
            self._process.kill()
            self._process.join()
        if self._news is not None:
            self._news.close()


class _Channel(asyncio.Protocol):
    """Messages to the process, and its answers, which come in the same order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.asked: deque[asyncio.Future[Any]] = deque()
        self._since = self._loop.time()
        self._heard = bytearray()

    @property
    def silence(self) -> float:
        """Seconds since it was heard of, or was asked after a pause."""
        return self._loop.time() - self._since

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, message: Batch) -> asyncio.Future[Any]:
        """A future of the answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(ConnectionError("it has ended"))
            return future
        if not self.asked:
            self._since = self._loop.time()
        self.asked.append(future)
        put(self._transport.write, message)
        return future

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that are complete."""
        self._heard += data
        while len(self._heard) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._heard)[0]
            if len(self._heard) < end:
                return
            with memoryview(self._heard) as heard:
                answer = pickle.loads(heard[LENGTH.size : end])
            del self._heard[:end]
            self._since = self._loop.time()
            future = self.asked.popleft()
            if not future.done():
                future.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell all who wait."""
        if not self.lost.done():
            self.lost.set_result(None)
        while self.asked:
            future = self.asked.popleft()
            if not future.done():
                future.set_exception(ConnectionError("it has ended"))

    def close(self) -> None:
        """Hang up; for any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._transport.close)


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started meanwhile hears no signal, from its very beginning."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would unblock them when it begins
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
