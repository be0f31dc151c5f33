"""`Engine`: serves predictions and changes of one model concurrently.

`Predictor` and `ItemEncoder` answer queries. One thread writes; a change is served once it is on
disk. Another thread polls the file for changes by other processes.
"""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fecam.encoders.catalogue import load as load_encoder
from fecam.errors import FecamError, InputError, MissingPackageError
from fecam.features.extraction import Encoded
from fecam.labels import parse_label
from fecam.model import LearnResult, Model
from fecam.model.readable import DEFAULT_ENCODERS
from fecam.model_file.snapshot import Snapshot
from fecam.results import Label, Step
from fecam.service.analysis import AnalysisThread
from fecam.service.copies import backup_copy
from fecam.service.encoding import ItemEncoder, oversized_images
from fecam.service.logs import log
from fecam.service.maps import class_map
from fecam.service.predictions import Predictor
from fecam.service.problems import (
    Problem,
    model_empty_error,
    nothing_to_undo_error,
    queue_full_error,
    timeout_error,
)
from fecam.service.served_model import Answer, EncodedAnswers, ServedModel
from fecam.service.settings import ServiceSettings

T = TypeVar("T")

POLL_S = 0.2
"""Seconds between two checks of the file for changes by other processes."""
VERSION_WAIT_S = 2.0
"""Seconds to wait for a version that another process writes."""


