"""What goes wrong, as an answer: a status, a word for programs, a sentence with a remedy.

No answer names a path of the server or shows a traceback; what a person who runs the service needs
to know is written to its log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from sklearn.exceptions import NotFittedError
from starlette.responses import Response

from fecam.errors import (
    EncoderError,
    FecamError,
    ItemError,
    MissingPackageError,
    ModelFileError,
    UnknownLabelError,
)
from fecam.service.logs import log


class Problem(Exception):
    """A request that cannot be served, and why."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is sent from one process to another."""
        return _problem, (self.status, self.code, self.message, self.headers)

    def response(self) -> Response:
        """The answer."""
        body = {"error": {"code": self.code, "message": self.message}}
        return json_response(body, self.status, self.headers)


def _problem(status: int, code: str, message: str, headers: dict[str, str]) -> Problem:
    return Problem(status, code, message, **headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(body), status, headers, "application/json")


def queue_full_error(what: str) -> Problem:
    """Too many are waiting already."""
    return Problem(
        429, "busy", f"too many requests wait for {what}. Try again in a second.", Retry_After="1"
    )


def timeout_error(what: str) -> Problem:
    """It took longer than a request may take."""
    return Problem(503, "timeout", f"{what} Try again later, or with fewer items.", Retry_After="2")


def model_empty_error() -> Problem:
    """A model that knows no class cannot answer."""
    return Problem(
        409, "nothing_taught", "nothing is taught yet. Teach a class first: POST /v1/teach."
    )


def problem_of(error: Exception, model: Path) -> Problem:
    """Any error as an answer that gives nothing away."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NotFittedError):
        return model_empty_error()
    if isinstance(error, MissingPackageError):
        return Problem(503, "missing_package", str(error))
    if isinstance(error, EncoderError):
        log.error("the encoder: %s", error)
        return Problem(
            503, "encoder", "the encoder cannot be used. The log of the service says why."
        )
    if isinstance(error, ModelFileError):
        return _file_problem(error)
    if isinstance(error, FecamError):
        unknown = isinstance(error, UnknownLabelError)
        status = 404 if unknown else 422
        code = "unknown_label" if unknown else "item" if isinstance(error, ItemError) else "input"
        return Problem(status, code, without_paths(str(error), model))
    log.error("unexpected", exc_info=error)
    return Problem(
        500,
        "internal",
        "something went wrong here, not with you. The log of the service says what.",
    )


def _file_problem(error: ModelFileError) -> Problem:
    message = str(error)
    if "nothing to undo" in message or "cannot be undone" in message:
        return Problem(409, "nothing_to_undo", "there is nothing left that can be undone.")
    log.error("the model's file: %s", message)
    return Problem(
        503,
        "model_file",
        "the model's file cannot be read or written now. The log of the service says why.",
        Retry_After="5",
    )


def without_paths(message: str, model: Path) -> str:
    """The message with the name of the model in the place of its path.

    >>> without_paths("/srv/birds.fecam has no class 'x'.", Path("/srv/birds.fecam"))
    "birds.fecam has no class 'x'."
    """
    for path in (model, model.absolute(), model.resolve()):
        message = message.replace(str(path), model.name)
    return message
