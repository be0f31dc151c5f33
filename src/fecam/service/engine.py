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
from fecam.labels import parse_label
from fecam.model import LearnResult, Model
from fecam.model.model import DEFAULT_ENCODERS
from fecam.model_file.snapshot import Snapshot
from fecam.results import Label, Step
from fecam.service.batches import Batcher
from fecam.service.copies import backup_copy
from fecam.service.logs import log
from fecam.service.maps import class_map
from fecam.service.prediction_pool import PredictionPool, predict_worker_count
from fecam.service.problems import (
    Problem,
    model_empty_error,
    nothing_to_undo_error,
    queue_full_error,
    timeout_error,
)
from fecam.service.served_model import BLOCK_ROWS, Answer, EncodedAnswers, Query, ServedModel
from fecam.service.settings import ServiceSettings

T = TypeVar("T")

POLL_S = 0.2
"""Seconds between two checks of the file for changes by other processes."""
VERSION_WAIT_S = 2.0
"""Seconds to wait for a version that another process writes."""
MAX_INFLIGHT_BATCHES = 64
"""Batches sent to a prediction worker and not answered: a worker takes all that have arrived."""
MAX_INFLIGHT_ROWS = 4 * BLOCK_ROWS
"""Rows sent to a prediction worker and not answered."""
BATCH_ROWS = 64
"""Rows per batch: small, so that a worker can choose the size of its products."""
ENCODE_BATCH = 32
"""Items per call of the encoder."""
FEATURE_QUEUE_FACTOR = 16
"""Queries of features that may be queued per queued encoding: they are that much faster."""


@dataclass(frozen=True, slots=True)
class _EncodeJob:
    """Items to encode until a deadline."""

    kind: str
    items: Sequence[Any]
    deadline: float


