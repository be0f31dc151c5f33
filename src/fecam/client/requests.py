"""The requests of a client: each method describes one; `Client` and `AsyncClient` send it."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import numpy as np

from fecam.client.items import as_json, rows_of
from fecam.data.items import kind_of
from fecam.errors import InputError, ServiceError
from fecam.results import (
    Candidate,
    ClassMap,
    ClassRecord,
    Evaluation,
    ForgetResult,
    Label,
    LearnResult,
    ModelInfo,
    Prediction,
    Step,
    from_json,
)
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.client.client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
JSON = {"Content-Type": "application/json"}


class ResultList(list[T]):
    """Results of one request, with the version of the model and the milliseconds it took."""

    def __init__(self, results: Iterable[T], version: int, milliseconds: float) -> None:
        super().__init__(results)
        self.version, self.milliseconds = version, milliseconds


class PredictionList(ResultList[Prediction]):
    """Predictions in the order of the items."""

    @property
    def labels(self) -> list[Label | None]:
        """The nearest class of each item; None for rejected and unreadable items."""
        return [prediction.label for prediction in self]


@dataclass(frozen=True)
class Request(Generic[T]):
    """One HTTP request, and the function that reads the JSON of its response."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    is_idempotent: bool = True
    """Whether it may be sent again after a lost response."""
    file: Path | None = None
    """Where the response is written, if it is a file."""