class Engine:
    """Predictions and changes of one model; ``path`` overrides the file of the settings."""

    owns_process = False
    """Whether the process runs nothing but the service, so that the engine may freeze the GC."""

    def __init__(self, settings: ServiceSettings, path: Path | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.model = Model(path or settings.model, encoder=settings.encoder, device=settings.device)
        self._predictor = Predictor(self.model.snapshot, self.limits, settings.search)
        self._encoder = ItemEncoder(self.model, self.limits)
        self.analysis = AnalysisThread(self.limits)
        self.encoder_error: Exception | None = None
        """Why the encoder cannot be loaded."""
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-writer")
        self._n_writes = 0
        self._follower = threading.Thread(target=self._follow, name="fecam-follower", daemon=True)
        self._map: tuple[Snapshot, dict[str, Any]] | None = None
        self._poll_now, self._closing = threading.Event(), False
        self._warmed_up, self._publishing = threading.Event(), threading.Lock()

    async def start(self) -> None:
        """Start; slow parts such as loading an encoder continue in the background."""
        self._follower.start()
        threading.Thread(target=self._warm_up, name="fecam-warm-up", daemon=True).start()

    async def close(self) -> None:
        """Finish the accepted requests and close the file."""
        self._closing = True
        self._poll_now.set()
        await self._encoder.close()
        await self._predictor.close()
        await self.analysis.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._write_thread.shutdown(wait=True)
        self._follower.join()
        self.model.close()

    @property
    def served(self) -> ServedModel:
        """The published model; predictions use this version or a later one."""
        return self._predictor.served

    @property
    def ready(self) -> bool:
        """Whether start-up is complete and the encoder works."""
        return self._warmed_up.is_set() and self.encoder_error is None

    @property
    def queue_lengths(self) -> dict[str, int]:
        """Number of waiting requests per queue."""
        return {
            "predict": len(self._predictor.queue),
            "encode": len(self._encoder.queue),
            "write": self._n_writes,
        }

    async def predict(
        self, kind: str, items: Any, top: int = 1, reject: float | None = None
    ) -> EncodedAnswers:
        """Return the answers for items; an unreadable item has an error."""
        if kind == "features":
            self.check_kind(kind)
            return await self._predictor.predict(items, top, reject)
        encoded = await self.encode(kind, items)
        answers: list[Answer] = [{"error": ""} for _ in items]
        for i, message in encoded.failed.items():
            answers[i] = {"error": message}
        if not encoded.rows:
            return EncodedAnswers.encode(answers, self.served.version)
        predicted = await self._predictor.predict(encoded.features, top, reject)
        for i, answer in zip(encoded.rows, predicted.answers, strict=True):
            answers[i] = answer
        return predicted._replace(json=EncodedAnswers.encode(answers, predicted.version).json)

    async def encode(self, kind: str, items: Any) -> Encoded:
        """Return the features of the readable items, and a message for each of the others."""
        self.check_kind(kind)
        if kind == "features":
            return Encoded(items, [*range(len(items))], {})
        return await self._encoder.encode(kind, items)

    def check_kind(self, kind: str) -> None:
        """Raise if the model takes another kind of items."""
        if self.served.kind is None:
            raise model_empty_error()
        if kind != self.served.kind:
            raise InputError(
                f"the model takes {self.served.kind}, not {kind}. GET /v1/model returns the kind."
            )

    async def wait_for_version(self, version: int) -> None:
        """Wait until the model has at least this version."""
        start = time.monotonic()
        while self.served.version < version:
            if time.monotonic() - start > min(self.version_timeout(version), self.limits.seconds):
                raise Problem(
                    409,
                    "version",
                    f"the model has version {self.served.version}, not {version}. Use the version "
                    "of an earlier response.",
                )
            self._poll_now.set()
            await asyncio.sleep(0.01)

    def version_timeout(self, version: int) -> float:
        """Return the seconds to wait for a version."""
        return VERSION_WAIT_S

    async def learn(
        self,
        kind: str,
        items: Any,
        labels: Sequence[Any],
        note: str = "",
        idempotency_key: str = "",
        author: str = "",
    ) -> tuple[LearnResult, int]:
        """Learn labeled items; on return the change is on disk and served."""

        def learn() -> LearnResult:
            if kind != "features":
                self._warmed_up.wait()  # so that the encoder is not loaded twice
                self._encoder.load()
            self.model.reload()
            parsed = self.parse_labels(labels)
            options: dict[str, Any] = {"note": note, "strict": False, "kind": kind}
            options |= {"idempotency_key": idempotency_key, "author": author}
            if kind != "images":
                return self.model.learn(items, parsed, **options)
            rejected = oversized_images(items, self.limits.max_pixels)
            keep = [i for i in range(len(items)) if i not in rejected]
            if not keep:
                return LearnResult(None, {}, {}, list(rejected.values()), [])
            result = self.model.learn(
                [items[i] for i in keep], [parsed[i] for i in keep], **options
            )
            return replace(result, unreadable=[*rejected.values(), *result.unreadable])

        return await self._write(learn)

    async def forget(self, label: str, *, purge: bool, author: str = "") -> tuple[Step, int]:
        """Remove a class."""
        return await self._change(
            lambda model: model.forget(model.label_of(label), purge=purge, author=author)
        )

    async def rename(self, label: str, new: Label, author: str = "") -> tuple[Step, int]:
        """Give a class another label."""
        return await self._change(
            lambda model: model.rename(
                model.label_of(label), self.parse_labels([new])[0], author=author
            )
        )

    async def join(self, labels: Sequence[Label], new: Label, author: str = "") -> tuple[Step, int]:
        """Combine classes into one."""
        return await self._change(
            lambda model: model.join(
                [model.label_of(str(label)) for label in labels],
                self.parse_labels([new])[0],
                author=author,
            )
        )

    async def _change(self, change: Callable[[Model], Step]) -> tuple[Step, int]:
        def run() -> Step:
            self.model.reload()
            if self.model.snapshot is None:
                raise model_empty_error()
            return change(self.model)

        return await self._write(run)

    async def undo(self, count: int) -> tuple[list[Step], int]:
        """Undo the last steps."""

        def undo() -> list[Step]:
            self.model.reload()
            if self.model.snapshot is None:
                raise nothing_to_undo_error()
            return self.model.undo(count)

        return await self._write(undo)

    async def steps(self) -> list[Step]:
        """Return the steps, the last one first."""
        return await asyncio.to_thread(lambda: self.model.steps)

    async def map(self) -> tuple[dict[str, Any], int]:
        """Return the map of the classes and its version; computed once per version."""
        served = self.served
        if served.snapshot is None:
            return {"points": [], "explained": None}, 0
        if self._map is None or self._map[0] is not served.snapshot:
            points = await asyncio.to_thread(class_map, served.snapshot.classifier)
            self._map = served.snapshot, points
        return self._map[1], served.version

    async def copy(self) -> Path:
        """Return the path of a copy of the file; the caller removes it."""
        if self.served.snapshot is None:
            raise model_empty_error()
        return await asyncio.to_thread(backup_copy, self.model.path)

    def parse_labels(self, labels: Sequence[Any]) -> list[Label]:
        """Return texts as labels of the kind of the model's: a form sends texts."""
        kind = ServedModel(self.model.snapshot, None).label_kind
        return [parse_label(label, kind, "this model") for label in labels]

    async def _write(self, change: Callable[[], T]) -> tuple[T, int]:
        """Run a change in the writer thread; once started, it is finished."""
        if self._closing or self._n_writes >= self.limits.queue:
            raise queue_full_error("the writer")

        def run() -> tuple[T, int]:
            result = change()
            self.publish()
            return result, self.model.version

        self._n_writes += 1
        try:
            future = self._write_thread.submit(run)
            task = asyncio.wrap_future(future)
            await asyncio.wait({task}, timeout=self.limits.seconds)
            if not task.done() and future.cancel():
                raise timeout_error("other changes took too long; nothing was changed.")
            return await task
        finally:
            self._n_writes -= 1

    def publish(self) -> None:
        """Serve the current content of the file, after all factors have been computed."""
        with self._publishing:  # so that no older snapshot follows a newer one
            self._predictor.publish(self.model.snapshot)

    def _follow(self) -> None:
        """Publish changes that other processes write."""
        while not self._closing:
            self._poll_now.wait(POLL_S)
            self._poll_now.clear()
            if self._closing:
                break
            try:
                if self.model.reload() or self.model.snapshot is not self.served.snapshot:
                    self.publish()
            except (FecamError, OSError) as error:
                log.warning("cannot follow the file: %s", error)

    def _warm_up(self) -> None:
        """Load the encoder and compute the factors before the first request."""
        try:
            self.publish()
            encoder = self._encoder.load()
            if encoder is None and self.served.kind is None:
                # Most models start with images; the second load of an encoder is fast.
                name = self.settings.encoder or DEFAULT_ENCODERS["images"]
                encoder = load_encoder(name, device=self.settings.device)
            if encoder is not None:
                blank = np.zeros((32, 32, 3), np.uint8)
                encoder.encode(["" if encoder.kind == "texts" else blank])
        except MissingPackageError as error:
            if self.served.kind is not None:
                self.encoder_error = error
        except Exception as error:
            log.error("the encoder cannot be loaded: %s", error)
            self.encoder_error = error
        finally:
            if self.owns_process:
                # A full collection traversed all modules: a sixth of the time under load.
                gc.collect()
                gc.freeze()
            self._warmed_up.set()
