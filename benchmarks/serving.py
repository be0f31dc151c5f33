"""A service in a process of its own, for benchmarks and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

PATIENCE = 60.0
"""Seconds that a service may take to be ready: encoders load torch."""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Served:
    """A process that listens at a port of this machine; what it says is in ``log``."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        ready: str = "/readyz",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.command, self.port, self.ready = list(command), port, ready
        self.environment = {**os.environ, **(environment or {})}
        self.url = f"http://127.0.0.1:{port}"
        with tempfile.NamedTemporaryFile(suffix=".log", delete=False) as file:
            self.log = Path(file.name)

    def start(self) -> Self:
        """Start it, and wait until it is ready."""
        self.begin()
        end = time.monotonic() + PATIENCE
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.command} is not ready:\n{self.log.read_text()}")
            time.sleep(0.02)
        return self

    def begin(self) -> None:
        """Start it; clients may wait for it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(self.url + self.ready, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> int:
        """Ask it to end, and wait for that; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """End it and its workers as a failing machine would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.unlink(missing_ok=True)


def service(path: Path | str, *options: str, port: int = 0) -> Served:
    """``fecam serve`` of a model."""
    port = port or free_port()
    command = [sys.executable, "-m", "fecam", "serve", "-m", str(path), "--port", str(port)]
    return Served([*command, *options], port)
