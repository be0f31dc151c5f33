"""`Replica`: an engine that answers from a copy, and hands lessons on to the one writer.

It keeps the copy in a folder of its own and asks the writer what is new. Its file is written over
in a transaction, not replaced: so what was derived of the classes that did not change is kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fecam.model import LearnResult
from fecam.model_file import Step
from fecam.service.blocks import apply_blocks
from fecam.service.copies import restore_into
from fecam.service.engine import Engine
from fecam.service.logs import log
from fecam.service.problems import Problem
from fecam.service.settings import ServiceSettings
from fecam.service.writer import News, Patch, stamp

Ask = Callable[..., Awaitable[Any]]
"""`Writer.ask`, from wherever; a `ConnectionError` if the writer cannot be reached, or dies."""

FETCHED = 15.0
"""Seconds to wait for a version that the writer has: a large file takes a while."""
PAUSE = 0.2
"""Seconds to wait for a writer that does not answer, before it is asked again."""


def lost() -> Problem:
    """Nobody knows whether what was asked for was done."""
    return Problem(
        502,  # as of a proxy: without a key only a person may send it again
        "writer",
        "nothing is heard of the one that writes; another takes its place. It may have been done "
        "or not: a lesson with an Idempotency-Key can be sent again; else GET /v1/history tells.",
    )


class Replica(Engine):
    """Answers from a copy of the model; lessons go to the writer."""

    def __init__(self, settings: ServiceSettings, ask: Ask) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="fecam-replica-", ignore_cleanup_errors=True
        )
        folder = Path(self._folder.name)
        self._copy, self._tokens = folder / "copy", folder / "tokens.json"
        if settings.tokens is not None:
            settings = replace(settings, tokens=self._tokens)
        super().__init__(settings, folder / "model.fecam")
        self._remote = ask
        self._version, self._digests, self._stamp = 0, list[bytes](), ""
        self._told = 0
        self._heard, self._missed = time.monotonic(), False
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin with what the writer has now, and follow it from then on."""
        while not await self._looked():
            await asyncio.sleep(PAUSE)
        await asyncio.to_thread(self.model.reload)
        await asyncio.to_thread(self.publish)  # no answer comes before there is something to know
        await super().start()
        self._following = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Finish what was accepted."""
        if self._following is not None:
            self._following.cancel()
        await super().close()
        self._folder.cleanup()

    def patience(self, version: int) -> float:
        """Longer for a version that is there, and only on its way."""
        return FETCHED if version <= self._told else super().patience(version)

    # ------------------------------------------------------------------ changing

    async def teach(self, *given: Any, **named: Any) -> tuple[LearnResult, int]:
        """Have the writer teach; when it returns, the lesson is on its disk."""
        lesson: tuple[LearnResult, int] = await self._handed_on("teach", *given, **named)
        return lesson

    async def forget(self, *given: Any, **named: Any) -> tuple[Step, int]:
        """Have the writer remove a class."""
        step: tuple[Step, int] = await self._handed_on("forget", *given, **named)
        return step

    async def undo(self, *given: Any, **named: Any) -> tuple[list[Step], int]:
        """Have the writer take back the last steps."""
        steps: tuple[list[Step], int] = await self._handed_on("undo", *given, **named)
        return steps

    async def _handed_on(self, verb: str, *given: Any, **named: Any) -> Any:
        """Wait for the writer as long as it lives, and a while for another in its place."""
        self._lessons += 1
        task = asyncio.ensure_future(self._asked(verb, *given, **named))
        try:
            while not (await asyncio.wait({task}, timeout=PAUSE))[0]:
                if time.monotonic() - self._heard > self.limits.seconds:
                    raise lost()
            return task.result()
        except ConnectionError:
            raise lost() from None
        finally:
            task.cancel()
            self._lessons -= 1

    async def _asked(self, verb: str, *given: Any, **named: Any) -> Any:
        answer = await self._remote(verb, *given, **named)
        self._heard = time.monotonic()
        if isinstance(answer, Problem):
            raise answer
        return answer

    # ------------------------------------------------------------------ following

    async def _look(self) -> None:
        while True:
            if not await self._looked():
                await asyncio.sleep(PAUSE)

    async def _looked(self) -> bool:
        """Take over what the writer has that is new; whether it could be asked."""
        try:
            news: News = await self._asked("news", self._version, self._stamp)
            self._told = news.version
            if news.tokens is not None:
                await asyncio.to_thread(_put, self._tokens, news.tokens)
                self._stamp = stamp(news.tokens)
            if not news.version:  # nothing is taught yet, or the file is gone: keep what there is
                self._version = 0
            elif news.version != self._version:
                patch: Patch = await self._asked("patch", self._digests)
                await asyncio.to_thread(self._take, patch)
                self._wake.set()
        except Exception as error:  # whatever it is, the next look may do better
            if not self._missed:
                log.warning("cannot follow the writer: %r", error)
            self._missed = True
            return False
        self._missed = False
        return True

    def _take(self, patch: Patch) -> None:
        self._digests = []  # should it go wrong half way, all of it is fetched again
        apply_blocks(self._copy, patch.blocks, patch.size)
        restore_into(self._copy, self.model.path)
        self._version, self._digests = patch.version, patch.digests


def _put(path: Path, content: bytes) -> None:
    """A whole file in the place of the old one; its folder is its owner's alone."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)
