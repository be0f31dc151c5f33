"""`Engine`: serves predictions and changes of one model concurrently.

`fecam.service.prediction_pool` predicts queued rows in one product, on an immutable `ServedModel`.
One thread encodes items. One thread writes; a change is served once it is on disk. Another thread
polls the file for changes by other processes.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fecam.data.images import count_pixels
from fecam.encoders.catalogue import load as load_encoder
from fecam.encoders.encoder import Encoder
from fecam.errors import FecamError, InputError, ItemError, MissingPackageError
from fecam.features.extraction import Encoded, encode_readable
from fecam.model import LearnResult, Model, open_model
from fecam.model.model import USUAL_ENCODERS
from fecam.model_file import Step
from fecam.model_file.records import Label
from fecam.model_file.snapshot import Snapshot
from fecam.service.batches import Batcher
from fecam.service.copies import backup_copy
from fecam.service.logs import log
from fecam.service.maps import map_of
from fecam.service.prediction_pool import PredictionPool, predict_worker_count
from fecam.service.problems import Problem, model_empty_error, queue_full_error, timeout_error
from fecam.service.served_model import BLOCK_ROWS, Answer, EncodedAnswers, Query, ServedModel
from fecam.service.settings import ServiceSettings

T = TypeVar("T")

FOLLOW = 0.2
"""Seconds between two looks at what other processes wrote."""
PATIENCE = 2.0
"""Seconds to wait for a version that another process writes."""
AHEAD = 64
"""Batches that may be on their way to a prediction worker: it takes all that have come."""
ROOM = 4 * BLOCK_ROWS
"""Rows that may be on their way to it."""
MESSAGE = 64
"""Rows in one of those batches: small, so that it can take about as many as it wants."""
ENCODED_AT_ONCE = 32
"""Items in one batch of the encoder."""
EASY = 16
"""Rows of numbers are judged so fast that so many times more of them may wait."""


@dataclass(frozen=True, slots=True)
class _Raw:
    """Items to be encoded, as long as somebody waits for them."""

    kind: str
    items: Sequence[Any]
    until: float


class Engine:
    """Answers and lessons for one model, whose file may lie elsewhere than the settings say."""

    alone = False
    """Whether nothing but the service runs in this process, so that it may be set up for it."""

    def __init__(self, settings: ServiceSettings, path: Path | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.model: Model = open_model(
            path or settings.model, encoder=settings.encoder, device=settings.device
        )
        predict_workers = predict_worker_count(settings)
        share = settings.workers * max(predict_workers, 1)
        self._predictions = PredictionPool(
            self.model.path,
            self.model.snapshot,
            predict_workers=predict_workers,
            share=share,
            seconds=self.limits.seconds,
            search=settings.search,
        )
        self.trouble: Exception | None = None
        """Why the encoder cannot be had."""
        self._answers = Batcher[Query, EncodedAnswers](
            "answers",
            self._predictions.answer,
            most=EASY * self.limits.queue,
            size=MESSAGE if predict_workers else BLOCK_ROWS,
            seconds=self.limits.seconds,
            ahead=AHEAD * predict_workers or 2,
            room=ROOM * predict_workers or None,
        )
        self._encode = Batcher[_Raw, Encoded](
            "the encoder",
            self._encoded_apart,
            most=self.limits.queue,
            size=ENCODED_AT_ONCE,
            seconds=self.limits.seconds,
        )
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="fecam-writer")
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="fecam-encoder")
        self._lessons = 0
        self._loading = threading.Lock()
        self._follower = threading.Thread(target=self._follow, name="fecam-follower", daemon=True)
        self._map: tuple[Snapshot, dict[str, Any]] | None = None
        self._wake, self._closing = threading.Event(), False
        self._warmed = threading.Event()

    # ------------------------------------------------------------------ beginning and end

    async def start(self) -> None:
        """Begin; what takes long, as loading an encoder, goes on behind."""
        self._predictions.start()
        self._answers.start()
        self._encode.start()
        self._follower.start()
        threading.Thread(target=self._warm_up, name="fecam-warm-up", daemon=True).start()

    async def close(self) -> None:
        """Finish what was accepted, and let go of the file."""
        self._closing = True
        self._wake.set()
        await self._encode.close()
        await self._answers.close()
        await self._predictions.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.shutdown(wait=True)
        self._encoder.shutdown(wait=True)
        self._follower.join()
        self.model.close()

    @property
    def view(self) -> ServedModel:
        """What is known, and told; answers know as much, or more."""
        return self._predictions.view

    @property
    def ready(self) -> bool:
        """Whether answers come as fast as they will ever come."""
        return self._warmed.is_set() and self._predictions.settled and self.trouble is None

    @property
    def predict_workers(self) -> int:
        """How many processes judge now; 0: this one does."""
        return len(self._predictions)

    @property
    def waiting(self) -> dict[str, int]:
        """How many wait, and for what."""
        return {
            "judge": len(self._answers),
            "encode": len(self._encode),
            "write": self._lessons,
        }

    # ------------------------------------------------------------------ answering

    async def predict(
        self,
        rows: NDArray[np.float32],
        top: int = 1,
        reject: float | None = None,
    ) -> EncodedAnswers:
        """What the model makes of rows of features."""
        return await self._answers.submit(Query(rows, top, reject), len(rows))

    async def predict_items(
        self,
        kind: str,
        items: Sequence[Any],
        top: int = 1,
        reject: float | None = None,
    ) -> EncodedAnswers:
        """What the model makes of images or texts; of one that cannot be read, why."""
        found = await self.encoded(kind, items)
        answers: list[Answer] = [{"error": ""} for _ in items]
        for at, why in found.failed.items():
            answers[at] = {"error": why}
        if not found.rows:
            return EncodedAnswers.of(answers, self.view.version)
        judged = await self.predict(found.features, top, reject)
        for at, answer in zip(found.rows, judged.answers, strict=True):
            answers[at] = answer
        return EncodedAnswers.of(answers, judged.version)

    async def encoded(self, kind: str, items: Sequence[Any]) -> Encoded:
        """The features of images or texts that are to be judged."""
        self.check_kind(kind)
        until = time.monotonic() + self.limits.seconds
        return await self._encode.submit(_Raw(kind, items, until), len(items))

    def check_kind(self, kind: str) -> None:
        """Refuse items of another kind than the model takes."""
        if self.view.kind is None:
            raise model_empty_error()
        if kind != self.view.kind:
            raise InputError(
                f"this model takes {self.view.kind}; these are {kind}. GET /v1/model tells what a "
                "model takes."
            )

    async def reach(self, version: int) -> None:
        """Wait until the model has at least this version, whoever writes it."""
        begun = time.monotonic()
        while self.view.version < version:
            if time.monotonic() - begun > min(self.patience(version), self.limits.seconds):
                raise Problem(
                    409,
                    "version",
                    f"the model has version {self.view.version}, not {version}. Give a version "
                    "that an answer had.",
                )
            self._wake.set()
            await asyncio.sleep(0.01)

    def patience(self, version: int) -> float:
        """Seconds that a version is waited for."""
        return PATIENCE

    # ------------------------------------------------------------------ changing

    async def teach(
        self,
        kind: str,
        items: Any,
        labels: Sequence[Any],
        note: str = "",
        idempotency_key: str = "",
    ) -> tuple[LearnResult, int]:
        """Teach; when it returns, the lesson is on the disk and answers know of it."""

        def learn() -> LearnResult:
            if kind != "features":
                self._warmed.wait()  # what is being loaded is not loaded twice
                self._load()
            self.model.reload()
            named = self.labels(labels)
            if kind != "images":
                return self.model.learn(
                    items,
                    named,
                    note=note,
                    idempotency_key=idempotency_key,
                    strict=False,
                    kind=kind,
                )
            refused = too_large(items, self.limits.max_pixels)
            keep = [at for at in range(len(items)) if at not in refused]
            if not keep:
                return LearnResult(None, {}, {}, list(refused.values()), [], 0.0)
            lesson = self.model.learn(
                [items[at] for at in keep],
                [named[at] for at in keep],
                note=note,
                idempotency_key=idempotency_key,
                strict=False,
                kind=kind,
            )
            return replace(lesson, unreadable=[*refused.values(), *lesson.unreadable])

        return await self._write(learn)

    async def forget(self, label: str, *, purge: bool, note: str = "") -> tuple[Step, int]:
        """Remove a class."""

        def forget() -> Step:
            self.model.reload()
            if self.model.snapshot is None:
                raise model_empty_error()
            return self.model.forget(self.model.label_of(label), purge=purge, note=note)

        return await self._write(forget)

    async def undo(self, count: int) -> tuple[list[Step], int]:
        """Take back the last steps."""

        def undo() -> list[Step]:
            self.model.reload()
            if self.model.snapshot is None:
                raise Problem(409, "nothing_to_undo", "there is nothing left that can be undone.")
            return self.model.undo(count)

        return await self._write(undo)

    async def steps(self) -> list[Step]:
        """What happened to the model, the last step first."""
        return await asyncio.to_thread(lambda: self.model.steps)

    async def map(self) -> tuple[dict[str, Any], int]:
        """The classes in the plane; made once for each version."""
        view = self.view
        if view.snapshot is None:
            return {"points": [], "explained": None}, 0
        if self._map is None or self._map[0] is not view.snapshot:
            made = await asyncio.to_thread(map_of, view.snapshot.classifier)
            self._map = view.snapshot, made
        return self._map[1], view.version

    async def copy(self) -> Path:
        """A copy of the file, which whoever asked for it removes."""
        if self.view.snapshot is None:
            raise model_empty_error()
        return await asyncio.to_thread(backup_copy, self.model.path)

    def labels(self, labels: Sequence[Any]) -> list[Label]:
        """Labels as those that are known are: a person's text may name a number."""
        if not ServedModel(self.model.snapshot, None).numbered:
            return list(labels)
        try:
            return [int(label) for label in labels]
        except ValueError:
            raise InputError(
                "the classes of this model are whole numbers, so labels must be, too."
            ) from None

    async def _write(self, change: Callable[[], T]) -> tuple[T, int]:
        """Make a change when its turn comes; one that has begun is finished."""
        if self._closing or self._lessons >= self.limits.queue:
            raise queue_full_error("the writer")

        def run() -> tuple[T, int]:
            done = change()
            self.publish()
            return done, self.model.version

        self._lessons += 1
        try:
            future = self._writer.submit(run)
            waiting = asyncio.wrap_future(future)
            await asyncio.wait({waiting}, timeout=self.limits.seconds)
            if not waiting.done() and future.cancel():
                raise timeout_error("other lessons took too long; nothing was changed.")
            return await waiting
        finally:
            self._lessons -= 1

    # ------------------------------------------------------------------ threads

    def publish(self) -> None:
        """Let answers come from what the file holds now, once all is derived that they need."""
        self._predictions.publish(self.model.snapshot)

    def _follow(self) -> None:
        """Take over what other processes write."""
        while not self._closing:
            self._wake.wait(FOLLOW)
            self._wake.clear()
            if self._closing:
                break
            try:
                if self.model.reload() or self.model.snapshot is not self.view.snapshot:
                    self.publish()
            except (FecamError, OSError) as error:
                log.warning("cannot follow the file: %s", error)

    def _warm_up(self) -> None:
        """What the first request would else have to wait for."""
        try:
            self.publish()
            encoder = self._load()
            if encoder is None and self.view.kind is None:
                # Most begin with images; loaded once, the encoder is there in no time.
                name = self.settings.encoder or USUAL_ENCODERS["images"]
                encoder = load_encoder(name, device=self.settings.device)
            if encoder is not None:
                blank = np.zeros((32, 32, 3), np.uint8)
                encoder.encode(["" if encoder.kind == "texts" else blank])
        except MissingPackageError as error:
            if self.view.kind is not None:
                self.trouble = error
        except Exception as error:
            log.error("the encoder cannot be loaded: %s", error)
            self.trouble = error
        finally:
            if self.alone:
                gc.collect()
                gc.freeze()
            self._warmed.set()

    def _load(self) -> Encoder | None:
        """The encoder, loaded by one thread only; None if the model has none, or none yet."""
        with self._loading:
            return self.model.encoder

    async def _encoded_apart(self, jobs: Sequence[_Raw]) -> Sequence[Encoded | Exception]:
        """By the one thread that encodes what is to be judged."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoder, self._encoded, jobs)

    def _encoded(self, jobs: Sequence[_Raw]) -> Sequence[Encoded | Exception]:
        encoder = self._load()
        if encoder is None or any(job.kind != encoder.kind for job in jobs):
            return [model_empty_error()] * len(jobs)  # the file was replaced
        items = [item for job in jobs for item in job.items]
        until = max(job.until for job in jobs)
        features, failed = list[NDArray[Any]](), dict[int, str]()
        rows: list[int] = []
        for start in range(0, len(items), ENCODED_AT_ONCE):
            if time.monotonic() > until:
                raise timeout_error("encoding takes too long.")
            some = items[start : start + ENCODED_AT_ONCE]
            refused = too_large(some, self.limits.max_pixels) if encoder.kind == "images" else {}
            keep = [at for at in range(len(some)) if at not in refused]
            found = encode_readable([some[at] for at in keep], encoder)
            features.append(found.features)
            rows += [start + keep[at] for at in found.rows]
            failed |= {start + at: why for at, why in refused.items()}
            failed |= {start + keep[at]: why for at, why in found.failed.items()}
        return _apart(jobs, np.concatenate(features), rows, failed)


def too_large(images: Sequence[bytes], most: int) -> dict[int, str]:
    """By their places the images that are not to be decoded, and why."""
    refused: dict[int, str] = {}
    for at, content in enumerate(images):
        try:
            pixels = count_pixels(content)
        except ItemError as error:
            refused[at] = str(error)
            continue
        if pixels > most:
            refused[at] = f"{pixels:,} pixels are more than the {most:,} that are taken here"
    return refused


def _apart(
    jobs: Sequence[_Raw], features: NDArray[Any], rows: list[int], failed: dict[int, str]
) -> list[Encoded | Exception]:
    """What belongs to each job."""
    outcomes, start = list[Encoded | Exception](), 0
    places = np.asarray(rows)
    for job in jobs:
        end = start + len(job.items)
        mine = (places >= start) & (places < end)
        outcomes.append(
            Encoded(
                features[mine],
                (places[mine] - start).tolist(),
                {at - start: why for at, why in failed.items() if start <= at < end},
            )
        )
        start = end
    return outcomes
