"""`ItemEncoder`: encodes queued images or texts in one thread, within limits."""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.images import count_pixels
from fecam.encoders.encoder import Encoder
from fecam.errors import ItemError
from fecam.features.extraction import Encoded, encode_readable
from fecam.model import Model
from fecam.service.batches import Batcher
from fecam.service.problems import model_empty_error, timeout_error
from fecam.service.settings import Limits

ENCODE_BATCH = 32
"""Items per call of the encoder."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Items to encode until a deadline."""

    kind: str
    items: Sequence[Any]
    deadline: float


class ItemEncoder:
    """The encoder of a model, in a thread."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._loading = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-encoder")
        self.queue = Batcher[_Job, Encoded](
            "the encoder",
            self._encode,
            max_queue=limits.queue,
            max_batch=ENCODE_BATCH,
            seconds=limits.seconds,
        )

    def load(self) -> Encoder | None:
        """Return the encoder, loaded by one thread at a time; None if the model has none (yet)."""
        with self._loading:
            return self._model.encoder

    async def encode(self, kind: str, items: Sequence[Any]) -> Encoded:
        """Return the features of the readable items, and a message for each of the others."""
        job = _Job(kind, items, time.monotonic() + self._limits.seconds)
        return await self.queue.run(job, len(items))

    async def close(self) -> None:
        """Encode all accepted items."""
        await self.queue.close()
        await asyncio.to_thread(self._thread.shutdown)

    async def _encode(self, jobs: Sequence[_Job]) -> Sequence[Encoded | Exception]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode_jobs, jobs)

    def _encode_jobs(self, jobs: Sequence[_Job]) -> Sequence[Encoded | Exception]:
        encoder = self.load()
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
            rejected = oversized_images(batch, self._limits.max_pixels) if is_image else {}
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
    jobs: Sequence[_Job], features: NDArray[Any], rows: list[int], failed: dict[int, str]
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
