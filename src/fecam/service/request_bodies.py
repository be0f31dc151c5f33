"""What a request brings, read under limits: JSON, multipart, or plain rows of numbers.

Bytes are counted while they arrive. Numbers are looked at by hand: a model of pydantic for each of
them would take longer than the answer.
"""

from __future__ import annotations

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
_FIELDS = 8
"""Fields of a form beside its files: more are not needed."""


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """Items to be judged."""

    kind: str
    items: Any
    top: int
    reject: float | None
    min_version: int | None


@dataclass(frozen=True, slots=True)
class LabeledRequest:
    """Items with a label each."""

    kind: str
    items: Any
    labels: list[str | int]
    note: str


async def read_predict_request(
    request: Request, limits: Limits, width: int | None
) -> PredictRequest:
    """Items that a request asks about; ``width`` is that of the model's features, if it has any."""
    media = _media_type(request)
    if media == "application/octet-stream":
        body = await read_body(request, limits)
        rows = _rows_of_bytes(body, width, limits)
        return PredictRequest("features", rows, *_options(_texts(request.query_params)))
    if media == "multipart/form-data":
        form, files = await _form(request, limits)
        _no_others(form, {"top", "reject", "min_version"})
        return PredictRequest("images", files, *_options(_texts(form)))
    found, words = await _json(request, media, limits)
    _no_others(found, {*KINDS, "top", "reject", "min_version"})
    kind, items = _items(found, words, limits)
    return PredictRequest(kind, items, *_options(found))


async def read_labeled_request(request: Request, limits: Limits) -> LabeledRequest:
    """Items with labels that a request brings."""
    media = _media_type(request)
    if media == "multipart/form-data":
        form, files = await _form(request, limits)
        _no_others(form, {"label", "note"})
        label = _label(form.get("label"))
        return LabeledRequest("images", files, [label] * len(files), _note(form.get("note", "")))
    found, words = await _json(request, media, limits)
    _no_others(found, {*KINDS, "label", "labels", "note"})
    kind, items = _items(found, words, limits)
    return LabeledRequest(kind, items, _labels(found, len(items)), _note(found.get("note", "")))


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """A JSON object of a few values; nothing at all is an empty one."""
    body = await read_body(request, limits)
    return _parsed(body) if body else {}


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, as far as it may go."""
    part, more = await _part(request, limits)
    if len(part) > limits.max_bytes:
        raise _too_large(limits)
    if not more:
        return part  # as most are: small, and there at once
    return b"".join([part, *[part async for part in _stream(request, limits, len(part))]])


def invalid(message: str) -> Problem:
    """A request that cannot be understood."""
    return Problem(422, "invalid", message)


# ---------------------------------------------------------------------- bytes


def _too_large(limits: Limits, **headers: str) -> Problem:
    return Problem(
        413,
        "too_large",
        f"a request may have {limits.max_bytes:,} bytes. Send fewer items at a time.",
        **headers,
    )


async def _stream(request: Request, limits: Limits, count: int = 0) -> AsyncGenerator[bytes, None]:
    """The parts of a body as they come, after ``count`` bytes."""
    more = True
    while more:
        part, more = await _part(request, limits)
        count += len(part)
        if count > limits.max_bytes:  # of which nobody said how much more there is
            raise _too_large(limits, Connection="close")
        if part:
            yield part


async def _part(request: Request, limits: Limits) -> tuple[bytes, bool]:
    """What has come of the body, and whether there is more."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limits.max_bytes:
        raise _too_large(limits)
    try:
        message = await request.app.state.patience.wait(request.receive())
    except TimeoutError:
        raise Problem(
            408, "too_slow", f"nothing came for {limits.seconds:g} seconds. Send it again."
        ) from None
    if message["type"] == "http.disconnect":
        raise Problem(400, "gone", "the request ended before its body did.")
    return message.get("body", b""), message.get("more_body", False)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# ---------------------------------------------------------------------- JSON


async def _json(request: Request, media: str, limits: Limits) -> tuple[dict[str, Any], bool]:
    """An object, and whether there may be a true or a false in it."""
    if media != "application/json":
        raise Problem(
            415,
            "media_type",
            f"the content type {media[:80]!r} is none of application/json, multipart/form-data "
            "and, to predict, application/octet-stream. Set the header Content-Type.",
        )
    body = await read_body(request, limits)
    # Beside "features", which has one u, most have neither letter; to look for words takes longer.
    words = body.find(b"u", body.find(b"u") + 1) >= 0 or b"l" in body
    return _parsed(body), words


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, "json", f"the body is not JSON: {error}.") from None
    if type(found) is not dict:
        raise invalid('the body must be an object, such as {"features": [[0.1, 0.2]]}.')
    return found


def _no_others(found: Mapping[str, Any], known: set[str]) -> None:
    for name in found:
        if name not in known:
            raise invalid(f"{name[:80]!r} is not known here. There are {', '.join(sorted(known))}.")


