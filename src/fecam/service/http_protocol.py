"""HTTP protocol with a header deadline and size limit, and coalesced writes.

uvicorn limits neither the bytes nor the time of a request head. It writes the head and the body of
a response separately, and uvloop sends them as two packets, which wake the client twice: that takes
longer than the prediction.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fecam.service.headers import headers_for
from fecam.service.problems import Problem

FLUSH_BYTES = 2**16
"""Bytes that are written without delay, so that backpressure of a slow client works."""
MAX_HEAD_BYTES = 2**19
"""Bytes of a request head, including what arrives in the same read (at most half of that)."""


class RequestDeadlineProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits for the request head, on a coalescing transport."""

    transport: CoalescingTransport

    def __init__(self, *args: Any, seconds: float = 30.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._seconds = seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_request = False
        self._n_head_bytes = 0
        """Bytes received since the start of the request or since its last piece of body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the head timer."""
        super().connection_made(CoalescingTransport(transport, self.loop))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the head timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Flush, because the transport closes when the client stops sending."""
        self.transport.flush()

    def data_received(self, data: bytes) -> None:
        """Parse data and enforce the head limit."""
        super().data_received(data)
        if self._in_request:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > MAX_HEAD_BYTES:
                message = f"the head of a request may have {MAX_HEAD_BYTES:,} bytes."
                self._reject(431, "head", message)
        if self._head_timer is None and not self._responding:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start counting the bytes of the head."""
        self._in_request, self._n_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the head timer."""
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count: the body has its own limit."""
        self._n_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop counting."""
        self._in_request = False
        super().on_message_complete()

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_timeout(self) -> None:
        self._reject(408, "too_slow", f"no request came within {self._seconds:g} seconds.")

    def _reject(self, status: int, code: str, message: str) -> None:
        """Send an error, unless a response has started, and close the connection."""
        if self._in_request and not self._responding and not self.transport.is_closing():
            response = Problem(status, code, message, Connection="close").response()
            headers = [*response.raw_headers, *headers_for("/v1")]
            lines = [b"HTTP/1.1 %d " % status + HTTPStatus(status).phrase.encode()]
            lines += [b"%b: %b" % pair for pair in headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()


class CoalescingTransport(asyncio.Transport):
    """A transport that sends all writes of one event loop iteration together."""

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
        """Buffer data until the end of the iteration, or until there are `FLUSH_BYTES`."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= FLUSH_BYTES:
            self.flush()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send the buffered data, if the connection is open."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self.is_closing():
            self._transport.write(b"".join(parts))
