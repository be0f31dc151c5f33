"""Learning from a data set of Ray: the same model as on one machine, up to rounding."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.distributed.cluster import iter_blocks, map_blocks, require_ray, row_count, to_table
from fecam.distributed.partial_statistics import Partials, partial_statistics
from fecam.distributed.reading import ProgressReporter, ReadStats, Source, read_block
from fecam.distributed.schema_probe import SchemaProbe, from_schema, no_items_error, probe
from fecam.distributed.tree_reduce import MAX_PARTITIONS, tree_reduce
from fecam.encoders.encoder import Encoder
from fecam.errors import ClusterError, EncoderError, FecamError, InputError
from fecam.features.extraction import Report
from fecam.model.changes import add_hashes
from fecam.model_file import EncoderRecord
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.writing import WorkingCopy

MAX_ATTEMPTS = 3
"""Runs of which results are lost with a node, where Ray cannot recompute them alone."""


@dataclass(frozen=True)
class LearnSummary:
    """Result of `learn`.

    Parameters
    ----------
    classifier : FeCAMClassifier
        The classifier after learning.
    n_learned : mapping of label to int
        Number of learned items per class.
    n_duplicates : int
        Number of items that were left out because the file had learned them before.
    unreadable : int
        Number of items that could not be read.
    reasons : sequence of str
        Why, for the first of them.
    seconds : float
        Duration of the run.
    """

    classifier: FeCAMClassifier
    n_learned: Mapping[Hashable, int]
    n_duplicates: int
    unreadable: int
    reasons: Sequence[str]
    seconds: float


def learn(
    dataset: Any,
    *,
    encoder: str | Encoder | None = None,
    classifier: FeCAMClassifier | None = None,
    label: str = "label",
    item: str | Sequence[str] | None = None,
    into: str | os.PathLike[str] | None = None,
    concurrency: int | None = None,
    gpus: float = 0,
    total: int | None = None,
    report: Report | None = None,
    allow_duplicates: bool = False,
    note: str = "",
) -> LearnSummary:
    """Learn a data set on its cluster as one training batch.

    The worker that reads a block computes the statistics of its classes; a tree of tasks merges
    them. Up to 32 rows per class are sent to the driver, which calibrates novelty with them and
    then drops them; all other samples stay where they are read.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A column of labels and one of items: images (bytes, arrays, paths that every machine can
        read), texts, or embeddings (lists, arrays, or one column per feature).
    encoder : str or Encoder, optional
        A name, which each worker loads, or an encoder, which is sent to them. None for embeddings.
    classifier : FeCAMClassifier, optional
        Settings, and earlier classes; it is not changed. ``tukey="auto"`` inspects the first 64
        rows. A classifier with default settings if not given.
    label, item : str, optional
        The columns. Items are found by their usual names if not given.
    into : path, optional
        A ``.fecam`` file to write in one step. An existing file learns the items that it has not
        learned before.
    concurrency : int, optional
        Number of workers that encode, or tasks that read; as many as fit if not given.
    gpus : float
        GPUs per worker.
    total : int, optional
        Number of items, for ``report``; asked of Ray if not given, which has it of data in memory.
    report : callable, optional
        Is called with a `fecam.features.Progress`; its total is 0 while it is not known.
    allow_duplicates : bool
        Also learn items that ``into`` has learned before.
    note : str
        Is kept in the file with the step.

    Returns
    -------
    LearnSummary
        The classifier, and counts of items.

    Raises
    ------
    InputError
        If the data set, or its features, do not fit.
    EncoderError
        If a file is written, and the encoder has no fingerprint.
    ClusterError
        If results are lost with machines three times. Nothing is changed.

    Examples
    --------
    >>> import ray  # doctest: +SKIP
    >>> rows = ray.data.read_parquet("s3://bucket/embeddings/")  # doctest: +SKIP
    >>> learn(rows, into="birds.fecam").n_learned  # doctest: +SKIP
    {'robin': 120, 'wren': 87}
    """
    start = time.monotonic()
    ray = require_ray()
    before = _Before.read(into, classifier, encoder)
    source = Source(before.encoder, label, item)
    schema = None if before.needs_values else from_schema(dataset, source)
    schema = schema or probe(dataset, source, gpus)
    before.check(schema)
    hashes = {} if allow_duplicates and before.path else before.hashes
    state = before.initial_state(schema)
    reporter = ProgressReporter(report, total or row_count(dataset))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            worker = (source, state, ray.put(hashes))
            results, stats = _reduce(dataset, worker, concurrency, gpus, reporter)
            batch = _fetch(results)
            if not batch and not stats.n_duplicates:
                raise no_items_error(stats.reasons)
            learned = _write(before, batch, schema.record, note)
            break
        except ray.exceptions.ObjectLostError as error:
            if attempt == MAX_ATTEMPTS:
                raise ClusterError(
                    f"the cluster has lost results {MAX_ATTEMPTS} times, as machines ended during "
                    "the run. Nothing was changed. Run it again, on machines that stay"
                ) from error
    return LearnSummary(
        learned,
        {name: partial.statistics.count for name, partial in batch.items()},
        stats.n_duplicates,
        stats.unreadable,
        stats.reasons,
        time.monotonic() - start,
    )


@dataclass(frozen=True)
class _Before:
    """The classifier before the run, and the file that holds it."""

    classifier: FeCAMClassifier
    encoder: str | Encoder | None
    record: EncoderRecord | None
    hashes: Mapping[Any, bytes] | None
    """Content hashes per class; None without a file, which would keep them."""
    path: Path | None

    @classmethod
    def read(
        cls,
        into: str | os.PathLike[str] | None,
        classifier: FeCAMClassifier | None,
        encoder: str | Encoder | None,
    ) -> _Before:
        path = None if into is None else Path(os.path.realpath(into))
        if path is None or not path.exists():
            copied = (classifier or FeCAMClassifier()).copy()
            return cls(copied, encoder, None, None if path is None else {}, path)
        if classifier is not None:
            raise InputError(f"{path} has its own classifier. Leave classifier out.")
        with ModelFile(path) as file:
            snapshot = file.snapshot
        hashes = {label: row.provenance.content_hashes for label, row in snapshot.rows.items()}
        if encoder is None and snapshot.encoder is not None:
            encoder = snapshot.encoder.name
        return cls(snapshot.classifier.copy(), encoder, snapshot.encoder, hashes, path)

    @property
    def state(self) -> ClassifierState | None:
        """The state of the classifier; None before its first batch."""
        return getattr(self.classifier, "state_", None)

    @property
    def needs_values(self) -> bool:
        """Whether the values of the first rows decide how all rows are transformed."""
        return self.state is None and self.classifier.tukey == "auto"

    def check(self, schema: SchemaProbe) -> None:
        """Reject features of another encoder, or of another width, than those before."""
        old, new = self.record, schema.record
        if self.path is not None and self.encoder is not None and new is None:
            raise EncoderError(
                "the encoder has no fingerprint, so a file could not check later that it is used "
                "with the same one. Give it one: wrap(..., fingerprint='my-net-1')."
            )
        if old is not None and (new is None or old.fingerprint != new.fingerprint):
            other = "no encoder" if new is None else new.name
            raise InputError(
                f"{self.path} was learned with the encoder {old.name}; {other} gives other "
                "features. Use the same encoder, or another file."
            )
        if self.state is not None and self.state.n_features_in != schema.width:
            raise InputError(
                f"a row has {schema.width} features, but the model has {self.state.n_features_in}. "
                "Use the same encoder, or another model."
            )

    def initial_state(self, schema: SchemaProbe) -> ClassifierState:
        """Return the state without classes; a new classifier starts from it."""
        dtype = self.classifier.dtype
        if self.state is None:
            row = np.full((1, schema.width), schema.minimum, dtype)
            self.classifier.set_state(self.classifier.empty_state(row))
        state = self.classifier.state_
        return replace(state, like=np.zeros(0, dtype), classes={}, tasks={})


class _LearnWorker:
    """Computes the statistics of the classes in a block."""

    def __init__(self, source: Source, state: ClassifierState, hashes: Any) -> None:
        self._source, self._state, self._hashes = source, state, hashes
        self._encoder: Encoder | None = None

    def __call__(self, table: Any) -> Any:
        if self._encoder is None:  # by the worker, not by the driver that creates a task
            self._encoder = self._source.load_encoder()
        stats = ReadStats()
        try:
            hashes = require_ray().get(self._hashes)  # shared: they may be many
            block = read_block(table, self._source, self._encoder, stats)
            partials = partial_statistics(block, self._state, hashes, stats)
        except FecamError as error:
            partials, stats = {}, ReadStats(items=table.num_rows, error=str(error))
        return to_table((partials, stats))


def _reduce(
    dataset: Any,
    worker: tuple[Source, ClassifierState, Any],
    concurrency: int | None,
    gpus: float,
    reporter: ProgressReporter,
) -> tuple[list[Any], ReadStats]:
    """Return references to the merged statistics of all classes, and the counts of all items."""
    encodes = worker[0].encoder is not None
    stage = map_blocks(
        dataset, _LearnWorker, *worker, actors=encodes, concurrency=concurrency, gpus=gpus
    )
    cpus = int(require_ray().cluster_resources().get("CPU", 1))

    def update(stats: ReadStats, finished: bool = False) -> None:
        if stats.error:
            raise InputError(stats.error)
        reporter.update(stats.items, stats.unreadable, finished=finished)

    partitions = min(max(cpus, 1), MAX_PARTITIONS)
    # Actors that encode keep their processors to the end, so merging must not request any.
    results, stats = tree_reduce(iter_blocks(stage), partitions, 0 if encodes else 1, update)
    update(stats, finished=True)
    return results, stats


def _fetch(results: list[Any]) -> Partials:
    """Return the statistics of all classes."""
    batch: Partials = {}
    for result in results:
        batch |= deepcopy(require_ray().get(result))  # out of the memory that Ray shares
    return batch


def _write(
    before: _Before, batch: Partials, record: EncoderRecord | None, note: str
) -> FeCAMClassifier:
    """Return the classifier that has learned the batch; its file is written in one step."""

    def change(working: WorkingCopy) -> None:
        statistics = {name: replace(x.statistics, n_batches=1) for name, x in batch.items()}
        samples = ((name, partial.sample[:, 1:]) for name, partial in batch.items())
        working.classifier.learn_statistics(statistics, samples)
        if before.hashes is None:
            return
        label: Any
        for label, partial in batch.items():
            working.content_hashes[label] = add_hashes(
                working.content_hashes.get(label, b""), partial.hashes
            )

    if before.path is not None and before.path.exists():
        with ModelFile(before.path) as file:
            if batch:
                file.write("learn", change, note)
            return file.snapshot.classifier
    working = WorkingCopy(before.classifier, encoder=record, needs_prior=True)
    change(working)
    if before.path is not None:
        with translate_errors(before.path):
            create_file(before.path, working, "learn", note, replace=False)
    return working.classifier
