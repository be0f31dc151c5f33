"""What a service can be asked for: each request described once, for both clients."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import numpy as np

from fecam.client import answers
from fecam.client.answers import (
    ClassInfo,
    ClassMap,
    Evaluation,
    Forgotten,
    History,
    Label,
    ModelInfo,
    Predictions,
    Taught,
    Undone,
)
from fecam.client.items import as_json, is_rows, rows_of
from fecam.errors import InputError, ServiceError

if TYPE_CHECKING:
    from fecam.client.client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    twice: bool = True
    """Whether it may be sent again when nobody knows if it arrived."""
    file: Path | None = None
    """Where the answer goes, if it is a file."""


class verb(Generic[P, T]):
    """A described request as a method: `Client` sends it, `AsyncClient` can be awaited for it."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self.describe = describe
        functools.update_wrapper(self, describe)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> verb[P, T]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        @functools.wraps(self.describe)
        def ask(*args: P.args, **options: P.kwargs) -> Any:
            return client.send(self.describe(client, *args, **options))

        return ask


class Verbs:
    """The requests. Each method is one, and says what comes back."""

    @verb
    def model(self) -> Call[ModelInfo]:
        """What the service knows, in short."""
        return Call("GET", "/v1/model", lambda found: answers.read(ModelInfo, found))

    @verb
    def classes(self) -> Call[list[ClassInfo]]:
        """Every class, in the order of the labels."""
        return Call("GET", "/v1/classes", answers.classes)

    @verb
    def predict(
        self,
        items: Any,
        *,
        top: int = 1,
        reject: float | None = None,
        min_version: int | None = None,
    ) -> Call[Predictions]:
        """Judge items: images (paths, bytes, Pillow images, arrays), texts, or rows of features.

        ``top`` is how many of the nearest classes are told, with their probabilities; 0 for the
        label alone, which is faster. With ``reject=0.05`` the label of what
        fits no class is None. ``min_version`` is the version of a lesson that must have been
        learnt: where several workers share a model, they tell each other within a moment.
        """
        about = {"top": top, "reject": reject, "min_version": min_version}
        asked = {name: value for name, value in about.items() if value is not None}
        if not is_rows(items):
            content, headers = _json({**as_json(items), **asked})
            return Call("POST", "/v1/predict", answers.predictions, {}, headers, content)
        rows = np.ascontiguousarray(rows_of(items), "<f4")

        def read(found: Any) -> Predictions:
            judged = answers.predictions(found)
            # Bytes do not say where a row ends.
            if len(judged) != len(rows):
                raise ServiceError(
                    f"{len(rows)} rows of {rows.shape[1]} features were taken for {len(judged)}. "
                    "Give rows as wide as the model's: model().width",
                    400,
                    "wrong_width",
                )
            return judged

        headers = {"Content-Type": "application/octet-stream"}
        return Call("POST", "/v1/predict", read, asked, headers, rows.tobytes())

    @verb
    def teach(
        self,
        labels: Label | Sequence[Label],
        items: Any,
        *,
        note: str = "",
        idempotency_key: str | None = None,
    ) -> Call[Taught]:
        """Teach items: one label for all of them, or as many labels as items.

        The service learns the batches of one ``idempotency_key`` once. The default is a random key,
        so that the retries of this call are safe.
        """
        content, headers = _json({**_labelled(labels, items), "note": note})
        headers["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex
        return Call("POST", "/v1/teach", _reader(Taught), {}, headers, content)

    @verb
    def forget(self, label: Label, *, purge: bool = False) -> Call[Forgotten]:
        """Remove a class; ``purge``, so that it cannot be undone."""
        place = quote(str(label), safe="").replace(".", "%2E")  # a class may be called ".."
        params = {"purge": "true"} if purge else {}
        return Call(
            "DELETE", f"/v1/classes/{place}", _reader(Forgotten), params=params, twice=False
        )

    @verb
    def undo(self, steps: int = 1) -> Call[Undone]:
        """Take back the last steps."""
        content, headers = _json({"steps": steps})
        return Call("POST", "/v1/undo", answers.undone, {}, headers, content, twice=False)

    @verb
    def history(self) -> Call[History]:
        """What happened to the model, the last step first."""
        return Call("GET", "/v1/history", answers.history)

    @verb
    def evaluate(self, labels: Label | Sequence[Label], items: Any) -> Call[Evaluation]:
        """How good the model is on labelled items; nothing of them is kept."""
        content, headers = _json(_labelled(labels, items))
        return Call("POST", "/v1/evaluate", _reader(Evaluation), {}, headers, content)

    @verb
    def map(self) -> Call[ClassMap]:
        """Where the classes lie, in two dimensions."""
        return Call("GET", "/v1/map", _reader(ClassMap))

    @verb
    def download(self, path: str | os.PathLike[str]) -> Call[Path]:
        """Write a copy of the model's file to ``path``: all of it, or nothing."""
        place = Path(path)
        return Call("GET", "/v1/model/file", lambda _: place, file=place)


def _labelled(labels: Label | Sequence[Label], items: Any) -> dict[str, Any]:
    """Items with their label or labels, as JSON has them."""
    if isinstance(labels, (str, bytes, int)) or not hasattr(labels, "__len__"):
        return {"label": _plain(labels), **as_json(items)}
    named = [_plain(label) for label in labels]
    if len(named) != len(items):
        raise InputError(f"there are {len(items)} items but {len(named)} labels.")
    return {"labels": named, **as_json(items)}


def _plain(label: Any) -> str | int:
    plain = label.item() if isinstance(label, np.generic) else label
    if isinstance(plain, bool) or not isinstance(plain, (str, int)):
        raise InputError(
            f"a label is a text or a whole number, not a {type(plain).__name__}. "
            "The labels come first, then the items."
        )
    return plain


def _json(content: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps(content).encode(), {"Content-Type": "application/json"}


def _reader(kind: type[T]) -> Callable[[Any], T]:
    return functools.partial(answers.read, kind)
