"""What requests and answers look like, for the OpenAPI document.

These models only document. `fecam.service.request_bodies` reads and validates by hand, because
validation of each number takes longer than the prediction.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from fecam.service.request_bodies import MAX_LABEL, MAX_NOTE, MAX_TOP

REFERENCE = "#/components/schemas/{model}"

Name = str | int
Rows = Annotated[list[list[float]], Field(min_length=1, examples=[[[0.1, 0.9, 0.3]]])]
Texts = Annotated[list[str], Field(min_length=1, examples=[["a robin sings"]])]
Images = Annotated[
    list[Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]],
    Field(min_length=1, description="Files in base64."),
]
Top = Annotated[
    int,
    Field(ge=0, le=MAX_TOP, description="How many classes to name; with 0 only the label is told."),
]
Reject = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        description="The share of items of known classes that may be turned away, such as 0.05; "
        "then the label of what fits no class is null.",
    ),
]
MinVersion = Annotated[
    int | None, Field(ge=0, description="Wait until the model has this version.")
]
LabelText = Annotated[str, Field(min_length=1, max_length=MAX_LABEL, pattern=r"\S")]
Label = LabelText | int
Note = Annotated[str, Field(max_length=MAX_NOTE)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Question(_Request):
    top: Top = 1
    reject: Reject = None
    min_version: MinVersion = None


class FeaturesQuestion(_Question):
    """Rows of features to be judged."""

    features: Rows


class TextsQuestion(_Question):
    """Texts to be judged."""

    texts: Texts


class ImagesQuestion(_Question):
    """Images to be judged."""

    images: Images


class _Lesson(_Request):
    label: Label = Field(examples=["robin"])
    note: Note = ""


class FeaturesLesson(_Lesson):
    """Rows of features of one class."""

    features: Rows


class TextsLesson(_Lesson):
    """Texts of one class."""

    texts: Texts


class ImagesLesson(_Lesson):
    """Images of one class."""

    images: Images


class _LabelledItems(_Request):
    labels: list[Label] = Field(min_length=1, description="One an item.", examples=[["robin"]])
    note: Note = ""


class FeaturesLabelled(_LabelledItems):
    """Rows of features with a label each."""

    features: Rows


class TextsLabelled(_LabelledItems):
    """Texts with a label each."""

    texts: Texts


class ImagesLabelled(_LabelledItems):
    """Images with a label each."""

    images: Images


class UndoRequest(_Request):
    """How many steps to take back."""

    steps: int = Field(1, ge=1, le=20)


class _Answer(BaseModel):
    version: int = Field(description="Of the model; it grows with every change.")
    milliseconds: float


class Candidate(BaseModel):
    """A class that an item may belong to."""

    label: Name
    probability: float = Field(description="Among the classes that are likely at all.")
    distance: float = Field(description="Squared.")


class Judgement(BaseModel):
    """What the model makes of an item; only an error, if it cannot be read."""

    label: Name | None = Field(None, description="Null if it fits no class.")
    novelty: float = Field(0.0, description="How little it fits, in standard deviations.")
    nearest: list[Candidate] = []
    error: str | None = None


class Prediction(_Answer):
    """An answer for each item, in their order."""

    answers: list[Judgement]


class Taught(_Answer):
    """What became of a lesson; it is on the disk."""

    step: int | None = Field(description="Null if nothing was left to teach.")
    learned: dict[str, int]
    duplicates: dict[str, int] = Field(description="Left out, for they were taught before.")
    unreadable: list[str]
    new_classes: list[Name]


class StepAnswer(BaseModel):
    """One change of the model."""

    number: int
    time: str
    what: str
    note: str
    counts: dict[str, int]
    undone: bool
    can_undo: bool


class Forgotten(_Answer, StepAnswer):
    """The step that removed a class."""

    step: int


class Undone(_Answer):
    """The steps that were taken back."""

    undone: list[StepAnswer]


class History(_Answer):
    """All steps, the last one first."""

    steps: list[StepAnswer]


class PerClass(BaseModel):
    """How often a class was right."""

    count: int
    right: int


class Evaluation(_Answer):
    """How well the model does on labelled items; nothing is kept of them."""

    accuracy: float | None
    count: int
    unknown_labels: list[Name]
    per_class: dict[str, PerClass]
    confusions: list[tuple[Name, Name, int]] = Field(description="Truth, answer, how often.")
    unreadable: list[str]


class ModelAnswer(_Answer):
    """What the model is."""

    name: str
    kind: str | None = Field(description="images, texts, features; null: nothing is taught yet.")
    encoder: str | None
    width: int | None
    classes: int
    samples: int


class ClassAnswer(BaseModel):
    """One class; times are in UTC."""

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
    """One standard deviation: half axes, and the angle of the longer one in radians."""

    a: float
    b: float
    angle: float


class Point(BaseModel):
    """A class in the plane."""

    label: Name
    count: int
    x: float
    y: float
    ellipse: Ellipse


class Map(_Answer):
    """The classes in the plane."""

    points: list[Point]
    explained: float | None = Field(description="The share of their variance that is shown.")


class Status(BaseModel):
    """How the service does."""

    status: str


class ErrorBody(BaseModel):
    """A word for programs and a sentence for people."""

    code: str
    message: str


class Error(BaseModel):
    """What went wrong, and what to do."""

    error: ErrorBody


QUESTIONS = (FeaturesQuestion, TextsQuestion, ImagesQuestion)
LESSONS = (FeaturesLesson, TextsLesson, ImagesLesson)
LABELLED = (FeaturesLabelled, TextsLabelled, ImagesLabelled)
_ERRORS = {
    400: "The body cannot be read.",
    401: "A token is needed.",
    403: "Not allowed: by the token, or for a page from elsewhere.",
    404: "There is no such class.",
    408: "The body came too slowly.",
    409: "Nothing is taught yet, or nothing is left to undo.",
    413: "Too many bytes or items.",
    415: "Another content type is needed.",
    422: "A value cannot be used.",
    429: "Too many wait already; see Retry-After.",
    503: "Not now; see Retry-After.",
}


def responses(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What a route may answer."""
    errors: dict[int | str, dict[str, Any]] = {
        code: {"model": Error, "description": text} for code, text in _ERRORS.items()
    }
    return {200: {"model": answer}, **errors}