def _items(found: Mapping[str, Any], words: bool, limits: Limits) -> tuple[str, Any]:
    kinds = [kind for kind in KINDS if kind in found]
    if len(kinds) != 1:
        raise invalid(f"give one of {', '.join(KINDS)}; there are {len(kinds)} of them.")
    (kind,) = kinds
    items = found[kind]
    if type(items) is not list:
        raise invalid(f"{kind!r} must be a list, of one if it is only one.")
    _check_count(len(items), limits)
    if kind == "features":
        return kind, rows_of_lists(items, words=words)
    for at, item in enumerate(items):
        if type(item) is not str:
            raise invalid(f"{kind}[{at}] must be a text{' in base64' * (kind == 'images')}.")
    return kind, items if kind == "texts" else [_image(at, item) for at, item in enumerate(items)]


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise invalid("there are no items. Give at least one.")
    if count > limits.max_items:
        raise Problem(
            413,
            "too_many",
            f"{count:,} items are more than the {limits.max_items:,} that a request may have. "
            "Send them in several.",
        )


def rows_of_lists(rows: list[Any], *, words: bool = True) -> NDArray[np.float32]:
    """Rows of numbers as an array; ``words`` tells whether some may be true or false instead.

    >>> rows_of_lists([[0.5, 1], [2, 3.25]]).tolist()
    [[0.5, 1.0], [2.0, 3.25]]
    """
    width = len(rows[0]) if type(rows[0]) is list else 0
    pack, packed = Struct(f"{width}d").pack, list[bytes]()
    for at, row in enumerate(rows):
        if type(row) is not list or len(row) != width or not width:
            raise invalid(f"features[{at}] must be a list of numbers, all of one length.")
        try:
            packed.append(pack(*row))  # several times as fast as NumPy, which takes "1" as well
        except StructError:
            raise _no_numbers(at) from None
    found = np.frombuffer(b"".join(packed)).reshape(len(rows), width)
    if words:
        # Types take longer to look at than all else, and only 0 and 1 can have been a word.
        for at in np.flatnonzero(((found == 0) | (found == 1)).any(axis=1)).tolist():
            if bool in map(type, rows[at]):
                raise _no_numbers(at)
    with np.errstate(over="ignore"):  # what is not finite is refused where rows are used
        return found.astype(np.float32)


def _no_numbers(at: int) -> Problem:
    return invalid(f"features[{at}] must hold numbers only.")


def _image(at: int, text: str) -> bytes:
    head, comma, rest = text.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        text = rest
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"images[{at}] is not base64.") from None


# ---------------------------------------------------------------------- rows of bytes


def _rows_of_bytes(body: bytes, width: int | None, limits: Limits) -> NDArray[np.float32]:
    if width is None:
        raise Problem(
            409,
            "no_width",
            "application/octet-stream is for models that were taught features. GET /v1/model tells "
            "what a model takes.",
        )
    if not body or len(body) % (4 * width):
        raise invalid(
            f"{len(body):,} bytes are not rows of {width} little-endian 32-bit floats, "
            f"{4 * width:,} bytes each."
        )
    _check_count(len(body) // (4 * width), limits)
    return np.frombuffer(body, "<f4").reshape(-1, width)


# ---------------------------------------------------------------------- forms


class _InMemory(MultiPartParser):
    """What is uploaded is never written to the disk: all of it fits into the limit of bytes."""

    spool_max_size = 2**62


async def _form(request: Request, limits: Limits) -> tuple[FormData, list[bytes]]:
    """The fields of a form, and the content of its files."""
    parser = _InMemory(
        request.headers,
        _stream(request, limits),
        max_files=limits.max_items,
        max_fields=_FIELDS,
        max_part_size=4 * MAX_NOTE,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise invalid(f"the form cannot be read: {error.message}") from None
    except (KeyError, UnicodeError, LookupError, ValueError):
        raise invalid("the form cannot be read: it is damaged.") from None
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


def _texts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Options that came as texts."""
    read: dict[str, Any] = {}
    for name, as_number in (("top", int), ("reject", float), ("min_version", int)):
        if text := found.get(name):
            try:
                read[name] = as_number(text)
            except ValueError:
                raise invalid(f"{name}={text[:40]!r} is not a number.") from None
    return read


# ---------------------------------------------------------------------- values


def _options(found: Mapping[str, Any]) -> tuple[int, float | None, int | None]:
    top, reject = found.get("top", 1), found.get("reject")
    if top is None:
        top = 1
    if type(top) is not int or not 0 <= top <= MAX_TOP:
        raise invalid(f"top must be a whole number from 0 to {MAX_TOP}.")
    if reject is not None and (type(reject) is not float or not 0 < reject < 1):
        raise invalid("reject must lie between 0 and 1, such as 0.05, or be left out.")
    version = found.get("min_version")
    if version is not None and (type(version) is not int or version < 0):
        raise invalid("min_version must be a whole number, or be left out.")
    return top, reject, version


def _labels(found: Mapping[str, Any], count: int) -> list[str | int]:
    if ("label" in found) == ("labels" in found):
        raise invalid("give either 'label', of all items, or 'labels', one an item.")
    if "label" in found:
        return [_label(found["label"])] * count
    labels = found["labels"]
    if type(labels) is not list or len(labels) != count:
        raise invalid(f"'labels' must be a list of {count}, one an item.")
    return [_label(one) for one in labels]


def _label(value: Any) -> str | int:
    if type(value) is int and abs(value) < 2**53:
        return value
    if type(value) is not str or not value.strip() or len(value) > MAX_LABEL:
        raise invalid(f"a label must be a text of 1 to {MAX_LABEL} characters, or a whole number.")
    if "\0" in value:
        raise invalid("a label cannot have a character of the code 0.")
    return value


def _note(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_NOTE or "\0" in value:
        raise invalid(f"a note must be a text of at most {MAX_NOTE} characters.")
    return value
