"""`Client` and `AsyncClient`: the transport of the requests that `Requests` describes."""

import asyncio
import time
from typing import Any, Self, TypeVar

from fecam.errors import MissingPackageError, ServiceError
from fecam.files import atomic_file

try:
    import httpx

    from fecam.client.requests import Request, Requests
    from fecam.client.retries import Outcome, Retries
except ModuleNotFoundError as error:
    raise MissingPackageError("fecam.client", str(error.name), "client") from None

T = TypeVar("T")


class _Client(Requests):
    """Address, token and timeouts; see `Client`."""

    _open: Any
    """The client class of httpx."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 60.0, retry_timeout: float = 30.0
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ServiceError(
                f"{url!r} is no address of a service. Write it as http://127.0.0.1:8765",
                code="wrong_address",
            )
        self.url, self.retry_timeout = url.rstrip("/"), retry_timeout
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = self._open(base_url=self.url, headers=headers, timeout=timeout)

    def _stream(self, request: Request[Any]) -> Any:
        return self._http.stream(
            request.operation.method,
            request.path or request.operation.path,
            params=request.params,
            headers=request.headers,
            content=request.content,
        )


class Client(_Client):
    """A client of a service. Threads may share one.

    Parameters
    ----------
    url : str
        Address of the service, such as ``http://127.0.0.1:8765``.
    token : str, optional
        Token, if the service requires one: see ``fecam token add``.
    timeout : float, default=60
        Seconds to wait for a response.
    retry_timeout : float, default=30
        Seconds during which a request is repeated while the service is busy or restarts. `forget`
        and `undo` are not repeated after they were sent.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8765") as client:  # doctest: +SKIP
    ...     client.learn([[0.0, 1.0], [1.0, 0.1]], ["tit", "wren"])
    ...     client.predict([[0.1, 0.9]]).labels
    ['tit']
    """

    _open = httpx.Client

    def _send(self, request: Request[T]) -> T:
        """Send a request, repeat it while that is safe, and return its result."""
        retries = Retries(request, self.url, self.retry_timeout)
        while True:
            outcome = self._send_once(request)
            pause = retries.pause(outcome)
            if pause is None:
                return _read(request, outcome)
            time.sleep(pause)

    def _send_once(self, request: Request[Any]) -> Outcome:
        try:
            with self._stream(request) as response:
                if request.file is None or not response.is_success:
                    response.read()
                else:
                    with atomic_file(request.file, mode=0o600) as file:
                        for part in response.iter_bytes():
                            file.write(part)
            return response  # type: ignore[no-any-return]
        except httpx.TransportError as error:
            return error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(_Client):
    """A client for asyncio: the methods of `Client` as coroutines, and ``async with``.

    Parameters
    ----------
    url, token, timeout, retry_timeout : see `Client`
        As for `Client`.
    """

    _open = httpx.AsyncClient

    async def _send(self, request: Request[T]) -> T:
        """Send a request, repeat it while that is safe, and return its result."""
        retries = Retries(request, self.url, self.retry_timeout)
        while True:
            outcome = await self._send_once(request)
            pause = retries.pause(outcome)
            if pause is None:
                return _read(request, outcome)
            await asyncio.sleep(pause)

    async def _send_once(self, request: Request[Any]) -> Outcome:
        try:
            async with self._stream(request) as response:
                if request.file is None or not response.is_success:
                    await response.aread()
                else:
                    with atomic_file(request.file, mode=0o600) as file:
                        async for part in response.aiter_bytes():
                            file.write(part)
            return response  # type: ignore[no-any-return]
        except httpx.TransportError as error:
            return error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _read(request: Request[T], response: Any) -> T:
    try:
        return request.read(None if request.file is not None else response.json())
    except ServiceError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServiceError(
            f"the response of {response.url.host} cannot be read ({error!r}). Is this the address "
            "of a fecam service?",
            response.status_code,
            "unexpected",
        ) from None
