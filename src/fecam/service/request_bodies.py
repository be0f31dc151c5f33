"""Reads request bodies within limits: JSON, multipart forms, or rows of 32-bit floats.

Bytes are counted while they arrive.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from struct import Struct
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fecam import api
from fecam.service.problems import Problem
from fecam.service.settings import Limits

Body = TypeVar("Body", bound=api.Request)

_DECODERS: dict[type[api.Request], Any] = {
    kind: msgspec.json.Decoder(kind, dec_hook=api.decode_image)
    for kind in {operation.body for operation in api.OPERATIONS if operation.body is not None}
}
_QUERY = {"top", "reject", "min_version"}
_MAX_FIELDS = 8
"""Fields of a form besides its files."""


async def read_items(
    request: Request, kind: type[Body], limits: Limits, n_features: int | None = None
) -> tuple[str, Any, Body]:
    """Return the kind of the items, the items and the other fields of a request.

    ``n_features`` is the number of features of a row in bytes; without it bytes are not accepted.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_prediction = kind is api.PredictRequest
    if media == "application/octet-stream" and is_prediction:
        rows = _rows_from_bytes(await read_body(request, limits), n_features, limits)
        texts = {n: text for n, text in request.query_params.items() if n in _QUERY}
        return "features", rows, _from_texts(kind, texts)
    if media == "multipart/form-data":
        texts, files = await _form(request, limits)
        return "images", files, _from_texts(kind, texts)
    if media != "application/json":
        raise Problem(
            415,
            "media_type",
            f"Content-Type {media[:80]!r} must be application/json, multipart/form-data or, to "
            "predict, application/octet-stream.",
        )
    body = await read_json(request, kind, limits)
    kinds = [name for name in api.KINDS if getattr(body, name) is not UNSET]
    if len(kinds) != 1:
        raise invalid(f"the body must have one of {', '.join(api.KINDS)}; it has {len(kinds)}.")
    items = getattr(body, kinds[0])
    check_count(len(items), limits.max_items)
    return kinds[0], rows_from_lists(items) if kinds[0] == "features" else items, body


async def read_json(request: Request, kind: type[Body], limits: Limits) -> Body:
    """Read a JSON object; an empty body is an empty object."""
    content = await read_body(request, limits) or b"{}"
    try:
        try:
            return _DECODERS[kind].decode(content)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise _explain(error, msgspec.json.decode(content)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "json", f"the body is not JSON: {error}.") from None


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the whole body, up to the limit."""
    part, more = await _part(request, limits)
    if len(part) > limits.max_bytes:
        raise _too_large(limits)
    if not more:
        return part  # most bodies arrive in one part
    return b"".join([part, *[part async for part in _stream(request, limits, len(part))]])


def labels_of(body: api.LabeledRequest, count: int) -> list[Any]:
    """Return one label per item."""
    if (body.label is UNSET) == (body.labels is UNSET):
        raise invalid(
            "the body must have either 'label', for all items, or 'labels', one per item."
        )
    labels = [body.label] * count if body.labels is UNSET else body.labels
    if len(labels) != count:
        raise invalid(f"'labels' must be a list of {count} labels, one per item.")
    if any(isinstance(label, str) and "\0" in label for label in labels) or "\0" in body.note:
        raise invalid("a label or note must not contain the character NUL.")
    return labels


def invalid(message: str) -> Problem:
    """Return the error of an invalid value."""
    return Problem(422, "invalid", message)


def _explain(error: msgspec.ValidationError, content: Any) -> Problem:
    """Return an error that names the field, its value in ``content``, and what it must be.

    >>> try:
    ...     msgspec.convert({"top": -1}, api.PredictRequest)
    ... except msgspec.ValidationError as error:
    ...     print(_explain(error, {"top": -1}))
    top=-1: expected int >= 0. GET /openapi.json describes the fields.
    """
    message, _, path = str(error).partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        content = content[name or int(index)]
    where = f"{path.strip('`.')}={repr(content)[:40]}" if path else "the body"
    message = f"{message[:1].lower()}{message[1:200]}".replace("`", "")
    return invalid(f"{where}: {message}. GET /openapi.json describes the fields.")


def _from_texts(kind: type[Body], texts: dict[str, str]) -> Body:
    """Return the fields of a form or a query string; without labels, they may be numbers."""
    if has_numbers := kind is not api.LabeledRequest:
        texts = {name: text for name, text in texts.items() if text}
    try:
        return msgspec.convert(texts, kind, strict=not has_numbers)
    except msgspec.ValidationError as error:
        raise _explain(error, texts) from None


def _too_large(limits: Limits, **headers: str) -> Problem:
    return Problem(
        413,
        "too_large",
        f"a request may have at most {limits.max_bytes:,} bytes. Send fewer items per request.",
        **headers,
    )


async def _stream(request: Request, limits: Limits, count: int = 0) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body after the first ``count`` bytes."""
    more = True
    while more:
        part, more = await _part(request, limits)
        count += len(part)
        if count > limits.max_bytes:  # the size of the rest is unknown
            raise _too_large(limits, Connection="close")
        if part:
            yield part


