"""`WorkerHandle`: a prediction worker, with a socket for queries and a pipe for model versions.

A worker never writes the model. It exits when the service closes the socket or dies. It ignores
signals that stop a service, because the service first finishes the accepted requests.
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

from fecam.service.frames import LENGTH, Batch, Outcomes, encode_batch, write_frame
from fecam.service.prediction_worker import SIGNALS, run
from fecam.service.served_model import Query
from fecam.service.timeouts import SWEEPS_PER_TIMEOUT

START_TIMEOUT_S, UPDATE_TIMEOUT_S, EXIT_TIMEOUT_S = 60.0, 300.0, 5.0
"""Seconds that a worker may take to start, to load a version, and to exit."""


class WorkerHandle:
    """A worker process; ``n_processes`` of them share the machine."""

    def __init__(self, path: Path, n_processes: int, search: str | None = None) -> None:
        self._path, self._n_processes, self._search = path, n_processes, search
        self._channel: _Channel | None = None
        self._control: Connection | None = None
        self._process: BaseProcess | None = None

    def __len__(self) -> int:
        """Return the number of batches without a reply."""
        return 0 if self._channel is None else len(self._channel.pending)

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        loop = asyncio.get_running_loop()
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        try:
            ours = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            while not spawning.done():  # no process may be left without a handle
                self.kill()
                await asyncio.wait({spawning}, timeout=0.1)
            if spawning.exception() is None:
                spawning.result().close()
            raise
        _, self._channel = await loop.create_connection(_Channel, sock=ours)

    def _spawn(self) -> socket.socket:
        # Idle BLAS threads must sleep, because other processes need their core.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        context = multiprocessing.get_context("spawn")
        ours, theirs = socket.socketpair()
        self._control, control = context.Pipe()
        try:
            with theirs, control, _signals_blocked():
                arguments = self._path, self._n_processes, self._search, theirs, control
                self._process = context.Process(target=run, args=arguments, daemon=True)
                self._process.start()
            self._await_reply(START_TIMEOUT_S)
        except BaseException:
            ours.close()
            raise
        return ours

    async def predict(self, queries: Sequence[Query]) -> Outcomes:
        """Return the answers or an error for each query."""
        assert self._channel is not None, "started"
        return cast(Outcomes, await self._channel.send(encode_batch(queries)))

    def wait_for_version(self, version: int) -> None:
        """Wait until the worker serves this version or a later one; for one thread at a time."""
        assert self._control is not None, "started"
        try:
            self._control.send(version)
        except OSError as error:
            raise ConnectionError(str(error)) from None
        self._await_reply(UPDATE_TIMEOUT_S)

    def _await_reply(self, seconds: float) -> None:
        assert self._control is not None, "started"
        try:
            if not self._control.poll(seconds):
                raise ConnectionError(f"no reply within {seconds:g} seconds")
            message = self._control.recv()
        except ConnectionError:
            raise
        except (OSError, EOFError):
            raise ConnectionError("it has exited") from None
        if message is not None:
            raise ConnectionError(message)

    async def watch(self, seconds: float) -> None:
        """Wait for the exit of the worker; kill it if it sends no heartbeat for ``seconds``."""
        assert self._channel is not None, "started"
        channel = self._channel
        while not channel.closed.done():
            await asyncio.wait({channel.closed}, timeout=seconds / SWEEPS_PER_TIMEOUT)
            if not channel.pending:
                channel.send(encode_batch([])).add_done_callback(lambda reply: reply.exception())
            elif channel.idle_s > seconds:
                self.kill()

    def disconnect(self) -> None:
        """Close the socket, so that the worker exits; for any thread."""
        if self._channel is not None:
            self._channel.close()

    def kill(self) -> None:
        """Kill the process; for any thread. Pending queries fail with `ConnectionError`."""
        if self._process is not None and self._process.pid is not None:
            self._process.kill()

    def close(self) -> None:
        """Disconnect and wait until the process has exited."""
        self.disconnect()
        if self._process is not None and self._process.pid is not None:
            self._process.join(EXIT_TIMEOUT_S)
            self._process.kill()
            self._process.join()
        if self._control is not None:
            self._control.close()


class _Channel(asyncio.Protocol):
    """Sends batches to a worker; the replies arrive in the same order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.pending: deque[asyncio.Future[Any]] = deque()
        self._last_active = self._loop.time()
        self._received = bytearray()

    @property
    def idle_s(self) -> float:
        """Seconds since the last reply, or since the first pending batch was sent."""
        return self._loop.time() - self._last_active

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, batch: Batch) -> asyncio.Future[Any]:
        """Send a batch and return a future of the reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed.done():
            future.set_exception(ConnectionError("it has exited"))
            return future
        if not self.pending:
            self._last_active = self._loop.time()
        self.pending.append(future)
        write_frame(self._transport.write, batch)
        return future

    def data_received(self, data: bytes) -> None:
        """Resolve the futures of all complete replies."""
        self._received += data
        while len(self._received) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            with memoryview(self._received) as received:
                reply = pickle.loads(received[LENGTH.size : end])
            del self._received[:end]
            self._last_active = self._loop.time()
            future = self.pending.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all pending futures."""
        if not self.closed.done():
            self.closed.set_result(None)
        while self.pending:
            future = self.pending.popleft()
            if not future.done():
                future.set_exception(ConnectionError("it has exited"))

    def close(self) -> None:
        """Close the connection; for any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._transport.close)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals, so that a process started meanwhile inherits the mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock the signals
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
