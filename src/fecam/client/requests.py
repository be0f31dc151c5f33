"""The requests of a client: each method describes one; `Client` and `AsyncClient` send it."""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import numpy as np

from fecam import api
from fecam.api import Operation
from fecam.client.items import as_field, rows_of
from fecam.data.items import kind_of
from fecam.errors import InputError, ServiceError
from fecam.results import (
    Candidate,
    ChangeResult,
    ClassDistance,
    ClassMap,
    ClassRecord,
    Direction,
    Discovery,
    Evaluation,
    Explanation,
    FeatureContribution,
    Group,
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

    operation: Operation
    path: str = ""
    """Path without parameters, if it is not that of the operation."""
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    is_idempotent: bool = True
    """Whether it may be sent again after a lost response."""
    file: Path | None = None
    """Where the response is written, if it is a file."""
    shape: tuple[int, ...] = ()
    """Shape of the rows in ``content``, whose bytes do not hold it."""

    def read(self, content: Any) -> T:
        """Return the result in the JSON of a response."""
        result: Any = self.file
        if self.operation.list_name:
            result = self._read_list(content)
        elif self.file is None:
            assert self.operation.result is not None, "a request with a result"
            result = _read(self.operation.result, content)
        return result  # type: ignore[no-any-return]

    def _read_list(self, content: Any) -> ResultList[Any]:
        kind = self.operation.result
        list_type = PredictionList if kind is Prediction else ResultList[Any]
        results = [_read(kind, item) for item in content[self.operation.list_name]]
        if self.shape and self.shape[0] != len(results):
            raise ServiceError(
                f"{self.shape[0]} rows of {self.shape[1]} features were read as {len(results)} "
                "rows. Send rows with model().width features.",
                400,
                "wrong_width",
            )
        return list_type(results, content["version"], content["milliseconds"])


def _read(kind: Any, content: Any) -> Any:
    """Return a result; predictions have some fields only, NaN is null, times are in seconds."""
    if kind is Prediction:
        nearest = [from_json(Candidate, candidate) for candidate in content.get("nearest", ())]
        novelty = content.get("novelty")
        novelty = math.nan if novelty is None else novelty
        return from_json(kind, {"label": None, **content}, novelty=novelty, nearest=nearest)
    if kind is Explanation:
        return _read_explanation(content)
    if kind is Discovery:
        groups = [from_json(Group, group) for group in content["groups"]]
        return from_json(kind, content, groups=groups)
    if kind is LearnResult:
        return from_json(kind, content, seconds=content["milliseconds"] / 1000)
    return from_json(kind, content)


def _read_explanation(content: Any) -> Explanation:
    """Return an explanation; that of an item that cannot be read has only an error."""
    empty: dict[str, Any] = {"label": None, "margin": None, "explained": None}
    empty |= {"other_directions": math.nan, "other_features": math.nan}
    parts: Mapping[str, type[Any]] = {
        "nearest": ClassDistance,
        "directions": Direction,
        "features": FeatureContribution,
    }
    lists = {
        name: [from_json(kind, part) for part in content.get(name, ())]
        for name, kind in parts.items()
    }
    novelty = content.get("novelty")
    novelty = math.nan if novelty is None else novelty
    return from_json(Explanation, {**empty, **content}, novelty=novelty, **lists)


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
        return Request(api.MODEL)

    @endpoint
    def classes(self) -> Request[ResultList[ClassRecord]]:
        """List the classes.

        Returns
        -------
        list of ClassRecord
            In the order of the labels.
        """
        return Request(api.CLASSES)

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
        options: dict[str, Any] = {"top": top, "reject": reject, "min_version": min_version}
        if kind_of(items) != "features":
            body = api.PredictRequest(**as_field(items), **options)
            return Request(api.PREDICT, **_sent(body))
        rows = np.ascontiguousarray(rows_of(items), "<f4")
        return Request(
            api.PREDICT,
            params={name: value for name, value in options.items() if value is not None},
            headers={"Content-Type": "application/octet-stream"},
            content=rows.tobytes(),
            shape=rows.shape,
        )

    @endpoint
    def explain(
        self, items: Any, *, top: int = 3, label: Label | None = None
    ) -> Request[ResultList[Explanation]]:
        """Explain the predictions of a few items.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features, as for `predict`; at most 16.
        top : int, default=3
            Number of nearest classes to describe.
        label : str, int or bool, optional
            Class whose distance is decomposed; the nearest by default.

        Returns
        -------
        list of Explanation
            One per item.
        """
        explain = None if label is None else str(_plain(label))
        body = api.ExplainRequest(**as_field(items), top=top, explain=explain)
        return Request(api.EXPLAIN, **_sent(body))

    @endpoint
    def discover(self, items: Any, *, reject: float = 0.2, min_size: int = 2) -> Request[Discovery]:
        """Group items that fit no class into candidates for new classes.

        Parameters
        ----------
        items : sequence
            Images, texts or rows of features, as for `predict`.
        reject : float, default=0.2
            Share of items of known classes that may be taken for unknown ones before they are
            grouped.
        min_size : int, default=2
            Number of items of the smallest group.

        Returns
        -------
        Discovery
            Groups of positions of the items.
        """
        body = api.DiscoverRequest(**as_field(items), reject=reject, min_size=min_size)
        return Request(api.DISCOVER, **_sent(body))

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
        sent = _labeled(items, labels, note)
        sent["headers"]["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex
        return Request(api.TEACH, **sent)

    @endpoint
    def forget(self, label: Label, *, purge: bool = False) -> Request[ChangeResult]:
        """Remove a class.

        Parameters
        ----------
        label : str, int or bool
            The class.
        purge : bool, default=False
            Also remove it from the history, so that it cannot be restored by `undo`.

        Returns
        -------
        ChangeResult
            The step, and the version of the model.
        """
        params = {"purge": "true"} if purge else {}
        return Request(api.FORGET, _class_path(label), params, is_idempotent=False)

    @endpoint
    def rename(self, label: Label, new: Label) -> Request[ChangeResult]:
        """Give a class another label.

        Parameters
        ----------
        label : str, int or bool
            The class.
        new : str, int or bool
            A label that no other class has.

        Returns
        -------
        ChangeResult
            The step, and the version of the model.
        """
        body = _sent(api.RenameRequest(label=_plain(new)))
        return Request(api.RENAME, _class_path(label), **body, is_idempotent=False)

    @endpoint
    def join(self, labels: Iterable[Label], new: Label) -> Request[ChangeResult]:
        """Combine classes into one, as if their samples had been learned with one label.

        Parameters
        ----------
        labels : iterable of str, int or bool
            The classes, two or more; one of them may be ``new``.
        new : str, int or bool
            The label of the joined class.

        Returns
        -------
        ChangeResult
            The step, and the version of the model.
        """
        body = api.JoinRequest(labels=[_plain(label) for label in labels], label=_plain(new))
        return Request(api.JOIN, **_sent(body), is_idempotent=False)

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
        return Request(api.UNDO, **_sent(api.UndoRequest(steps=steps)), is_idempotent=False)

    @endpoint
    def history(self) -> Request[ResultList[Step]]:
        """List the steps of the history.

        Returns
        -------
        list of Step
            The last step first.
        """
        return Request(api.HISTORY)

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
        return Request(api.EVALUATE, **_labeled(items, labels))

    @endpoint
    def map(self) -> Request[ClassMap]:
        """Project the classes to two dimensions.

        Returns
        -------
        ClassMap
            A point and an ellipse per class.
        """
        return Request(api.MAP)

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
        return Request(api.FILE, file=Path(path))


def _class_path(label: Label) -> str:
    name = quote(str(label), safe="").replace(".", "%2E")  # a class may be called ".."
    return api.FORGET.path.format(label=name)


def _labeled(items: Any, labels: Label | Sequence[Label], note: str = "") -> dict[str, Any]:
    """Return the body and media type of items with their label or labels."""
    if isinstance(labels, (str, bytes, int)) or not hasattr(labels, "__len__"):
        fields: dict[str, Any] = {"label": _plain(labels)}
    else:
        fields = {"labels": [_plain(label) for label in labels]}
        if len(labels) != len(items):
            raise InputError(
                f"{counted(len(items), 'item')} but {counted(len(labels), 'label')}: give one "
                "label per item."
            )
    return _sent(api.LabeledRequest(**fields, **as_field(items), note=note))


def _plain(label: Any) -> Label:
    plain = label.item() if isinstance(label, np.generic) else label
    if not isinstance(plain, (str, int)):  # a bool is an int
        raise InputError(
            f"a label is a text, an integer or a boolean, not a {type(plain).__name__}. "
            "The items come first, then the labels."
        )
    return plain


def _sent(body: api.Request) -> dict[str, Any]:
    return {"content": api.encode(body), "headers": {"Content-Type": "application/json"}}
