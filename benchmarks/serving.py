"""Runs a service in another process, for benchmarks and tests."""

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

START_TIMEOUT = 60.0
"""Seconds until a service must be ready: encoders load torch."""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """A process that listens at a local port; its output is in the file ``log``."""

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
        """Start the process and wait until it is ready."""
        self.begin()
        end = time.monotonic() + START_TIMEOUT
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.command} is not ready:\n{self.log.read_text()}")
            time.sleep(0.02)
        return self

    def begin(self) -> None:
        """Start the process without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def is_ready(self) -> bool:
        """Return whether it responds."""
        try:
            with urllib.request.urlopen(self.url + self.ready, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> int:
        """Terminate it, wait, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """Kill it and its workers."""
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
    """Return ``fecam serve`` for a model, not started yet."""
    port = port or free_port()
    command = [sys.executable, "-m", "fecam", "serve", "-m", str(path), "--port", str(port)]
    return Served([*command, *options], port)
