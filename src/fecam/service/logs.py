"""What a service says of itself: a line for each event, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from fecam.service.settings import ServiceSettings

log = logging.getLogger("fecam.service")


def event(what: str, **facts: Any) -> None:
    """Something happened."""
    log.info(what, extra={"facts": facts})


def set_up(settings: ServiceSettings) -> None:
    """Send all lines to the standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_json else PlainLines())
    for name in ("fecam", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    logging.getLogger("fecam").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "facts", {})


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**line, **_facts(record)}, default=str)


class PlainLines(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        # As JSON, for what a caller sent must not begin a new line.
        facts = "".join(f" {name}={json.dumps(value)}" for name, value in _facts(record).items())
        text = f"{when} {level}{record.getMessage()}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
