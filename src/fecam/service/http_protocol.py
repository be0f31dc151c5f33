"""A connection: requests have a head that comes to an end, answers leave in one piece.

The server underneath waits for a head without end, in bytes and in time, before any limit of the
application can count. And it writes the top of an answer, then what it says: two packets, for
which the client is woken twice, which takes longer than anything else between row and answer.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fecam.service.headers import headers_for
from fecam.service.problems import Problem

LARGE = 2**16
"""So many bytes are sent at once, so that a slow client is noticed before memory is full."""
HEAD = 2**19
"""Bytes of the head of a request, with what came in the same piece: at most a half of that."""


class RequestDeadlineProtocol(HttpToolsProtocol):
    """The server's protocol, on a transport that gathers what is written.

    It waits for the head of a request as long as for anything else, and takes no endless one: the
    application, which has the other limits, is asked only when the head is there.
    """

    transport: CoalescingTransport

    def __init__(self, *args: Any, seconds: float = 30.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seconds = seconds
        self._due: asyncio.TimerHandle | None = None
        """When the head must be there."""
        self._open = False
        """Whether a request has begun, and not ended."""
        self._headed = 0
        """Bytes that came for it since it began or since the last of its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(CoalescingTransport(transport, self.loop))
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Send what was written: the transport closes itself when the client sends no more."""
        self.transport.flush()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        if self._open:
            self._headed += len(data)
            if self._headed > HEAD:
                self._refuse(431, "head", f"the head of a request may have {HEAD:,} bytes.")
        if self._due is None and not self._answering:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._open, self._headed = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Its body comes, which has a limit of its own."""
        self._headed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is here."""
        self._open = False
        super().on_message_complete()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._due = self.loop.call_later(self._seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give_up(self) -> None:
        self._refuse(408, "too_slow", f"no request came within {self._seconds:g} seconds.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say why, unless something is being said already, and hang up."""
        if self._open and not self._answering and not self.transport.is_closing():
            answer = Problem(status, code, message, Connection="close").response()
            top = [*answer.raw_headers, *headers_for("/v1")]
            lines = [b"HTTP/1.1 %d " % status + HTTPStatus(status).phrase.encode()]
            lines += [b"%b: %b" % pair for pair in top]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()


class CoalescingTransport(asyncio.Transport):
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
