"""Reads request bodies within limits: JSON, multipart forms, or rows of 32-bit floats.

Bytes are counted while they arrive. Numbers are validated by hand: pydantic takes longer than the
prediction.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fecam.service.problems import Problem
from fecam.service.settings import Limits

KINDS = ("features", "texts", "images")
MAX_TOP = 1000
MAX_LABEL = 200
MAX_NOTE = 2000
_MAX_FIELDS = 8
"""Fields of a form besides its files."""


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """Items to predict."""

    kind: str
    items: Any
    top: int
    reject: float | None
    min_version: int | None


@dataclass(frozen=True, slots=True)
class LabeledRequest:
    """Items with one label each."""

    kind: str
    items: Any
    labels: list[str | int]
    note: str


async def read_predict_request(
    request: Request, limits: Limits, n_features: int | None
) -> PredictRequest:
    """Read the items of a prediction; ``n_features`` is None if the model takes other items."""
    media = _media_type(request)
    if media == "application/octet-stream":
        body = await read_body(request, limits)
        rows = _rows_from_bytes(body, n_features, limits)
        return PredictRequest("features", rows, *_options(_parse_texts(request.query_params)))
    if media == "multipart/form-data":
        form, files = await _form(request, limits)
        _reject_unknown(form, {"top", "reject", "min_version"})
        return PredictRequest("images", files, *_options(_parse_texts(form)))
    values, may_contain_bool = await _json(request, media, limits)
    _reject_unknown(values, {*KINDS, "top", "reject", "min_version"})
    kind, items = _items(values, may_contain_bool, limits)
    return PredictRequest(kind, items, *_options(values))


async def read_labeled_request(request: Request, limits: Limits) -> LabeledRequest:
    """Read labeled items."""
    media = _media_type(request)
    if media == "multipart/form-data":
        form, files = await _form(request, limits)
        _reject_unknown(form, {"label", "note"})
        label = _label(form.get("label"))
        return LabeledRequest("images", files, [label] * len(files), _note(form.get("note", "")))
    values, may_contain_bool = await _json(request, media, limits)
    _reject_unknown(values, {*KINDS, "label", "labels", "note"})
    kind, items = _items(values, may_contain_bool, limits)
    return LabeledRequest(kind, items, _labels(values, len(items)), _note(values.get("note", "")))


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """Read a JSON object; an empty body is an empty object."""
    body = await read_body(request, limits)
    return _parse_object(body) if body else {}


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the whole body, up to the limit."""
    part, more = await _part(request, limits)
    if len(part) > limits.max_bytes:
        raise _too_large(limits)
    if not more:
        return part  # most bodies arrive in one part
    return b"".join([part, *[part async for part in _stream(request, limits, len(part))]])


def invalid(message: str) -> Problem:
    """Return the error of an invalid value."""
    return Problem(422, "invalid", message)


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


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _json(request: Request, media: str, limits: Limits) -> tuple[dict[str, Any], bool]:
    """Read an object; also return whether it may contain true or false."""
    if media != "application/json":
        raise Problem(
            415,
            "media_type",
            f"Content-Type {media[:80]!r} must be application/json, multipart/form-data or, to "
            "predict, application/octet-stream.",
        )
    body = await read_body(request, limits)
    # true has a u, false an l. Most bodies have one u, in "features". Finding words takes longer.
    may_contain_bool = body.find(b"u", body.find(b"u") + 1) >= 0 or b"l" in body
    return _parse_object(body), may_contain_bool


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, "json", f"the body is not JSON: {error}.") from None
    if type(values) is not dict:
        raise invalid('the body must be an object, such as {"features": [[0.1, 0.2]]}.')
    return values


def _reject_unknown(values: Mapping[str, Any], allowed: set[str]) -> None:
    for name in values:
        if name not in allowed:
            raise invalid(f"field {name[:80]!r} must be one of {', '.join(sorted(allowed))}.")


def _items(values: Mapping[str, Any], may_contain_bool: bool, limits: Limits) -> tuple[str, Any]:
    kinds = [kind for kind in KINDS if kind in values]
    if len(kinds) != 1:
        raise invalid(f"the body must have one of {', '.join(KINDS)}; it has {len(kinds)}.")
    (kind,) = kinds
    items = values[kind]
    if type(items) is not list:
        raise invalid(f"{kind!r} must be a list, even of one item.")
    _check_count(len(items), limits)
    if kind == "features":
        return kind, rows_from_lists(items, may_contain_bool=may_contain_bool)
    for i, item in enumerate(items):
        if type(item) is not str:
            raise invalid(f"{kind}[{i}] must be a string{' in base64' * (kind == 'images')}.")
    return kind, items if kind == "texts" else [_image(i, item) for i, item in enumerate(items)]


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise invalid("there are no items. Send at least one.")
    if count > limits.max_items:
        raise Problem(
            413,
            "too_many",
            f"{count:,} items exceed the limit of {limits.max_items:,} per request. Send several "
            "requests.",
        )


