"""Errors as responses: a status, a code for programs, and a message with a remedy.

No response contains a path of the server or a traceback; details go to the log.
"""

from functools import partial
from pathlib import Path
from typing import Any

from sklearn.exceptions import NotFittedError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fecam.api import encode
from fecam.errors import (
    EncoderError,
    FecamError,
    ItemError,
    MissingPackageError,
    ModelFileError,
    UndoError,
    UnknownLabelError,
)
from fecam.service.logs import log

_HTTP_ERRORS = {
    404: "there is no such path. GET /openapi.json lists the paths.",
    405: "this path has no such method. GET /openapi.json lists the methods.",
}


class Problem(Exception):
    """An error response."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling."""
        return partial(Problem, self.status, self.code, self.message, **self.headers), ()

    def response(self) -> Response:
        """Return the response."""
        body = {"error": {"code": self.code, "message": self.message}}
        return json_response(body, self.status, self.headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(encode(body), status, headers, "application/json")


def queue_full_error(what: str) -> Problem:
    """Return the error of a full queue."""
    return Problem(
        429, "busy", f"too many requests wait for {what}. Try again in a second.", Retry_After="1"
    )


def timeout_error(what: str) -> Problem:
    """Return the error of a request that took too long."""
    return Problem(503, "timeout", f"{what} Try again later, or with fewer items.", Retry_After="2")


def model_empty_error() -> Problem:
    """Return the error of a prediction without classes."""
    return Problem(
        409, "nothing_taught", "the model has no classes. Teach one first: POST /v1/teach."
    )


def nothing_to_undo_error() -> Problem:
    """Return the error of an undo without a step that can be undone."""
    return Problem(409, "nothing_to_undo", "there is no step that can be undone.")


def to_problem(error: Exception, model: Path) -> Problem:
    """Return any error as a response without internal details."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        message = _HTTP_ERRORS.get(error.status_code, str(error.detail))
        return Problem(error.status_code, "http", message, **(error.headers or {}))
    if isinstance(error, NotFittedError):
        return model_empty_error()
    if isinstance(error, MissingPackageError):
        return Problem(503, "missing_package", str(error))
    if isinstance(error, EncoderError):
        log.error("the encoder: %s", error)
        return Problem(503, "encoder", "the encoder cannot be used. See the log of the service.")
    if isinstance(error, ModelFileError):
        return _file_problem(error)
    if isinstance(error, FecamError):
        unknown = isinstance(error, UnknownLabelError)
        status = 404 if unknown else 422
        code = "unknown_label" if unknown else "item" if isinstance(error, ItemError) else "input"
        return Problem(status, code, without_paths(str(error), model))
    log.error("unexpected", exc_info=error)
    return Problem(500, "internal", "the server had an internal error. See the log of the service.")


def _file_problem(error: ModelFileError) -> Problem:
    if isinstance(error, UndoError):
        return nothing_to_undo_error()
    log.error("the model file: %s", error)
    return Problem(
        503,
        "model_file",
        "the model file cannot be read or written now. See the log of the service.",
        Retry_After="5",
    )


def without_paths(message: str, model: Path) -> str:
    """Return the message with the path of the model replaced by its name.

    >>> without_paths("/srv/birds.fecam has no class 'x'.", Path("/srv/birds.fecam"))
    "birds.fecam has no class 'x'."
    """
    for path in (model, model.absolute(), model.resolve()):
        message = message.replace(str(path), model.name)
    return message