async def _part(request: Request, limits: Limits) -> tuple[bytes, bool]:
    """Return the next part of the body, and whether there is more."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limits.max_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.seconds):
            message = await request.receive()
    except TimeoutError:
        raise Problem(
            408, "too_slow", f"no data came for {limits.seconds:g} seconds. Send it again."
        ) from None
    if message["type"] == "http.disconnect":
        raise Problem(400, "gone", "the request ended before its body did.")
    return message.get("body", b""), message.get("more_body", False)


def check_count(count: int, most: int) -> None:
    """Raise if a request has no items or more than ``most``."""
    if not count:
        raise invalid("there are no items. Send at least one.")
    if count > most:
        raise Problem(
            413,
            "too_many",
            f"{count:,} items exceed the limit of {most:,} per request. Send several requests.",
        )


def rows_from_lists(rows: list[list[float]]) -> NDArray[np.float32]:
    """Return rows of numbers as an array.

    >>> rows_from_lists([[0.5, 1.0], [2.0, 3.25]]).tolist()
    [[0.5, 1.0], [2.0, 3.25]]
    """
    width = len(rows[0])
    for i, row in enumerate(rows):
        if len(row) != width or not width:
            raise invalid(
                f"features[{i}] has {len(row)} numbers; all rows must have the same number, at "
                "least one."
            )
    pack = Struct(f"{width}d").pack  # several times as fast as NumPy
    array = np.frombuffer(b"".join([pack(*row) for row in rows])).reshape(len(rows), width)
    with np.errstate(over="ignore"):  # the classifier rejects infinite values
        return array.astype(np.float32)


def _rows_from_bytes(body: bytes, n_features: int | None, limits: Limits) -> NDArray[np.float32]:
    if n_features is None:
        raise Problem(
            409,
            "no_width",
            "application/octet-stream needs a model of features. GET /v1/model returns the kind.",
        )
    if not body or len(body) % (4 * n_features):
        raise invalid(
            f"{len(body):,} bytes are not rows of {n_features} little-endian 32-bit floats, "
            f"{4 * n_features:,} bytes each."
        )
    check_count(len(body) // (4 * n_features), limits.max_items)
    return np.frombuffer(body, "<f4").reshape(-1, n_features)


class _InMemory(MultiPartParser):
    """Keeps uploads in memory: they are within the limit of bytes."""

    spool_max_size = 2**62


async def _form(request: Request, limits: Limits) -> tuple[dict[str, str], list[bytes]]:
    """Return the fields of a form and the contents of its files."""
    parser = _InMemory(
        request.headers,
        _stream(request, limits),
        max_files=limits.max_items,
        max_fields=_MAX_FIELDS,
        max_part_size=4 * api.MAX_NOTE,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise invalid(f"the form cannot be read: {error.message}") from None
    except (KeyError, UnicodeError, LookupError, ValueError):
        raise invalid("the form cannot be read: it is malformed.") from None
    texts, files = dict[str, str](), list[bytes]()
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            texts[name] = value
        elif name == "files":
            files.append(value.file.read())
        else:
            raise invalid(f"the file in {name[:80]!r} must be in the field 'files'.")
    await form.close()
    check_count(len(files), limits.max_items)
    return texts, files
