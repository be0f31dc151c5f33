"""`Replica`: an engine that predicts from a copy of the model and forwards changes to the writer.

It polls the writer and updates its copy in a transaction. The file is not replaced, so the factors
of unchanged classes stay cached.
"""

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fecam.files import write_atomically
from fecam.service.blocks import apply_blocks
from fecam.service.engine import Engine
from fecam.service.logs import log
from fecam.service.problems import Problem
from fecam.service.settings import ServiceSettings
from fecam.service.writer import FileDelta, WriterStatus, digest

CallWriter = Callable[..., Awaitable[Any]]
"""`Writer.call` over the network; raises `ConnectionError` if the writer dies or is unreachable."""

FETCH_TIMEOUT_S = 15.0
"""Seconds to wait for a version that the writer has and the replica is fetching."""
RETRY_S = 0.2
"""Seconds between two calls of a writer that does not reply."""


def writer_unreachable() -> Problem:
    """Return the error of a change whose outcome is unknown."""
    return Problem(
        502,  # a client must not retry without an idempotency key
        "writer",
        "the writer does not reply and is replaced. The change may have been made or not. With an "
        "Idempotency-Key the request can be repeated; otherwise check GET /v1/history.",
    )


class Replica(Engine):
    """Predicts from a copy of the model; changes go to the writer."""

    def __init__(self, settings: ServiceSettings, call_writer: CallWriter) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="fecam-replica-", ignore_cleanup_errors=True
        )
        folder = Path(self._folder.name)
        self._copy, self._tokens = folder / "copy", folder / "tokens.json"
        if settings.tokens is not None:
            settings = replace(settings, tokens=self._tokens)
        super().__init__(settings, folder / "model.fecam")
        self._call_writer = call_writer
        self._version, self._digests, self._tokens_digest = 0, list[bytes](), ""
        self._writer_version = 0
        self._last_reply, self._failing = time.monotonic(), False
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetch the current version, then follow the writer."""
        while not await self._sync_once():
            await asyncio.sleep(RETRY_S)
        await asyncio.to_thread(self.model.reload)
        await asyncio.to_thread(self.publish)
        await super().start()
        self._following = asyncio.create_task(self._sync())

    async def close(self) -> None:
        """Finish the accepted requests."""
        if self._following is not None:
            self._following.cancel()
        await super().close()
        self._folder.cleanup()

    def version_timeout(self, version: int) -> float:
        """Return the seconds to wait for a version: longer if the writer has it."""
        is_known = version <= self._writer_version
        return FETCH_TIMEOUT_S if is_known else super().version_timeout(version)

    async def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Forward to the writer; on return the change is on its disk."""
        return await self._forward("learn", *args, **kwargs)

    async def forget(self, *args: Any, **kwargs: Any) -> Any:
        """Forward to the writer."""
        return await self._forward("forget", *args, **kwargs)

    async def rename(self, *args: Any, **kwargs: Any) -> Any:
        """Forward to the writer."""
        return await self._forward("rename", *args, **kwargs)

    async def join(self, *args: Any, **kwargs: Any) -> Any:
        """Forward to the writer."""
        return await self._forward("join", *args, **kwargs)

    async def undo(self, *args: Any, **kwargs: Any) -> Any:
        """Forward to the writer."""
        return await self._forward("undo", *args, **kwargs)

    async def _forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Wait while the writer replies to polls, and ``limits.seconds`` after its last reply."""
        self._n_writes += 1
        task = asyncio.ensure_future(self._call(method, *args, **kwargs))
        try:
            while not (await asyncio.wait({task}, timeout=RETRY_S))[0]:
                if time.monotonic() - self._last_reply > self.limits.seconds:
                    raise writer_unreachable()
            return task.result()
        except ConnectionError:
            raise writer_unreachable() from None
        finally:
            task.cancel()
            self._n_writes -= 1

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        reply = await self._call_writer(method, *args, **kwargs)
        self._last_reply = time.monotonic()
        if isinstance(reply, Problem):
            raise reply
        return reply

    async def _sync(self) -> None:
        while True:
            if not await self._sync_once():
                await asyncio.sleep(RETRY_S)

    async def _sync_once(self) -> bool:
        """Fetch changes from the writer; return whether it replied."""
        try:
            status: WriterStatus = await self._call("status", self._version, self._tokens_digest)
            self._writer_version = status.version
            if status.tokens is not None:
                await asyncio.to_thread(write_atomically, self._tokens, status.tokens)
                self._tokens_digest = digest(status.tokens)
            if not status.version:  # the model is empty or its file is gone: keep the copy
                self._version = 0
            elif status.version != self._version:
                delta: FileDelta = await self._call("delta", self._digests)
                await asyncio.to_thread(self._apply, delta)
                self._poll_now.set()
        except Exception as error:  # of any kind: the next call may succeed
            if not self._failing:
                log.warning("cannot follow the writer: %r", error)
            self._failing = True
            return False
        self._failing = False
        return True

    def _apply(self, delta: FileDelta) -> None:
        self._digests = []  # after a failure the whole file is fetched again
        apply_blocks(self._copy, delta.blocks, delta.size)
        restore_into(self._copy, self.model.path)
        self._version, self._digests = delta.version, delta.digests


def restore_into(copy: Path, model: Path) -> None:
    """Replace the content of a model file in one transaction; readers reload changed classes."""
    if model.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as source:
            with closing(sqlite3.connect(model, isolation_level=None)) as target:
                # The copy need not survive a crash: it is fetched again.
                target.execute("PRAGMA journal_mode = MEMORY")
                target.execute("PRAGMA synchronous = OFF")
                source.backup(target, sleep=0.005)
            return
    new = model.with_suffix(".new")
    shutil.copyfile(copy, new)
    os.replace(new, model)
