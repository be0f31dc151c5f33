"""Predictions for a data set of Ray: as Parquet files, or counted against its labels.

The predictions of a block are one file, named after a hash of the block and written in one step. A
run that was stopped resumes: blocks that have a file are skipped.
"""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fecam.classifier import FeCAMClassifier
from fecam.core.novelty import novelty_threshold
from fecam.data.content_hashes import content_hashes
from fecam.data.table_parquet import is_text
from fecam.distributed import cluster
from fecam.distributed.columns import item_columns, items_of
from fecam.distributed.output_folder import OutputFolder
from fecam.distributed.reading import Block, ProgressReporter, ReadStats, Source, read_block
from fecam.encoders.encoder import Encoder
from fecam.errors import ClusterError, FecamError, InputError, ModelFileError
from fecam.features.extraction import Report
from fecam.labels import kind_of_label
from fecam.model import Model, Prediction, predictions_of
from fecam.validation import check_int

REQUEST_FILE = "_answers.json"
"""Model and options of the predictions in a folder. Readers of Parquet folders skip such names."""


@dataclass
class PredictionSummary:
    """Result of `predict` or `evaluate`.

    Parameters
    ----------
    items : int
        Number of items.
    unreadable : int
        Number of items that could not be read.
    reasons : list of str
        Why, for the first of them.
    confusions : Counter
        `evaluate`: number of items by (label, predicted label). The prediction is None for an
        item that was rejected.
    files : int
        `predict`: number of files of predictions.
    reused : int
        `predict`: number of files that an earlier run had written.
    """

    items: int = 0
    unreadable: int = 0
    reasons: list[str] = field(default_factory=list)
    confusions: Counter[tuple[Hashable, Hashable]] = field(default_factory=Counter)
    files: int = 0
    reused: int = 0

    @property
    def n_labeled(self) -> int:
        """Number of items with a label and a prediction."""
        return self.confusions.total()

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions, from 0 to 1; None without labels."""
        correct = sum(n for (label, predicted), n in self.confusions.items() if label == predicted)
        return correct / self.n_labeled if self.n_labeled else None


def predict(
    dataset: Any,
    model: str | os.PathLike[str] | FeCAMClassifier,
    *,
    output: str | os.PathLike[str],
    top: int = 1,
    reject: float | None = None,
    encoder: Encoder | None = None,
    item: str | Sequence[str] | None = None,
    concurrency: int | None = None,
    gpus: float = 0,
    total: int | None = None,
    report: Report | None = None,
) -> PredictionSummary:
    """Predict the class of every item, and write the predictions to Parquet files.

    A row holds the columns of the item, except bulky ones, then ``answer`` (null if the item is
    rejected), ``novelty``, the lists ``nearest``, ``probability`` and ``distance`` of the ``top``
    classes, and ``unreadable``. A second call with the same folder resumes a run that was stopped.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The items: images (bytes, arrays, paths), texts or embeddings.
    model : path or FeCAMClassifier
        A ``.fecam`` file, or a classifier for embeddings.
    output : path
        A folder that every machine can write to: on a shared disk, or ``s3://...``.
    top : int
        Number of nearest classes to write.
    reject : float, optional
        Share of items of known classes that may be rejected as unknown.
    encoder : Encoder, optional
        Replaces the encoder that the file names.
    item : str or sequence of str, optional
        The columns of items; found by their usual names if not given.
    concurrency : int, optional
        Number of workers; as many as fit if not given.
    gpus : float
        GPUs per worker.
    total : int, optional
        Number of items, for ``report``; asked of Ray if not given.
    report : callable, optional
        Is called with a `fecam.features.Progress`.

    Returns
    -------
    PredictionSummary
        Counts of items and files.

    Raises
    ------
    InputError
        If an option is invalid, or the folder holds predictions of another model.
    ClusterError
        If results are lost with a machine.
    """
    check_int("top", top, error=InputError)
    folder = OutputFolder(str(output))
    model_ref, checksum = _put_model(model)
    _claim(folder, {"model": checksum, "top": top, "reject": reject})
    summary, names = PredictionSummary(), Counter[str]()
    arguments = (model_ref, encoder, Source(None, None, item), top, reject, folder)
    reporter = ProgressReporter(report, total or cluster.row_count(dataset))
    for name, is_reused in _run(dataset, arguments, concurrency, gpus, summary, reporter):
        summary.reused += is_reused
        names[name] += 1
    files = _copy_repeated(folder, names)
    # Before a run was stopped, blocks may have been cut differently: their files would be repeats.
    folder.remove(name for name in folder.tables() if name not in files)
    summary.files = len(files)
    return summary


def evaluate(
    dataset: Any,
    model: str | os.PathLike[str] | FeCAMClassifier,
    *,
    label: str = "label",
    reject: float | None = None,
    encoder: Encoder | None = None,
    item: str | Sequence[str] | None = None,
    concurrency: int | None = None,
    gpus: float = 0,
    total: int | None = None,
    report: Report | None = None,
) -> PredictionSummary:
    """Predict the class of every labeled item, and count; no file is written.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The items and their labels.
    model : path or FeCAMClassifier
        As for `predict`.
    label : str
        The column of labels.
    reject, encoder, item, concurrency, gpus, total, report : optional
        As for `predict`.

    Returns
    -------
    PredictionSummary
        Counts of items and of pairs of label and prediction.
    """
    model_ref, _ = _put_model(model)
    summary = PredictionSummary()
    arguments = (model_ref, encoder, Source(None, label, item), 1, reject, None)
    reporter = ProgressReporter(report, total or cluster.row_count(dataset))
    for pairs in _run(dataset, arguments, concurrency, gpus, summary, reporter):
        summary.confusions.update(pairs)
    return summary


def _run(
    dataset: Any,
    arguments: tuple[Any, ...],
    concurrency: int | None,
    gpus: float,
    summary: PredictionSummary,
    reporter: ProgressReporter,
) -> Iterator[Any]:
    """Yield the result of each block; the summary gets the counts of all."""
    ray, total, reject = cluster.require_ray(), ReadStats(), arguments[4]
    if reject is not None:
        novelty_threshold(reject)  # raises an error if it is invalid
    stage = cluster.map_blocks(
        dataset, _PredictWorker, *arguments, actors=True, concurrency=concurrency, gpus=gpus
    )
    try:
        for block in cluster.iter_blocks(stage):
            for result, stats in cluster.from_table(ray.get(block)):
                total.add(stats)
                if total.error:
                    raise InputError(total.error)
                reporter.update(total.items, total.unreadable)
                yield result
    except ray.exceptions.ObjectLostError as error:
        raise ClusterError(
            "results were lost with a machine. Run it again: predictions that are written are kept"
        ) from error
    reporter.update(total.items, total.unreadable, finished=True)
    summary.items, summary.unreadable = total.items, total.unreadable
    summary.reasons = total.reasons


def _claim(folder: OutputFolder, request: dict[str, Any]) -> None:
    """Reject a folder with predictions of another model, or with other options."""
    stored = folder.read(REQUEST_FILE)
    if stored is None:
        folder.write(REQUEST_FILE, json.dumps(request).encode())
    elif json.loads(stored) != request:
        raise InputError(
            f"{folder.address} holds answers of another model, or with another --top or --reject. "
            "Give another folder, or empty this one."
        )


def _copy_repeated(folder: OutputFolder, names: Counter[str]) -> set[str]:
    """Return the files of all blocks; equal blocks share a name, so their file is copied."""
    files = set(names)
    for name, count in names.items():
        for number in range(2, count + 1):
            copy = f"{name.removesuffix('.parquet')}-{number}.parquet"
            if folder.counts(copy) is None:
                folder.write(copy, folder.read(name) or b"")
            files.add(copy)
    return files


def _put_model(model: str | os.PathLike[str] | FeCAMClassifier) -> tuple[Any, str]:
    """Return a reference to the model's file in the cluster's shared memory, and a checksum."""
    with tempfile.TemporaryDirectory() as directory:
        if isinstance(model, FeCAMClassifier):
            classifier, model = model, Path(directory) / "classifier.fecam"
            classifier.save(model)
        with Model(model, readonly=True) as opened:
            snapshot = opened.snapshot
            if snapshot is None or not snapshot.rows:
                raise ModelFileError(f"{model} has no class. Learn some first.")
            encoder = "" if snapshot.encoder is None else snapshot.encoder.fingerprint
            rows = (stored.row for stored in snapshot.rows.values())
            classes = sorted(row.matrices.hex() + row.label for row in rows)
        checksum = hashlib.sha256("".join([encoder, *classes]).encode()).hexdigest()[:32]
        # A write-ahead log may belong to the file, so its bytes alone are not the model.
        copy = Path(directory) / "model.fecam"
        with closing(sqlite3.connect(model)) as db, closing(sqlite3.connect(copy)) as target:
            db.backup(target)
        return cluster.require_ray().put(copy.read_bytes()), checksum


class _PredictWorker:
    """Predicts blocks with its own copy of the model; writes to a folder, or counts label pairs."""

    def __init__(
        self,
        model_ref: Any,
        encoder: Encoder | None,
        source: Source,
        top: int,
        reject: float | None,
        folder: OutputFolder | None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory()
        path = Path(self._directory.name) / "model.fecam"
        path.write_bytes(cluster.require_ray().get(model_ref))
        self._model = Model(path, encoder=encoder, readonly=True)
        self._encoder = self._model.encoder  # loaded once, before the first block
        self._source, self._top, self._reject, self._folder = source, top, reject, folder

    def __call__(self, table: Any) -> Any:
        stats = ReadStats()
        result: Any = None
        try:
            if self._folder is None:
                result = self._count(table, stats)
            else:
                result = self._write(table, self._folder, stats)
        except FecamError as error:
            stats.error = str(error)
        return cluster.to_table((result, stats))

    def _predict(self, table: Any, stats: ReadStats) -> tuple[Block, list[Prediction]]:
        """Return the readable items, and their predictions."""
        block = read_block(table, self._source, self._encoder, stats)
        if not len(block.features):
            return block, []
        return block, predictions_of(
            self._model.classifier, block.features, self._top, self._reject
        )

    def _count(self, table: Any, stats: ReadStats) -> Counter[tuple[Any, Any]]:
        """Return the number of items by label and prediction."""
        block, predictions = self._predict(table, stats)
        labels = [] if block.labels is None else block.labels.tolist()
        return Counter(zip(labels, (prediction.label for prediction in predictions), strict=True))

    def _write(self, table: Any, folder: OutputFolder, stats: ReadStats) -> tuple[str, bool]:
        """Return the name of the block's file, and whether it existed."""
        columns = item_columns(table, "label", self._source.item)
        name = f"part-{_content_hash(table, items_of(table, columns))}.parquet"
        if (counts := folder.counts(name)) is not None:
            stats.items, stats.unreadable = counts
            return name, True
        block, predictions = self._predict(table, stats)
        by_row = dict(zip(block.rows.tolist(), predictions, strict=True))
        rows = self._table(table, columns, [by_row.get(row) for row in range(table.num_rows)])
        folder.write_table(name, rows, stats.items, stats.unreadable)
        return name, False

    def _table(self, table: Any, columns: list[str], rows: list[Prediction | None]) -> Any:
        """Return the predictions beside the columns of the block that are not bulky."""
        import pyarrow as pa

        types = {"booleans": pa.bool_(), "integers": pa.int64()}
        kind = types.get(kind_of_label(self._model.classes[0].label) or "", pa.string())

        def lists(name: str) -> list[Any]:
            return [row and [getattr(near, name) for near in row.nearest] for row in rows]

        predicted = {
            "answer": pa.array([row and row.label for row in rows], kind),
            "novelty": pa.array([row and row.novelty for row in rows], pa.float64()),
            "nearest": pa.array(lists("label"), pa.list_(kind)),
            "probability": pa.array(lists("probability"), pa.list_(pa.float64())),
            "distance": pa.array(lists("distance"), pa.list_(pa.float64())),
            "unreadable": pa.array([row is None for row in rows]),
        }
        kept = {
            name: table.column(name)
            for name, kind in zip(table.column_names, table.schema.types, strict=True)
            if name not in predicted and (name not in columns or is_text(kind))
        }
        return pa.table({**kept, **predicted})


def _content_hash(table: Any, items: Any) -> str:
    """Return a hash of a block; of items that are paths, also of their files."""
    import pyarrow as pa

    table = table.replace_schema_metadata().combine_chunks()
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    digest = hashlib.sha256(buffer.getvalue())
    for item in items:
        if isinstance(item, str) and os.path.isfile(item):
            digest.update(content_hashes([item], "images").tobytes())
    return digest.hexdigest()[:24]
