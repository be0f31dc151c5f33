"""A small load generator: each connection sends the next request after the last response.

    python benchmarks/load.py --port 8765 --requests FILE --connections 64 --seconds 3

Raw sockets and prepared bytes cost far less than what is measured. FILE has the requests, one JSON
string of latin-1 per line; connections take them in turn. Prints JSON, or writes it to a file
(--output): answers, failures, seconds, and the milliseconds of each answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def request(method: str, path: str, kind: str = "", body: bytes = b"") -> bytes:
    """Return the bytes of an HTTP/1.1 request."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    head += [f"Content-Type: {kind}"] if kind else []
    return "\r\n".join([*head, "", ""]).encode() + body


@dataclass(frozen=True)
class Load:
    """The result of a load."""

    answers: int
    failures: int
    seconds: float
    milliseconds: list[float]
    """Of each answer."""
    statuses: dict[str, int]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answers / self.seconds

    def quantile(self, share: float) -> float:
        """Return the milliseconds within which that share was answered."""
        return float(np.quantile(self.milliseconds, share)) if self.milliseconds else float("nan")


class Connection(asyncio.Protocol):
    """Sends a request, waits for the whole response, sends the next."""

    def __init__(self, asked: Sequence[bytes], at: int, responses: Responses) -> None:
        self.asked, self.at, self.responses = asked, at, responses
        self.buffer, self.due, self.status = bytearray(), 0, b""

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        """Send the next request."""
        self.transport.write(self.asked[self.at % len(self.asked)])
        self.at += 1
        self.begun = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        """Read until the response is complete."""
        self.buffer += data
        if not self.due:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            place = head.index(b"content-length:") + 15
            self.due = end + 4 + int(head[place:].split(b"\r\n", 1)[0])
            self.status = head[9:12]
        if len(self.buffer) >= self.due:
            now = time.perf_counter()
            self.buffer.clear()
            self.due = 0
            if self.responses.take(self.status, self.begun, now):
                self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """Count a connection that the service has closed."""
        if not self.responses.over:
            self.responses.lost += 1


class Responses:
    """The responses of all connections so far."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.lost, self.over, self.counting = 0, False, False

    def take(self, status: bytes, begun: float, now: float) -> bool:
        """Count a response; return whether to continue."""
        if self.counting and not self.over:
            self.statuses[status.decode()] += 1
            if status == b"200":
                self.times.append(now - begun)
        return not self.over


async def run(
    port: int, asked: Sequence[bytes], connections: int, seconds: float, warm: float
) -> dict[str, Any]:
    """Load a service."""
    loop, found = asyncio.get_running_loop(), Responses()
    step = max(len(asked) // connections, 1)
    opened = [
        await loop.create_connection(
            lambda number=number: Connection(asked, number * step, found), "127.0.0.1", port
        )
        for number in range(connections)
    ]
    await asyncio.sleep(warm)
    found.counting, start = True, time.perf_counter()
    await asyncio.sleep(seconds)
    took, found.over = time.perf_counter() - start, True
    for transport, _ in opened:
        transport.abort()
    failures = found.statuses.total() - found.statuses["200"] + found.lost
    return {
        "answers": len(found.times),
        "failures": failures,
        "seconds": took,
        "milliseconds": [round(1e3 * one, 3) for one in found.times],
        "statuses": dict(found.statuses),
    }


def load(
    port: int,
    asked: Sequence[bytes],
    *,
    connections: int = 64,
    seconds: float = 3.0,
    warm: float = 0.5,
) -> Load:
    """Load a service from another process and return the result."""
    return Running(port, asked, connections, seconds, warm).wait()


class Running:
    """A load that is under way."""

    def __init__(
        self,
        port: int,
        asked: Sequence[bytes],
        connections: int,
        seconds: float,
        warm: float,
    ) -> None:
        import subprocess

        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
            file.writelines(json.dumps(one.decode("latin-1")) + "\n" for one in asked)
        self.file = Path(file.name)
        command = [sys.executable, __file__, "--port", str(port), "--requests", file.name]
        command += ["--connections", str(connections), "--seconds", str(seconds)]
        command += ["--warm", str(warm), "--output", file.name]
        self.process = subprocess.Popen(command)

    def wait(self) -> Load:
        """Return the result."""
        code = self.process.wait()
        said = self.file.read_text()
        self.file.unlink()
        if code:
            raise RuntimeError(f"the load generator ended with {code}")
        return Load(**json.loads(said))


def main() -> None:
    """Load a service, print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm", type=float, default=0.5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    asked = [json.loads(line).encode("latin-1") for line in args.requests.open()]
    try:
        import uvloop as loops
    except ImportError:
        loops = asyncio
    found = loops.run(run(args.port, asked, args.connections, args.seconds, args.warm))
    if args.output is None:
        print(json.dumps(found))
    else:
        args.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
