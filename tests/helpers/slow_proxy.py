"""A proxy that delays the requests to a service and records when each was under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class SlowProxy:
    """``url`` is what a client connects to; ``delays`` has the seconds of a path."""

    target: str
    delays: Mapping[str, float]
    url: str = ""
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """Path, start and end of each request that was delayed."""

    def under_way(self, path: str) -> int:
        """Return the largest number of requests to a path at the same time."""
        spans = [(start, end) for name, start, end in self.spans if name == path]
        return max((sum(a <= start < b for a, b in spans) for start, _ in spans), default=0)

    def count(self, path: str) -> int:
        """Return the number of finished requests to a path."""
        return sum(name == path for name, _, _ in self.spans)


@contextmanager
def slow_proxy(target: str, delays: Mapping[str, float]) -> Iterator[SlowProxy]:
    """Yield a running proxy in front of the service at ``target``."""
    proxy = SlowProxy(target, delays)
    origin = f"{urlsplit(target).scheme}://{urlsplit(target).netloc}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            start = time.monotonic()
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = dict(self.headers) | {"Host": urlsplit(target).netloc}
            if "Origin" in headers:
                headers["Origin"] = origin
            time.sleep(delays.get(path, 0))
            upstream = HTTPConnection(urlsplit(target).netloc)
            upstream.request(self.command, self.path, body or None, headers)
            response = upstream.getresponse()
            content = response.read()
            if path in delays:
                proxy.spans.append((path, start, time.monotonic()))
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_POST = do_DELETE = forward

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