class endpoint(Generic[P, T]):
    """A method that describes a request, as one that sends it; with `AsyncClient` a coroutine."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Request[T]]) -> None:
        self.describe = describe
        functools.update_wrapper(self, describe)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: type) -> endpoint[P, T]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        @functools.wraps(self.describe)
        def send(*args: P.args, **options: P.kwargs) -> Any:
            return client._send(self.describe(client, *args, **options))

        return send


class Requests:
    """The methods of `Client` and `AsyncClient`; those of `AsyncClient` are coroutines."""

    @endpoint
    def model(self) -> Request[ModelInfo]:
        """Describe the model.

        Returns
        -------
        ModelInfo
            Its kind, encoder, size and version.
        """
        return Request("GET", "/v1/model", _reader(ModelInfo))

    @endpoint
    def classes(self) -> Request[ResultList[ClassRecord]]:
        """List the classes.

        Returns
        -------
        list of ClassRecord
            In the order of the labels.
        """
        return Request("GET", "/v1/classes", _list_reader(ClassRecord, "classes"))

    @endpoint
    def predict(
        self,
        items: Any,
        *,
        top: int = 1,
        reject: float | None = None,
        min_version: int | None = None,
    ) -> Request[PredictionList]:
        """Predict the class of each item.

        Parameters
        ----------
        items : sequence
            Images (paths, bytes, Pillow images, arrays), texts, or rows of features.
        top : int, default=1
            Number of nearest classes to return, with probabilities. 0 returns only the label,
            which is faster.
        reject : float, optional
            Share of items of known classes that may be rejected by mistake, such as 0.05. The
            label of a rejected item is None.
        min_version : int, optional
            Wait until the service has loaded this version of the model, such as
            `LearnResult.version`.

        Returns
        -------
        PredictionList
            One prediction per item.

        Raises
        ------
        ServiceError
            If the service rejects the request or does not answer.
        """
        options = {"top": top, "reject": reject, "min_version": min_version}
        params = {name: value for name, value in options.items() if value is not None}
        if kind_of(items) != "features":
            content = _json({**as_json(items), **params})
            return Request("POST", "/v1/predict", _predictions, {}, JSON, content)
        rows = np.ascontiguousarray(rows_of(items), "<f4")

        def read(content: Any) -> PredictionList:
            predictions = _predictions(content)
            if len(predictions) != len(rows):  # the bytes do not hold the length of a row
                raise ServiceError(
                    f"{len(rows)} rows of {rows.shape[1]} features were read as "
                    f"{len(predictions)} rows. Send rows with model().width features.",
                    400,
                    "wrong_width",
                )
            return predictions

        headers = {"Content-Type": "application/octet-stream"}
        return Request("POST", "/v1/predict", read, params, headers, rows.tobytes())

    @endpoint
    def learn(
        self,
        items: Any,
        labels: Label | Sequence[Label],
        *,
        note: str = "",
        idempotency_key: str | None = None,
    ) -> Request[LearnResult]:
        """Learn labeled items; the response comes when they are on the disk of the service.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features, as for `predict`.
        labels : str, int, bool or sequence of these
            One label per item, or one for all items.
        note : str, default=""
            Kept in the history.
        idempotency_key : str, optional
            The service learns requests with the same key once. The default is a random key, so
            that the retries of this call are safe.

        Returns
        -------
        LearnResult
            Counts of learned items and duplicates, and the version of the model.

        Raises
        ------
        ServiceError
            If the service rejects the request or does not answer.
        """
        headers = {**JSON, "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        content = _json({**_labeled(items, labels), "note": note})
        return Request("POST", "/v1/teach", _learn_result, {}, headers, content)

    @endpoint
    def forget(self, label: Label, *, purge: bool = False) -> Request[ForgetResult]:
        """Remove a class.

        Parameters
        ----------
        label : str, int or bool
            The class.
        purge : bool, default=False
            Also remove it from the history, so that it cannot be restored by `undo`.

        Returns
        -------
        ForgetResult
            The step, and the version of the model.
        """
        name = quote(str(label), safe="").replace(".", "%2E")  # a class may be called ".."
        params = {"purge": "true"} if purge else {}
        path = f"/v1/classes/{name}"
        return Request("DELETE", path, _reader(ForgetResult), params, is_idempotent=False)

    @endpoint
    def undo(self, steps: int = 1) -> Request[ResultList[Step]]:
        """Undo the last steps.

        Parameters
        ----------
        steps : int, default=1
            Number of steps.

        Returns
        -------
        list of Step
            The undone steps, the last one first.
        """
        content, read = _json({"steps": steps}), _list_reader(Step, "undone")
        return Request("POST", "/v1/undo", read, {}, JSON, content, is_idempotent=False)

    @endpoint
    def history(self) -> Request[ResultList[Step]]:
        """List the steps of the history.

        Returns
        -------
        list of Step
            The last step first.
        """
        return Request("GET", "/v1/history", _list_reader(Step, "steps"))

    @endpoint
    def evaluate(self, items: Any, labels: Label | Sequence[Label]) -> Request[Evaluation]:
        """Measure the accuracy on labeled items, which the service does not keep.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features, as for `predict`.
        labels : str, int, bool or sequence of these
            One label per item, or one for all items.

        Returns
        -------
        Evaluation
            Accuracy, counts per class and confusions.
        """
        content = _json(_labeled(items, labels))
        return Request("POST", "/v1/evaluate", _reader(Evaluation), {}, JSON, content)

    @endpoint
    def map(self) -> Request[ClassMap]:
        """Project the classes to two dimensions.

        Returns
        -------
        ClassMap
            A point and an ellipse per class.
        """
        return Request("GET", "/v1/map", _reader(ClassMap))

    @endpoint
    def download(self, path: str | os.PathLike[str]) -> Request[Path]:
        """Write a copy of the model's file; an interrupted download leaves no file.

        Parameters
        ----------
        path : path-like
            The file to write.

        Returns
        -------
        Path
            The file.
        """
        file = Path(path)
        return Request("GET", "/v1/model/file", lambda _: file, file=file)


def _labeled(items: Any, labels: Label | Sequence[Label]) -> dict[str, Any]:
    """Return items with their label or labels, as the service reads them."""
    if isinstance(labels, (str, bytes, int)) or not hasattr(labels, "__len__"):
        return {"label": _plain(labels), **as_json(items)}
    names = [_plain(label) for label in labels]
    if len(names) != len(items):
        raise InputError(
            f"{counted(len(items), 'item')} but {counted(len(names), 'label')}: give one label "
            "per item."
        )
    return {"labels": names, **as_json(items)}


def _plain(label: Any) -> Label:
    plain = label.item() if isinstance(label, np.generic) else label
    if not isinstance(plain, (str, int)):  # a bool is an int
        raise InputError(
            f"a label is a text, an integer or a boolean, not a {type(plain).__name__}. "
            "The items come first, then the labels."
        )
    return plain


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _prediction(content: Any) -> Prediction:
    missing = {"label": None, "novelty": None} if "error" in content else {}
    nearest = [from_json(Candidate, candidate) for candidate in content.get("nearest", ())]
    return from_json(Prediction, {**missing, **content}, nearest=nearest)


def _predictions(content: Any) -> PredictionList:
    predictions = map(_prediction, content["answers"])
    return PredictionList(predictions, content["version"], content["milliseconds"])


def _learn_result(content: Any) -> LearnResult:
    return from_json(LearnResult, content, seconds=content["milliseconds"] / 1000)


def _reader(kind: type[T]) -> Callable[[Any], T]:
    return functools.partial(from_json, kind)


def _list_reader(kind: type[T], name: str) -> Callable[[Any], ResultList[T]]:
    def read(content: Any) -> ResultList[T]:
        results = map(_reader(kind), content[name])
        return ResultList(results, content["version"], content["milliseconds"])

    return read
