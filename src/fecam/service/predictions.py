"""`Predictor`: predicts queued rows in one product, in a thread, on an immutable `ServedModel`."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fecam.model_file.snapshot import Snapshot
from fecam.service.batches import Batcher
from fecam.service.served_model import (
    BLOCK_ROWS,
    EncodedAnswers,
    Query,
    ServedModel,
    predict_batch,
)
from fecam.service.settings import Limits

FEATURE_QUEUE_FACTOR = 16
"""Queries of features that may be queued per queued encoding: they are that much faster."""
MAX_INFLIGHT = 2
"""Batches given to the thread: while one is computed, the responses to the last are written."""


class Predictor:
    """Answers queries with the published model, ``served``."""

    def __init__(self, snapshot: Snapshot | None, limits: Limits, search: str | None) -> None:
        self._search = search
        self.served = ServedModel.from_snapshot(snapshot, search)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fecam-predict")
        self.queue = Batcher[Query, EncodedAnswers](
            "answers",
            self._predict,
            max_queue=FEATURE_QUEUE_FACTOR * limits.queue,
            max_batch=BLOCK_ROWS,
            seconds=limits.seconds,
            max_inflight=MAX_INFLIGHT,
        )

    async def predict(
        self, rows: NDArray[np.float32], top: int, reject: float | None
    ) -> EncodedAnswers:
        """Return the answers for rows of features."""
        return await self.queue.run(Query(rows, top, reject), len(rows))

    def publish(self, snapshot: Snapshot | None) -> None:
        """Serve a snapshot, after all factors have been computed; for any thread."""
        if snapshot is not None and snapshot.classifier.state_.classes:
            snapshot.classifier.warm_up()
        self.served = ServedModel.from_snapshot(snapshot, self._search)

    async def close(self) -> None:
        """Answer all accepted queries."""
        await self.queue.close()
        await asyncio.to_thread(self._thread.shutdown)

    async def _predict(self, queries: Sequence[Query]) -> Sequence[EncodedAnswers | Exception]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, predict_batch, self.served, queries)
