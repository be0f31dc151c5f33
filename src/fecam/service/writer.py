"""`Writer`: the one engine that has the file, for replicas that have none.

Replicas hand on to it what changes the model, and ask it what is new. They may be on other
machines, so what it is asked and what it answers can be sent: no error leaves it, but a problem.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fecam.model_file.snapshot import Snapshot
from fecam.service.blocks import blocks_at, changed_blocks, digests_of
from fecam.service.copies import backup_copy
from fecam.service.engine import Engine
from fecam.service.problems import Problem, problem_of
from fecam.service.settings import ServiceSettings

CHANGES = ("teach", "forget", "undo")
"""What is handed on."""
PULSE = 1.0
"""Seconds after which a writer says that nothing is new: so replicas know that it lives."""
LOOK = 0.02
"""Seconds between two looks at what is new."""


@dataclass(frozen=True)
class News:
    """Which version there is, and the file of tokens, if it is another than the one known."""

    version: int
    tokens: bytes | None


@dataclass(frozen=True)
class Patch:
    """What makes an older copy of the file a newer one."""

    version: int
    size: int
    digests: list[bytes]
    blocks: dict[int, bytes]


@dataclass(frozen=True)
class _Copy:
    snapshot: Snapshot
    path: Path
    digests: list[bytes]


class Writer:
    """An engine that is asked from afar."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._engine = settings, Engine(settings)
        self._copy: _Copy | None = None
        self._copying = asyncio.Lock()
        self._started = False

    async def ask(self, verb: str, *given: Any, **named: Any) -> Any:
        """Do one thing; what goes wrong is given back as a problem."""
        if not self._started:
            self._started = True
            await self._engine.start()
        try:
            doer = self._engine if verb in CHANGES else self
            return await getattr(doer, verb)(*given, **named)
        except Exception as error:
            return problem_of(error, self._settings.model)

    async def news(self, version: int, tokens: str) -> News:
        """Wait, but not for long, until something is new."""
        until = time.monotonic() + PULSE
        while True:
            content = self._tokens()
            other = content is not None and stamp(content) != tokens
            current = self._engine.view.version
            if other or current != version or time.monotonic() > until:
                return News(current, content if other else None)
            await asyncio.sleep(LOOK)

    async def patch(self, digests: Sequence[bytes]) -> Patch:
        """The blocks of the file that a replica has not."""
        async with self._copying:
            snapshot = self._engine.view.snapshot
            if snapshot is None:
                raise Problem(503, "gone", "the model's file is gone.")
            if self._copy is None or self._copy.snapshot is not snapshot:
                await asyncio.to_thread(self._renew_copy, snapshot)
            assert self._copy is not None, "it was made"
            return await asyncio.to_thread(_patch, self._copy, digests)

    async def close(self) -> None:
        """Finish what was accepted, and let go of the file."""
        if self._started:
            await self._engine.close()
        if self._copy is not None:
            self._copy.path.unlink(missing_ok=True)

    def _renew_copy(self, snapshot: Snapshot) -> None:
        """Copy what the file holds: the snapshot, or something newer."""
        if self._copy is not None:
            self._copy.path.unlink(missing_ok=True)
        path = backup_copy(self._engine.model.path)
        self._copy = _Copy(snapshot, path, digests_of(path))  # here: who asked may have gone

    def _tokens(self) -> bytes | None:
        if self._settings.tokens is None:
            return None
        try:
            return self._settings.tokens.read_bytes()
        except OSError:
            return b""  # without a file nobody may anything


def stamp(content: bytes) -> str:
    """What tells one file of tokens from another."""
    return hashlib.sha256(content).hexdigest()


def _patch(copy: _Copy, digests: Sequence[bytes]) -> Patch:
    places = changed_blocks(copy.digests, digests)
    return Patch(
        copy.snapshot.version,
        copy.path.stat().st_size,
        copy.digests,
        blocks_at(copy.path, places),
    )
