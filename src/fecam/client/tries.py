"""When a request is sent again, and when its failure is told: the same for both clients."""

from __future__ import annotations

import random
import time
from typing import Any

import httpx

from fecam.client.verbs import Call
from fecam.errors import ServiceError

BUSY = (429, 503)
"""With ``Retry-After`` the service has not begun: whatever it was may be sent again."""
GATEWAY = (502, 504)
"""A proxy says that the service did not answer it."""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds, where the service does not say how long to wait; each pause doubles."""


class Tries:
    """The tries of one call, for so many seconds."""

    def __init__(self, call: Call[Any], url: str, patience: float) -> None:
        self.call, self.url = call, url
        self.count, self.end = 0, time.monotonic() + patience

    def pause(self, outcome: httpx.Response | httpx.TransportError) -> float | None:
        """Seconds until the next try, None if this one was answered; or the error, if it is one."""
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return None
        self.count += 1
        pause: float = min(FIRST_PAUSE * 2 ** (self.count - 1), LONGEST_PAUSE) * random.uniform(
            0.5, 1.0
        )
        if isinstance(outcome, httpx.Response):
            later, status = outcome.headers.get("Retry-After"), outcome.status_code
            again = (status in BUSY and later is not None) or (
                status in GATEWAY and self.call.twice
            )
            pause = max(pause, _seconds(later))
        else:
            again = self.call.twice or isinstance(outcome, UNSENT)
        if not again or time.monotonic() + pause > self.end:
            raise self.error(outcome) from None
        return pause

    def error(self, outcome: httpx.Response | httpx.TransportError) -> ServiceError:
        """What went wrong, in the service's own words if it said anything."""
        if isinstance(outcome, httpx.Response):
            return _refusal(outcome, self.url)
        why = str(outcome) or type(outcome).__name__
        if isinstance(outcome, UNSENT):
            return ServiceError(
                f"{self.url} cannot be reached: {why}. Is it running? fecam serve -m FILE"
            )
        doubt = "" if self.call.twice else " Look at history() before you do it again."
        return ServiceError(f"{self.url} did not answer: {why}.{doubt}", code="no_answer")


def _refusal(response: httpx.Response, url: str) -> ServiceError:
    try:
        said = response.json()["error"]
        message, code = str(said["message"]), str(said["code"])
    except (ValueError, KeyError, TypeError):
        message = f"{url} answered {response.status_code} {response.reason_phrase}. Is it fecam's?"
        code = "unexpected"
    return ServiceError(message, response.status_code, code)


def _seconds(text: str | None) -> float:
    """Of Retry-After; a date, which it may be too, is not waited for."""
    return float(text) if text is not None and text.isdigit() else 0.0
