"""Schemas of requests and responses, for the OpenAPI document.

These models only document. `fecam.service.request_bodies` reads and validates by hand, because
validation of each number takes longer than the prediction.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from fecam.service.request_bodies import MAX_LABEL, MAX_NOTE, MAX_TOP

REFERENCE = "#/components/schemas/{model}"

Name = str | int | bool
Rows = Annotated[list[list[float]], Field(min_length=1, examples=[[[0.1, 0.9, 0.3]]])]
Texts = Annotated[list[str], Field(min_length=1, examples=[["a robin sings"]])]
Images = Annotated[
    list[Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]],
    Field(min_length=1, description="Files in base64."),
]
Top = Annotated[
    int,
    Field(
        ge=0, le=MAX_TOP, description="Number of nearest classes to return; with 0 only the label."
    ),
]
Reject = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="Share of items of known classes to reject, such as 0.05. The label of a "
        "rejected item is null.",
    ),
]
MinVersion = Annotated[
    int | None, Field(ge=0, description="Wait until the model has this version.")
]
LabelText = Annotated[str, Field(min_length=1, max_length=MAX_LABEL, pattern=r"\S")]
Label = LabelText | int | bool
LabelType = Annotated[
    Literal["str", "int", "bool"] | None,
    Field(description="Type of the labels that are keys; absent if there are none."),
]
Note = Annotated[str, Field(max_length=MAX_NOTE)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _PredictRequest(_Request):
    """Items to predict."""

    top: Top = 1
    reject: Reject = None
    min_version: MinVersion = None


class _TeachRequest(_Request):
    """Items of one class."""

    label: Label = Field(examples=["robin"])
    note: Note = ""


class _LabeledRequest(_Request):
    """Items with one label each."""

    labels: list[Label] = Field(min_length=1, description="One per item.", examples=[["robin"]])
    note: Note = ""


def _for_each_kind(prefix: str, base: type[_Request]) -> list[type[BaseModel]]:
    """Return a model per kind of items, such as PredictFeatures with the field features."""
    models = []
    for kind, items in (("features", Rows), ("texts", Texts), ("images", Images)):
        field: dict[str, Any] = {kind: (items, ...)}
        name = f"{prefix}{kind.title()}"
        models.append(create_model(name, __base__=base, __doc__=base.__doc__, **field))
    return list[type[BaseModel]](models)


PREDICT_REQUESTS = _for_each_kind("Predict", _PredictRequest)
TEACH_REQUESTS = _for_each_kind("Teach", _TeachRequest)
LABELED_REQUESTS = _for_each_kind("Labeled", _LabeledRequest)


class UndoRequest(_Request):
    """The number of steps to undo."""

    steps: int = Field(1, ge=1, le=20)


class _Answer(BaseModel):
    version: int = Field(description="Version of the model; it grows with every change.")
    milliseconds: float


class Candidate(BaseModel):
    """One of the nearest classes."""

    label: Name
    probability: float = Field(description="Among all likely classes.")
    distance: float = Field(description="Squared Mahalanobis distance.")


class ItemPrediction(BaseModel):
    """The prediction of an item; only an error if it cannot be read."""

    label: Name | None = Field(None, description="Null if the item is rejected.")
    novelty: float | None = Field(
        None,
        description="How little the item fits its class, in standard deviations; null if the model "
        "has too few examples to tell.",
    )
    nearest: list[Candidate] = []
    error: str | None = None


class Prediction(_Answer):
    """A prediction per item, in their order."""

    answers: list[ItemPrediction]


class LearnResponse(_Answer):
    """The result of a teach request; it is on disk."""

    step: int | None = Field(description="Null if no item was new.")
    learned: dict[str, int]
    label_type: LabelType = None
    duplicates: dict[str, int] = Field(description="Skipped duplicates of earlier items.")
    unreadable: list[str]
    new_classes: list[Name]


class StepAnswer(BaseModel):
    """One change of the model."""

    number: int
    time: str
    what: str
    note: str
    counts: dict[str, int]
    label_type: LabelType = None
    undone: bool
    can_undo: bool


class Forgotten(_Answer, StepAnswer):
    """The step that removed a class."""

    step: int


class Undone(_Answer):
    """The undone steps."""

    undone: list[StepAnswer]


class History(_Answer):
    """All steps, the last one first."""

    steps: list[StepAnswer]


class PerClass(BaseModel):
    """Items of a class, and how many were predicted correctly."""

    count: int
    right: int


class Evaluation(_Answer):
    """Accuracy, counts and confusions on labeled items."""

    accuracy: float | None
    count: int
    unknown_labels: list[Name]
    per_class: dict[str, PerClass]
    label_type: LabelType = None
    confusions: list[tuple[Name, Name, int]] = Field(
        description="True label, predicted label, count."
    )
    unreadable: list[str]


class ModelAnswer(_Answer):
    """Properties of the model."""

    name: str
    kind: str | None = Field(
        description="images, texts or features; null while the model has no classes."
    )
    encoder: str | None
    width: int | None
    classes: int
    samples: int


class ClassAnswer(BaseModel):
    """A class; times are in UTC."""

    label: Name
    count: int
    batches: int
    learned: str
    changed: str
    note: str
    bytes: int


class Classes(_Answer):
    """All classes in the order of their labels."""

    classes: list[ClassAnswer]


class Ellipse(BaseModel):
    """One standard deviation: semi-axes, and the angle of the major one in radians."""

    a: float
    b: float
    angle: float


class Point(BaseModel):
    """A class on the map."""

    label: Name
    count: int
    x: float
    y: float
    ellipse: Ellipse


class Map(_Answer):
    """Map of the classes."""

    points: list[Point]
    explained: float | None = Field(
        description="Share of the variance of the means that the map shows."
    )


class Status(BaseModel):
    """Status of the service."""

    status: str


class ErrorBody(BaseModel):
    """A code for programs and a message for people."""

    code: str
    message: str


class Error(BaseModel):
    """An error."""

    error: ErrorBody


_ERRORS = {
    400: "The body cannot be read.",
    401: "A token is required.",
    403: "The token or the origin of the page does not allow it.",
    404: "There is no such class.",
    408: "The body arrived too slowly.",
    409: "The model has no classes, or no step can be undone.",
    413: "Too many bytes or items.",
    415: "The content type is not supported.",
    422: "A value is invalid.",
    429: "The queue is full; see Retry-After.",
    503: "Temporarily unavailable; see Retry-After.",
}


def responses(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route for OpenAPI."""
    errors: dict[int | str, dict[str, Any]] = {
        code: {"model": Error, "description": text} for code, text in _ERRORS.items()
    }
    return {200: {"model": answer}, **errors}


