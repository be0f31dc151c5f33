"""`RequestMiddleware`: the outermost layer, as plain ASGI, because it must be fast."""

import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fecam.service.access import AUTHOR, Access
from fecam.service.headers import headers_for, request_id
from fecam.service.logs import event
from fecam.service.metrics import Metrics
from fecam.service.problems import Problem, to_problem
from fecam.service.settings import ServiceSettings

MAX_INFLIGHT_BODIES = 8
"""Bodies of the maximum size that may be in memory at the same time."""


class RequestMiddleware:
    """Checks access and sizes, formats errors, adds headers, and counts requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        access: Access,
        metrics: Metrics,
    ) -> None:
        self._app, self._settings, self._access = app, settings, access
        self._metrics = metrics
        self._free_bytes = MAX_INFLIGHT_BODIES * settings.limits.max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = dict(scope["headers"])
        id_ = request_id(headers.get(b"x-request-id"))
        path, method = scope["path"], scope["method"]
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"], (b"x-request-id", id_), *headers_for(path)
                ]  # fmt: skip
            await send(message)

        size = self._size(headers)
        self._free_bytes -= size
        try:
            scope[AUTHOR] = self._access.check(method, path, headers)
            if self._free_bytes < 0 and size:
                raise Problem(
                    503, "full", "too many large requests at once. Try again.", Retry_After="1"
                )
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if status:  # the response has started: abort the connection
                raise
            problem = to_problem(error, self._settings.model)
            await problem.response()(scope, receive, send_with_headers)
        finally:
            self._free_bytes += size
            self._record(scope, status, time.perf_counter() - start, id_)

    def _size(self, headers: Mapping[bytes, bytes]) -> int:
        """Return the maximum memory of a request body in bytes."""
        max_bytes = self._settings.limits.max_bytes
        declared = headers.get(b"content-length")
        if declared is None:
            return max_bytes if b"transfer-encoding" in headers else 0
        return min(int(declared), max_bytes) if declared.isdigit() else 0

    def _record(self, scope: Scope, status: int, seconds: float, id_: bytes) -> None:
        # By route, not by path: invented paths would fill the memory.
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if path != "other" else "any"
        self._metrics.count(path, method, status, seconds)
        if self._settings.access_log:
            event(
                "request",
                id=id_.decode(),
                method=scope["method"],
                path=path,
                status=status,
                milliseconds=round(1000 * seconds, 3),
            )