def body(*models: type[BaseModel], form: dict[str, Any] | None = None, raw: bool = False) -> Any:
    """The body of a request, as OpenAPI describes it."""
    references = [{"$ref": REFERENCE.format(model=one.__name__)} for one in models]
    content: dict[str, Any] = {
        "application/json": {"schema": references[0] if len(models) == 1 else {"anyOf": references}}
    }
    if form is not None:
        files = {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "format": "binary"},
        }
        schema = {"type": "object", "properties": {"files": files, **form}}
        content["multipart/form-data"] = {"schema": {**schema, "required": ["files"]}}
    if raw:
        content["application/octet-stream"] = {
            "schema": {"type": "string", "format": "binary"},
            "example": "rows of little-endian 32-bit floats",
        }
    return {"requestBody": {"required": len(models) > 1, "content": content}}


QUESTION_FORM = {
    "top": {"type": "integer", "minimum": 0, "maximum": MAX_TOP},
    "reject": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "min_version": {"type": "integer", "minimum": 0},
}
LABEL_FORM = {
    "label": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL},
    "note": {"type": "string", "maxLength": MAX_NOTE},
}


def request_schemas() -> dict[str, Any]:
    """The schemas of all request bodies, by name."""
    models: list[type[BaseModel]] = [*QUESTIONS, *LESSONS, *LABELLED, UndoRequest]
    _, found = models_json_schema([(one, "validation") for one in models], ref_template=REFERENCE)
    return dict(found["$defs"])
