"""Logs: one line per event, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from fecam.service.settings import ServiceSettings

log = logging.getLogger("fecam.service")


def event(name: str, **fields: Any) -> None:
    """Log an event."""
    log.info(name, extra={"fields": fields})


def set_up(settings: ServiceSettings) -> None:
    """Configure logging to the standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_json else PlainLines())
    for name in ("fecam", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    logging.getLogger("fecam").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**line, **_fields(record)}, default=str)


class PlainLines(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        # As JSON: a value that a client sent must not start a new line.
        fields = "".join(f" {name}={json.dumps(value)}" for name, value in _fields(record).items())
        text = f"{time} {level}{record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
