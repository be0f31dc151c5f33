"""`Writer`: the engine that owns the model file, for replicas on other machines.

Replicas forward changes to it and poll it for new versions. It returns errors as `Problem`, which
can be pickled.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fecam.model_file.snapshot import Snapshot
from fecam.service.blocks import block_digests, changed_blocks, read_blocks
from fecam.service.copies import backup_copy
from fecam.service.engine import Engine
from fecam.service.problems import Problem, to_problem
from fecam.service.settings import ServiceSettings

CHANGES = ("learn", "forget", "rename", "join", "undo")
"""Methods of `Engine` that replicas forward."""
HEARTBEAT_S = 1.0
"""Seconds after which `Writer.status` returns even if nothing changed."""
POLL_S = 0.02
"""Seconds between two checks for changes."""


@dataclass(frozen=True)
class WriterStatus:
    """The version of the model, and the content of the token file if it has changed."""

    version: int
    tokens: bytes | None


@dataclass(frozen=True)
class FileDelta:
    """The blocks that update an older copy of the file."""

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
    """An engine that replicas call."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._engine = settings, Engine(settings)
        self._copy: _Copy | None = None
        self._copying = asyncio.Lock()
        self._started = False

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the engine or of the writer; return errors as a `Problem`."""
        if not self._started:
            self._started = True
            await self._engine.start()
        try:
            target = self._engine if method in CHANGES else self
            return await getattr(target, method)(*args, **kwargs)
        except Exception as error:
            return to_problem(error, self._settings.model)

    async def status(self, version: int, tokens_digest: str) -> WriterStatus:
        """Return the status once it differs, or after `HEARTBEAT_S`."""
        deadline = time.monotonic() + HEARTBEAT_S
        while True:
            content = self._tokens()
            changed = content is not None and digest(content) != tokens_digest
            current = self._engine.served.version
            if changed or current != version or time.monotonic() > deadline:
                return WriterStatus(current, content if changed else None)
            await asyncio.sleep(POLL_S)

    async def delta(self, digests: Sequence[bytes]) -> FileDelta:
        """Return the blocks of the file that a replica lacks."""
        async with self._copying:
            snapshot = self._engine.served.snapshot
            if snapshot is None:
                raise Problem(503, "gone", "the model file does not exist any more.")
            if self._copy is None or self._copy.snapshot is not snapshot:
                await asyncio.to_thread(self._renew_copy, snapshot)
            assert self._copy is not None, "just copied"
            return await asyncio.to_thread(_delta, self._copy, digests)

    async def close(self) -> None:
        """Finish the accepted changes and close the file."""
        if self._started:
            await self._engine.close()
        if self._copy is not None:
            self._copy.path.unlink(missing_ok=True)

    def _renew_copy(self, snapshot: Snapshot) -> None:
        """Copy the file: the snapshot, or a newer version."""
        if self._copy is not None:
            self._copy.path.unlink(missing_ok=True)
        path = backup_copy(self._engine.model.path)
        self._copy = _Copy(
            snapshot, path, block_digests(path)
        )  # set in the thread: the caller may be cancelled

    def _tokens(self) -> bytes | None:
        if self._settings.tokens is None:
            return None
        try:
            return self._settings.tokens.read_bytes()
        except OSError:
            return b""  # without a token file all requests are rejected


def digest(content: bytes) -> str:
    """Return the digest of a token file."""
    return hashlib.sha256(content).hexdigest()


def _delta(copy: _Copy, digests: Sequence[bytes]) -> FileDelta:
    indices = changed_blocks(copy.digests, digests)
    return FileDelta(
        copy.snapshot.version,
        copy.path.stat().st_size,
        copy.digests,
        read_blocks(copy.path, indices),
    )