class Engine:
    """Predictions and changes of one model; ``path`` overrides the file of the settings."""

    owns_process = False
    """Whether the process runs nothing but the service, so that the engine may freeze the GC."""

    def __init__(self, settings: ServiceSettings, path: Path | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.model = Model(path or settings.model, encoder=settings.encoder, device=settings.device)
        n_workers = predict_worker_count(settings)
        self._pool = PredictionPool(
            self.model.path,
            self.model.snapshot,
            n_workers=n_workers,
            n_processes=settings.workers * max(n_workers, 1),
            seconds=self.limits.seconds,
            search=settings.search,
        )
        self.encoder_error: Exception | None = None
        """Why the encoder cannot be loaded."""
        self._predict_queue = Batcher[Query, EncodedAnswers](
            "answers",
            self._pool.predict,
            max_queue=FEATURE_QUEUE_FACTOR * self.limits.queue,
            max_batch=BATCH_ROWS if n_workers else BLOCK_ROWS,
            seconds=self.limits.seconds,
            max_inflight_batches=MAX_INFLIGHT_BATCHES * n_workers or 2,
            max_inflight_items=MAX_INFLIGHT_ROWS * n_workers or None,
        )
        self._encode_queue = Batcher[_EncodeJob, Encoded](
            "the encoder",
            self._encode,
            max_queue=self.limits.queue,
            max_batch=ENCODE_BATCH,
            seconds=self.limits.seconds,
        )
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-writer")
        self._encode_thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-encoder")
        self._n_writes = 0
        self._loading = threading.Lock()
        self._follower = threading.Thread(target=self._follow, name="fecam-follower", daemon=True)
        self._map: tuple[Snapshot, dict[str, Any]] | None = None
        self._poll_now, self._closing = threading.Event(), False
        self._warmed_up = threading.Event()

    async def start(self) -> None:
        """Start; slow parts such as loading an encoder continue in the background."""
        self._pool.start()
        self._predict_queue.start()
        self._encode_queue.start()
        self._follower.start()
        threading.Thread(target=self._warm_up, name="fecam-warm-up", daemon=True).start()

    async def close(self) -> None:
        """Finish the accepted requests and close the file."""
        self._closing = True
        self._poll_now.set()
        await self._encode_queue.close()
        await self._predict_queue.close()
        await self._pool.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._write_thread.shutdown(wait=True)
        self._encode_thread.shutdown(wait=True)
        self._follower.join()
        self.model.close()

    @property
    def served(self) -> ServedModel:
        """The published model; predictions use this version or a later one."""
        return self._pool.served

    @property
    def ready(self) -> bool:
        """Whether start-up is complete and the encoder works."""
        return self._warmed_up.is_set() and self._pool.startup_done and self.encoder_error is None

    @property
    def predict_workers(self) -> int:
        """Number of running prediction workers."""
        return len(self._pool)

    @property
    def queue_lengths(self) -> dict[str, int]:
        """Number of waiting requests per queue."""
        return {
            "predict": len(self._predict_queue),
            "encode": len(self._encode_queue),
            "write": self._n_writes,
        }

    async def predict(
        self, rows: NDArray[np.float32], top: int = 1, reject: float | None = None
    ) -> EncodedAnswers:
        """Return the answers for rows of features."""
        return await self._predict_queue.submit(Query(rows, top, reject), len(rows))

    async def predict_items(
        self, kind: str, items: Sequence[Any], top: int = 1, reject: float | None = None
    ) -> EncodedAnswers:
        """Return the answers for images or texts; an unreadable item has an error."""
        self.check_kind(kind)
        job = _EncodeJob(kind, items, time.monotonic() + self.limits.seconds)
        encoded = await self._encode_queue.submit(job, len(items))
        answers: list[Answer] = [{"error": ""} for _ in items]
        for i, message in encoded.failed.items():
            answers[i] = {"error": message}
        if not encoded.rows:
            return EncodedAnswers.encode(answers, self.served.version)
        predicted = await self.predict(encoded.features, top, reject)
        for i, answer in zip(encoded.rows, predicted.answers, strict=True):
            answers[i] = answer
        return EncodedAnswers.encode(answers, predicted.version)

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
    ) -> tuple[LearnResult, int]:
        """Learn labeled items; on return the change is on disk and served."""

        def learn() -> LearnResult:
            if kind != "features":
                self._warmed_up.wait()  # so that the encoder is not loaded twice
                self._load()
            self.model.reload()
            parsed = self.parse_labels(labels)
            options: dict[str, Any] = {"note": note, "strict": False, "kind": kind}
            options["idempotency_key"] = idempotency_key
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

    async def forget(self, label: str, *, purge: bool, note: str = "") -> tuple[Step, int]:
        """Remove a class."""

        def forget() -> Step:
            self.model.reload()
            if self.model.snapshot is None:
                raise model_empty_error()
            return self.model.forget(self.model.label_of(label), purge=purge, note=note)

        return await self._write(forget)

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
        self._pool.publish(self.model.snapshot)

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
            encoder = self._load()
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

    def _load(self) -> Encoder | None:
        """Return the encoder, loaded by one thread at a time; None if the model has none (yet)."""
        with self._loading:
            return self.model.encoder

    async def _encode(self, jobs: Sequence[_EncodeJob]) -> Sequence[Encoded | Exception]:
        """Encode in the encoder thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encode_thread, self._encode_jobs, jobs)

    def _encode_jobs(self, jobs: Sequence[_EncodeJob]) -> Sequence[Encoded | Exception]:
        encoder = self._load()
        if encoder is None or any(job.kind != encoder.kind for job in jobs):
            return [model_empty_error()] * len(jobs)  # the file was replaced
        items = [item for job in jobs for item in job.items]
        deadline = max(job.deadline for job in jobs)
        features, failed = list[NDArray[Any]](), dict[int, str]()
        rows: list[int] = []
        for start in range(0, len(items), ENCODE_BATCH):
            if time.monotonic() > deadline:
                raise timeout_error("encoding takes too long.")
            batch = items[start : start + ENCODE_BATCH]
            is_image = encoder.kind == "images"
            rejected = oversized_images(batch, self.limits.max_pixels) if is_image else {}
            keep = [i for i in range(len(batch)) if i not in rejected]
            encoded = encode_readable([batch[i] for i in keep], encoder)
            features.append(encoded.features)
            rows += [start + keep[i] for i in encoded.rows]
            failed |= {start + i: message for i, message in rejected.items()}
            failed |= {start + keep[i]: message for i, message in encoded.failed.items()}
        return _split_by_job(jobs, np.concatenate(features), rows, failed)


def oversized_images(images: Sequence[bytes], max_pixels: int) -> dict[int, str]:
    """Return a message per index of an image that must not be decoded."""
    messages: dict[int, str] = {}
    for i, content in enumerate(images):
        try:
            pixels = count_pixels(content)
        except ItemError as error:
            messages[i] = str(error)
            continue
        if pixels > max_pixels:
            messages[i] = f"{pixels:,} pixels exceed the limit of {max_pixels:,}"
    return messages


def _split_by_job(
    jobs: Sequence[_EncodeJob], features: NDArray[Any], rows: list[int], failed: dict[int, str]
) -> list[Encoded | Exception]:
    """Return the features and failures of each job."""
    outcomes, start = list[Encoded | Exception](), 0
    indices = np.asarray(rows)
    for job in jobs:
        end = start + len(job.items)
        mask = (indices >= start) & (indices < end)
        outcomes.append(
            Encoded(
                features[mask],
                (indices[mask] - start).tolist(),
                {i - start: message for i, message in failed.items() if start <= i < end},
            )
        )
        start = end
    return outcomes
