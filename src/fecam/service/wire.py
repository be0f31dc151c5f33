"""Answers leave in one piece: the server writes the top of one, then what it says.

Two writes are two packets, and the client is woken twice: that takes longer than anything else
between a judged row and its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGE = 2**16
"""So many bytes are sent at once, so that a slow client is noticed before memory is full."""


class Wire(HttpToolsProtocol):
    """The server's protocol, on a transport that gathers what is written."""

    transport: Gathering

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(Gathering(transport, self.loop))

    def eof_received(self) -> None:
        """Send what was written: the transport closes itself when the client sends no more."""
        self.transport.flush()


class Gathering(asyncio.Transport):
    """A transport that sends together what is written in one turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        """Send it at the end of this turn, or at once if it is much."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= LARGE:
            self.flush()

    def close(self) -> None:
        """Send what was written, and close."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send what was written, if there is still somebody."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self.is_closing():
            self._transport.write(b"".join(parts))