def rows_from_lists(rows: list[Any], *, may_contain_bool: bool = True) -> NDArray[np.float32]:
    """Return rows of numbers as an array; ``may_contain_bool`` adds a check for true and false.

    >>> rows_from_lists([[0.5, 1], [2, 3.25]]).tolist()
    [[0.5, 1.0], [2.0, 3.25]]
    """
    width = len(rows[0]) if type(rows[0]) is list else 0
    pack, packed = Struct(f"{width}d").pack, list[bytes]()
    for i, row in enumerate(rows):
        if type(row) is not list or len(row) != width or not width:
            raise invalid(f"features[{i}] must be a list of numbers, all of one length.")
        try:
            packed.append(pack(*row))  # several times as fast as NumPy, which also accepts "1"
        except StructError:
            raise _not_numbers(i) from None
    array = np.frombuffer(b"".join(packed)).reshape(len(rows), width)
    if may_contain_bool:
        # Checking types is slow, and only 0 and 1 can have been a bool.
        for i in np.flatnonzero(((array == 0) | (array == 1)).any(axis=1)).tolist():
            if bool in map(type, rows[i]):
                raise _not_numbers(i)
    with np.errstate(over="ignore"):  # the classifier rejects infinite values
        return array.astype(np.float32)


def _not_numbers(i: int) -> Problem:
    return invalid(f"features[{i}] must contain only numbers.")


def _image(i: int, text: str) -> bytes:
    head, comma, data = text.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        text = data
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"images[{i}] is not base64.") from None


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
    _check_count(len(body) // (4 * n_features), limits)
    return np.frombuffer(body, "<f4").reshape(-1, n_features)


class _InMemory(MultiPartParser):
    """Keeps uploads in memory: they are within the limit of bytes."""

    spool_max_size = 2**62


async def _form(request: Request, limits: Limits) -> tuple[FormData, list[bytes]]:
    """Return the fields of a form and the contents of its files."""
    parser = _InMemory(
        request.headers,
        _stream(request, limits),
        max_files=limits.max_items,
        max_fields=_MAX_FIELDS,
        max_part_size=4 * MAX_NOTE,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise invalid(f"the form cannot be read: {error.message}") from None
    except (KeyError, UnicodeError, LookupError, ValueError):
        raise invalid("the form cannot be read: it is malformed.") from None
    files = [
        value.file.read()
        for name, value in form.multi_items()
        if isinstance(value, UploadFile) and name == "files"
    ]
    texts = [(name, value) for name, value in form.multi_items() if name != "files"]
    if any(isinstance(value, UploadFile) for _, value in texts):
        raise invalid("a file must be in the field 'files'.")
    await form.close()
    _check_count(len(files), limits)
    return FormData(texts), files


def _parse_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a form or a query string as numbers."""
    options: dict[str, Any] = {}
    for name, convert in (("top", int), ("reject", float), ("min_version", int)):
        if text := fields.get(name):
            try:
                options[name] = convert(text)
            except ValueError:
                raise invalid(f"{name}={text[:40]!r} must be a number.") from None
    return options


def _options(values: Mapping[str, Any]) -> tuple[int, float | None, int | None]:
    top, reject = values.get("top", 1), values.get("reject")
    if top is None:
        top = 1
    if type(top) is not int or not 0 <= top <= MAX_TOP:
        raise invalid(f"top must be an integer from 0 to {MAX_TOP}.")
    if reject is not None and (type(reject) is not float or not 0 < reject < 1):
        raise invalid("reject must be a number between 0 and 1, such as 0.05, or omitted.")
    version = values.get("min_version")
    if version is not None and (type(version) is not int or version < 0):
        raise invalid("min_version must be an integer of at least 0, or omitted.")
    return top, reject, version


def _labels(values: Mapping[str, Any], count: int) -> list[str | int]:
    if ("label" in values) == ("labels" in values):
        raise invalid(
            "the body must have either 'label', for all items, or 'labels', one per item."
        )
    if "label" in values:
        return [_label(values["label"])] * count
    labels = values["labels"]
    if type(labels) is not list or len(labels) != count:
        raise invalid(f"'labels' must be a list of {count} labels, one per item.")
    return [_label(label) for label in labels]


def _label(value: Any) -> str | int:
    if type(value) is bool or (type(value) is int and abs(value) < 2**53):
        return value
    if type(value) is not str or not value.strip() or len(value) > MAX_LABEL:
        raise invalid(
            f"a label must be a string of 1 to {MAX_LABEL} characters, an integer or a boolean."
        )
    if "\0" in value:
        raise invalid("a label must not contain the character NUL.")
    return value


def _note(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_NOTE or "\0" in value:
        raise invalid(f"a note must be a string of at most {MAX_NOTE} characters without NUL.")
    return value
