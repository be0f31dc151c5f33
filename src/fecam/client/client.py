"""`Client` and `AsyncClient`: how requests travel. What they are is said in `verbs`."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from fecam.client.verbs import Call, Verbs
from fecam.errors import MissingPackageError, ServiceError

try:
    import httpx

    from fecam.client.tries import Tries
except ImportError:
    raise MissingPackageError("fecam.client", "httpx", "client") from None

T = TypeVar("T")
TIMEOUT, PATIENCE = 60.0, 30.0


class Client(Verbs):
    """Talk to a service. Any number of threads may share one.

    Parameters
    ----------
    url
        Where it listens, such as ``http://127.0.0.1:8765``.
    token
        If it asks for one: see ``fecam token add``.
    timeout
        Seconds to wait for an answer.
    patience
        Seconds to go on trying when the service is busy, or is just being started again. Only what
        may safely be sent twice is: `forget` and `undo` are not, once they are on their way.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
    ) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        self._http = httpx.Client(**_settings(self.url, token, timeout))

    def send(self, call: Call[T]) -> T:
        """Send a request until it is answered."""
        tries = Tries(call, self.url, self.patience)
        while True:
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = self._once(call)
            except httpx.TransportError as error:
                outcome = error
            pause = tries.pause(outcome)
            if pause is None:
                return _read(call, outcome)
            time.sleep(pause)

    def _once(self, call: Call[Any]) -> httpx.Response:
        with self._http.stream(call.method, call.path, **_request(call)) as response:
            if call.file is None or not response.is_success:
                response.read()
            else:
                with _aside(call.file) as file:
                    for part in response.iter_bytes():
                        file.write(part)
        return response

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(Verbs):
    """The same for asyncio: the same methods, to be awaited, and ``async with``."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
    ) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        self._http = httpx.AsyncClient(**_settings(self.url, token, timeout))

    async def send(self, call: Call[T]) -> T:
        """Send a request until it is answered."""
        tries = Tries(call, self.url, self.patience)
        while True:
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = await self._once(call)
            except httpx.TransportError as error:
                outcome = error
            pause = tries.pause(outcome)
            if pause is None:
                return _read(call, outcome)
            await asyncio.sleep(pause)

    async def _once(self, call: Call[Any]) -> httpx.Response:
        async with self._http.stream(call.method, call.path, **_request(call)) as response:
            if call.file is None or not response.is_success:
                await response.aread()
            else:
                with _aside(call.file) as file:
                    async for part in response.aiter_bytes():
                        file.write(part)
        return response

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _settings(url: str, token: str | None, timeout: float) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ServiceError(
            f"{url!r} is no address of a service. Write it as http://127.0.0.1:8765",
            code="wrong_address",
        )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {"base_url": url, "headers": headers, "timeout": timeout}


def _request(call: Call[Any]) -> dict[str, Any]:
    return {"params": call.params, "headers": call.headers, "content": call.content}


def _read(call: Call[T], outcome: Any) -> T:
    if call.file is not None:
        return call.read(None)
    try:
        found = outcome.json()
    except ValueError:
        raise ServiceError(
            f"{outcome.url.host} answered with something else than JSON. Is this the address of a "
            "fecam service?",
            outcome.status_code,
            "unexpected",
        ) from None
    return call.read(found)


@contextmanager
def _aside(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
