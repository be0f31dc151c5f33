"""When a request is sent again, and the error if it is not; shared by both clients."""

import random
import time
from typing import Any

import httpx

from fecam.client.requests import Request
from fecam.errors import ServiceError

BUSY = (429, 503)
"""With ``Retry-After`` the service has not started the work, so any request may be repeated."""
GATEWAY = (502, 504)
"""A proxy got no response from the service."""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
Outcome = httpx.Response | httpx.TransportError
FIRST_PAUSE, MAX_PAUSE = 0.1, 2.0
"""Seconds without ``Retry-After``; each pause doubles."""


class Retries:
    """The attempts of one request, for at most ``retry_timeout`` seconds."""

    def __init__(self, request: Request[Any], url: str, retry_timeout: float) -> None:
        self.request, self.url = request, url
        self.count, self.deadline = 0, time.monotonic() + retry_timeout

    def pause(self, outcome: Outcome) -> float | None:
        """Return the seconds to the next attempt, None after a success; else raise the error."""
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return None
        pause: float = min(FIRST_PAUSE * 2**self.count, MAX_PAUSE) * random.uniform(0.5, 1.0)
        self.count += 1
        if isinstance(outcome, httpx.Response):
            later, status = outcome.headers.get("Retry-After"), outcome.status_code
            may_repeat = (status in BUSY and later is not None) or (
                status in GATEWAY and self.request.is_idempotent
            )
            if later is not None and later.isdigit():  # the header may also hold a date
                pause = max(pause, float(later))
        else:
            may_repeat = self.request.is_idempotent or isinstance(outcome, UNSENT)
        if not may_repeat or time.monotonic() + pause > self.deadline:
            raise self.error(outcome) from None
        return pause

    def error(self, outcome: Outcome) -> ServiceError:
        """Return the error, with the message of the service if it sent one."""
        if isinstance(outcome, httpx.Response):
            return _rejection(outcome, self.url)
        reason = str(outcome) or type(outcome).__name__
        if isinstance(outcome, UNSENT):
            return ServiceError(
                f"{self.url} cannot be reached: {reason}. Is it running? fecam serve -m FILE"
            )
        remedy = "" if self.request.is_idempotent else " Check history() before you repeat it."
        return ServiceError(f"{self.url} did not answer: {reason}.{remedy}", code="no_answer")


def _rejection(response: httpx.Response, url: str) -> ServiceError:
    try:
        error = response.json()["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        message = (
            f"{url} answered {response.status_code} {response.reason_phrase}. Is it a fecam "
            "service?"
        )
        code = "unexpected"
    return ServiceError(message, response.status_code, code)
