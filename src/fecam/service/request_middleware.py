"""What every request passes on its way in and out: one layer of plain ASGI, for it must be fast."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fecam.service.access import Access
from fecam.service.headers import headers_for, request_id
from fecam.service.logs import event
from fecam.service.metrics import Metrics
from fecam.service.problems import Problem, problem_of
from fecam.service.settings import ServiceSettings

Handler = Callable[[Request], Awaitable[Response]]

AT_ONCE = 8
"""So many times the largest body may be in memory at the same moment."""


class RequestMiddleware:
    """Refuses what may not be served, and sees to it that every answer is fit to be sent.

    What is posted to a ``direct`` path is handed to its handler, past the routes of the framework:
    finding a route takes as long as judging a row.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        access: Access,
        metrics: Metrics,
        direct: Mapping[str, Handler],
    ) -> None:
        self._app, self._settings, self._access = app, settings, access
        self._metrics, self._direct = metrics, direct
        self._room = AT_ONCE * settings.limits.max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        number = request_id(headers.get(b"x-request-id"))
        path, method = scope["path"], scope["method"]
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"], (b"x-request-id", number), *headers_for(path)
                ]  # fmt: skip
            await send(message)

        size = self._size(headers)
        self._room -= size
        try:
            self._access.check(method, path, headers)
            if self._room < 0 and size:
                raise Problem(
                    503, "full", "too much is being sent at once. Try again.", Retry_After="1"
                )
            handler = self._direct.get(path) if method == "POST" else None
            if handler is None:
                await self._app(scope, receive, send_on)
            else:
                response = await handler(Request(scope, receive))
                await response(scope, receive, send_on)
        except Exception as error:
            if status:  # the answer has begun: all that can be done is to break it off
                raise
            problem = problem_of(error, self._settings.model)
            await problem.response()(scope, receive, send_on)
        finally:
            self._room += size
            self._tell(scope, status, time.perf_counter() - begun, number)

    def _size(self, headers: Mapping[bytes, bytes]) -> int:
        """How much memory a request's body may take."""
        most = self._settings.limits.max_bytes
        declared = headers.get(b"content-length")
        if declared is None:
            return most if b"transfer-encoding" in headers else 0
        return min(int(declared), most) if declared.isdigit() else 0

    def _tell(self, scope: Scope, status: int, seconds: float, number: bytes) -> None:
        # Counted by our own paths: those that somebody makes up would fill the memory.
        path = scope["path"]
        if path not in self._direct:
            path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if path != "other" else "any"
        self._metrics.count(path, method, status, seconds)
        if self._settings.access_log:
            event(
                "request",
                id=number.decode(),
                method=scope["method"],
                path=path,
                status=status,
                milliseconds=round(1000 * seconds, 3),
            )
