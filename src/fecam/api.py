"""The HTTP API: its operations and the bodies of requests, for the service and its client.

Bodies of requests are structs, results are the types of `fecam.results`. The service reads and
writes them, `fecam.client` writes and reads them, and the OpenAPI document is made from them.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from fecam.results import (
    ChangeResult,
    ClassMap,
    ClassRecord,
    Discovery,
    Evaluation,
    Explanation,
    LearnResult,
    ModelInfo,
    Prediction,
    Step,
    to_json,
)

KINDS = ("features", "texts", "images")
MAX_TOP = 1000
MAX_LABEL = 200
MAX_NOTE = 2000
MAX_UNDO = 20
MAX_EXPLAINED = 16
"""Items of a request for explanations, each of which may take a second."""
MAX_KEY = 200
"""Characters of an idempotency key."""
LOCAL_FIELDS = {"seconds", "idempotency_key"}
"""Fields of results that are not sent."""


class Image(bytes):
    """The bytes of an image file; in JSON base64, also as a data URL."""


def decode_image(kind: type, value: Any) -> Image:
    """Return the bytes of an image in JSON; a hook for msgspec."""
    if not isinstance(value, str):
        raise ValueError(f"Expected `str` in base64, got `{type(value).__name__}`")
    head, comma, data = value.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        value = data
    try:
        return Image(b64decode(value, validate=True))
    except ValueError:
        raise ValueError("Expected `str` in base64") from None


Features = Annotated[
    list[list[float]],
    Meta(min_length=1, description="Rows of one length.", examples=[[[0.1, 0.9, 0.3]]]),
]
Texts = Annotated[list[str], Meta(min_length=1, examples=[["a robin sings"]])]
Images = Annotated[list[Image], Meta(min_length=1, description="Files in base64.")]
Label = (
    Annotated[str, Meta(min_length=1, max_length=MAX_LABEL, pattern=r"\S", examples=["robin"])]
    | Annotated[int, Meta(gt=-(2**53), lt=2**53)]
    | bool
)
Note = Annotated[str, Meta(max_length=MAX_NOTE)]


class Request(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request."""


class PredictRequest(Request, kw_only=True):
    """Items of one kind to predict."""

    features: Features | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    images: Images | UnsetType = UNSET
    top: (
        Annotated[
            int,
            Meta(ge=0, le=MAX_TOP, description="Number of nearest classes; with 0 only the label."),
        ]
        | None
    ) = 1
    reject: (
        Annotated[
            float,
            Meta(
                gt=0,
                lt=1,
                description="Share of items of known classes to reject, such as 0.05. The label "
                "of a rejected item is null.",
            ),
        ]
        | None
    ) = None
    min_version: (
        Annotated[int, Meta(ge=0, description="Wait until the model has this version.")] | None
    ) = None


class ExplainRequest(Request, kw_only=True):
    """Items of one kind to explain."""

    features: Features | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    images: Images | UnsetType = UNSET
    top: Annotated[int, Meta(ge=1, le=MAX_TOP, description="Number of nearest classes.")] = 3
    explain: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=MAX_LABEL,
                description="Label of the class whose distance is decomposed, as a string; the "
                "nearest by default.",
            ),
        ]
        | None
    ) = None


class DiscoverRequest(Request, kw_only=True):
    """Items of one kind, some of which may fit no class."""

    features: Features | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    images: Images | UnsetType = UNSET
    reject: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Share of items of known classes that may be taken for unknown ones before "
            "they are grouped.",
        ),
    ] = 0.2
    min_size: Annotated[
        int, Meta(ge=2, le=MAX_TOP, description="Number of items of the smallest group.")
    ] = 2


class LabeledRequest(Request, kw_only=True):
    """Items of one kind, and one label for all or one for each."""

    features: Features | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    images: Images | UnsetType = UNSET
    label: Label | UnsetType = UNSET
    labels: Annotated[list[Label], Meta(min_length=1)] | UnsetType = UNSET
    note: Note = ""


class RenameRequest(Request):
    """The new label of a class."""

    label: Label


class JoinRequest(Request):
    """Classes to combine, and the label of the joined class."""

    labels: Annotated[list[Label], Meta(min_length=1)]
    label: Label


class UndoRequest(Request):
    """The number of steps to undo."""

    steps: Annotated[int, Meta(ge=1, le=MAX_UNDO)] = 1


def encode(body: Any) -> bytes:
    """Return JSON; NaN becomes null, images become base64."""
    return msgspec.json.encode(body, enc_hook=bytes)


@dataclass(frozen=True)
class Operation:
    """One operation of the API."""

    method: str
    path: str
    tag: str
    result: type[Any] | None = None
    """Type of the result; of each result, if the response is a list."""
    list_name: str = ""
    """Field of the response that has the list."""
    body: type[Request] | None = None

    def response(self, result: Any, version: int, milliseconds: float) -> dict[str, Any]:
        """Return the body of a response."""
        content = result
        if self.list_name:
            encoded = isinstance(result, msgspec.Raw)
            content = {self.list_name: result if encoded else list(map(as_sent, result))}
        return {**as_sent(content), "version": version, "milliseconds": milliseconds}


def as_sent(result: Any) -> Mapping[str, Any]:
    """Return the fields of a result that are sent.

    >>> as_sent(ClassRecord("tit", 2, 1, "2026-11-18", "2026-11-18", "", 640))["label"]
    'tit'
    """
    if isinstance(result, Mapping):
        return result
    return {name: value for name, value in to_json(result).items() if name not in LOCAL_FIELDS}


PREDICT = Operation("POST", "/v1/predict", "ask", Prediction, "answers", PredictRequest)
EXPLAIN = Operation("POST", "/v1/explain", "ask", Explanation, "answers", ExplainRequest)
DISCOVER = Operation("POST", "/v1/discover", "ask", Discovery, body=DiscoverRequest)
EVALUATE = Operation("POST", "/v1/evaluate", "ask", Evaluation, body=LabeledRequest)
TEACH = Operation("POST", "/v1/teach", "teach", LearnResult, body=LabeledRequest)
FORGET = Operation("DELETE", "/v1/classes/{label}", "teach", ChangeResult)
RENAME = Operation("PATCH", "/v1/classes/{label}", "teach", ChangeResult, body=RenameRequest)
JOIN = Operation("POST", "/v1/join", "teach", ChangeResult, body=JoinRequest)
UNDO = Operation("POST", "/v1/undo", "teach", Step, "undone", UndoRequest)
MODEL = Operation("GET", "/v1/model", "look", ModelInfo)
CLASSES = Operation("GET", "/v1/classes", "look", ClassRecord, "classes")
HISTORY = Operation("GET", "/v1/history", "look", Step, "steps")
MAP = Operation("GET", "/v1/map", "look", ClassMap)
FILE = Operation("GET", "/v1/model/file", "look")
METRICS = Operation("GET", "/metrics", "run")
HEALTH = Operation("GET", "/healthz", "run")
READY = Operation("GET", "/readyz", "run")
OPERATIONS: Sequence[Operation] = (
    PREDICT, EXPLAIN, DISCOVER, EVALUATE, TEACH, FORGET, RENAME, JOIN, UNDO, MODEL, CLASSES,
    HISTORY, MAP, FILE,
    METRICS, HEALTH, READY,
)  # fmt: skip