def body(*models: type[BaseModel], form: dict[str, Any] | None = None, raw: bool = False) -> Any:
    """Return the body of a request for OpenAPI."""
    references = [{"$ref": REFERENCE.format(model=model.__name__)} for model in models]
    content: dict[str, Any] = {
        "application/json": {"schema": references[0] if len(models) == 1 else {"anyOf": references}}
    }
    if form is not None:
        files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
        schema = {"type": "object", "properties": {"files": files, **form}}
        content["multipart/form-data"] = {"schema": {**schema, "required": ["files"]}}
    if raw:
        content["application/octet-stream"] = {
            "schema": {"type": "string", "format": "binary"},
            "example": "rows of little-endian 32-bit floats",
        }
    return {"requestBody": {"required": len(models) > 1, "content": content}}


PREDICT_FORM = {
    "top": {"type": "integer", "minimum": 0, "maximum": MAX_TOP},
    "reject": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "min_version": {"type": "integer", "minimum": 0},
}
LABEL_FORM = {
    "label": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL},
    "note": {"type": "string", "maxLength": MAX_NOTE},
}


def request_schemas() -> dict[str, Any]:
    """Return the schemas of all request bodies by name."""
    models: list[type[BaseModel]] = [
        *PREDICT_REQUESTS,
        *TEACH_REQUESTS,
        *LABELED_REQUESTS,
        UndoRequest,
    ]
    _, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template=REFERENCE
    )
    return dict(schema["$defs"])
