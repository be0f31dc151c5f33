"""What a model says of a data set of Ray: answers in Parquet files, or how many are right.

The answers of a block are one file, named after what is in the block and written in one piece. So a
run that was stopped goes on where it was: blocks whose file is there are not judged again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fecam.classifier import FeCAMClassifier, novelty_threshold
from fecam.data.content_hashes import content_hashes
from fecam.distributed.cluster import over_blocks, rows_in, the_ray, told_by
from fecam.distributed.columns import item_columns, items_of
from fecam.distributed.folder import Folder
from fecam.distributed.reading import REASONS, Account, Source, Teller, chosen_columns, read_block
from fecam.encoders.encoder import Encoder
from fecam.errors import ClusterError, FecamError, InputError, ModelFileError
from fecam.features.extraction import Report
from fecam.model import Model, Prediction, predictions_of

ABOUT = "_answers.json"
"""Beside the answers: of which model they are, and how it was asked. Who reads a folder of tables
passes over names that begin so."""


@dataclass
class Answered:
    """What became of the items of a data set."""

    items: int = 0
    unreadable: int = 0
    reasons: list[str] = field(default_factory=list)
    """Why, for the first of them."""
    right: int = 0
    """Where the labels are known: how many answers are the label."""
    labelled: int = 0
    confusions: Counter[tuple[Hashable, Hashable]] = field(default_factory=Counter)
    """How often a label was given an answer, right or wrong; None for "none of these"."""
    parts: int = 0
    """Files of answers."""
    kept: int = 0
    """Those of them that were there before."""

    @property
    def accuracy(self) -> float | None:
        """The share of right answers; None without labels."""
        return self.right / self.labelled if self.labelled else None


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
) -> Answered:
    """Judge every item of a data set, and write the answers to Parquet files in a folder.

    A row holds the columns of the item, but for bulky ones; then ``answer`` (none where nothing
    fits, with ``reject``), ``novelty``, ``nearest``, ``probability`` and ``distance`` of the
    ``top`` classes as lists, and ``unreadable`` for an item that cannot be read. Called again, it
    goes on where it was stopped. The folder is one that every machine can write to: a shared disk,
    or an address such as ``s3://...``. ``report`` hears how many of ``total`` items are done; Ray
    is asked for the total if it is not given.
    """
    _check_asked(top, reject)
    sent, checksum = _sent(model)
    folder = Folder(str(output))
    _claim(folder, {"model": checksum, "top": top, "reject": reject})
    found, parts = Answered(), Counter[str]()
    arguments = (sent, encoder, chosen_columns(item), top, reject, folder)
    teller = Teller(report, total or rows_in(dataset))
    for about in _over(dataset, _Write, arguments, concurrency, gpus):
        _add(found, about, teller)
        parts.update([about["part"]])
    teller.tell(found.items, found.unreadable, at_the_end=True)
    names = _copied(folder, parts)
    # Blocks may have been cut otherwise before a run was stopped: these would be answers twice.
    folder.remove(name for name in folder.parts() if name not in names)
    found.parts = len(names)
    return found


def _copied(folder: Folder, parts: Counter[str]) -> set[str]:
    """The files of all blocks: of blocks that are the same, and so share a file, one each."""
    names = set(parts)
    for part, count in parts.items():
        for number in range(2, count + 1):
            name = f"{part.removesuffix('.parquet')}-{number}.parquet"
            if folder.metadata(name) is None:
                folder.write(name, folder.read(part) or b"")
            names.add(name)
    return names


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
) -> Answered:
    """Judge every item of a data set with labels, and count; nothing is written."""
    _check_asked(1, reject)
    sent, _ = _sent(model)
    found = Answered()
    arguments = (sent, encoder, chosen_columns(item), label, reject)
    teller = Teller(report, total or rows_in(dataset))
    for about in _over(dataset, _Count, arguments, concurrency, gpus):
        _add(found, about, teller)
        found.confusions.update({(a, b): count for a, b, count in about["pairs"]})
    teller.tell(found.items, found.unreadable, at_the_end=True)
    found.labelled = found.confusions.total()
    found.right = sum(count for (a, b), count in found.confusions.items() if a == b)
    return found


def _check_asked(top: int, reject: float | None) -> None:
    if type(top) is not int or top < 1:
        raise InputError(f"top={top!r} must be a whole number of at least 1.")
    if reject is not None:
        novelty_threshold(reject)


def _over(
    dataset: Any, work: Callable[..., Any], arguments: Any, concurrency: int | None, gpus: float
) -> Iterator[dict[str, Any]]:
    """What each block came to."""
    ray = the_ray()
    stage = over_blocks(dataset, work, *arguments, actors=True, concurrency=concurrency, gpus=gpus)
    try:
        yield from told_by(stage)
    except ray.exceptions.ObjectLostError as error:
        raise ClusterError(
            "the cluster has lost results, as machines do that end in the middle. Run it again: "
            "answers that are written are not made again"
        ) from error


def _add(found: Answered, about: dict[str, Any], teller: Teller) -> None:
    if about.get("error"):
        raise InputError(about["error"])
    found.items += about["items"]
    found.unreadable += about["unreadable"]
    found.reasons = [*found.reasons, *about["reasons"]][:REASONS]
    found.kept += about.get("kept", 0)
    teller.tell(found.items, found.unreadable)


def _claim(folder: Folder, facts: dict[str, Any]) -> None:
    """Refuse a folder with the answers of another model, or to another question."""
    there = folder.read(ABOUT)
    if there is None:
        folder.write(ABOUT, json.dumps(facts).encode())
    elif json.loads(there) != facts:
        raise InputError(
            f"{folder.address} holds answers of another model, or with another --top or --reject. "
            "Give another folder, or empty this one."
        )


# -- the model on its way --------------------------------------------------------------------------


def _sent(model: str | os.PathLike[str] | FeCAMClassifier) -> tuple[Any, str]:
    """The file of a model in the memory that the cluster shares, once; and its checksum."""
    if isinstance(model, FeCAMClassifier):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "model.fecam"
            model.save(path)
            return _sent(path)
    with Model(model, readonly=True) as opened:
        held = opened.snapshot
        if held is None or not held.rows:
            raise ModelFileError(f"{model} knows no class yet: teach it first.")
        encoder = "" if held.encoder is None else held.encoder.fingerprint
        known = sorted(one.row.matrices.hex() + one.row.label for one in held.rows.values())
        about = hashlib.sha256("".join([encoder, *known]).encode()).hexdigest()[:32]
    # The file may have a log beside it, which belongs to it: so not its bytes, but a copy.
    with tempfile.TemporaryDirectory() as place, closing(sqlite3.connect(model)) as db:
        copy = Path(place) / "model.fecam"
        with closing(sqlite3.connect(copy)) as target:
            db.backup(target)
        return the_ray().put(copy.read_bytes()), about


class _Judge:
    """In a worker: a model of its own, opened once."""

    def __init__(
        self, sent: Any, encoder: Encoder | None, source: Source, top: int, reject: float | None
    ) -> None:
        self._place = tempfile.TemporaryDirectory()
        path = Path(self._place.name) / "model.fecam"
        path.write_bytes(the_ray().get(sent))
        self._model = Model(path, encoder=encoder, readonly=True)
        self._encoder = self._model.encoder
        self._source, self._top, self._reject = source, top, reject

    def judged(self, table: Any, account: Account) -> tuple[Any, list[Prediction]]:
        """The places of the items that can be read, and the answers to them."""
        block = read_block(table, self._source, self._encoder, account)
        if not len(block.features):
            return block, []
        return block, predictions_of(
            self._model.classifier, block.features, self._top, self._reject
        )


class _Count(_Judge):
    def __init__(
        self, sent: Any, encoder: Any, item: Any, label: str, reject: float | None
    ) -> None:
        super().__init__(sent, encoder, Source(None, label, item), 1, reject)

    def __call__(self, table: Any) -> Any:
        account, pairs = Account(), Counter[Any]()
        try:
            block, found = self.judged(table, account)
            pairs.update(zip(block.labels.tolist(), (one.label for one in found), strict=True))
        except FecamError as error:
            account.error = str(error)
        return _about(account, pairs=[[*pair, count] for pair, count in pairs.items()])


class _Write(_Judge):
    def __init__(
        self,
        sent: Any,
        encoder: Any,
        item: Any,
        top: int,
        reject: float | None,
        folder: Folder,
    ) -> None:
        super().__init__(sent, encoder, Source(None, None, item), top, reject)
        self._folder = folder

    def __call__(self, table: Any) -> Any:
        account, part = Account(), ""
        try:
            columns = item_columns(table, "label", self._source.item)
            items = items_of(table, columns)
            part = f"part-{_content(items, table.drop_columns(columns))}.parquet"
            if (there := self._folder.metadata(part)) is not None:
                account.items, account.unreadable = there
                return _about(account, part=part, kept=1)
            block, found = self.judged(table, account)
            answers = self._answers(table, columns, block.rows, found, account)
            self._folder.write_table(part, answers, account.items, account.unreadable)
        except FecamError as error:
            account.error = str(error)
        return _about(account, part=part)

    def _answers(
        self, table: Any, columns: list[str], rows: Any, found: list[Prediction], account: Account
    ) -> Any:
        import pyarrow as pa

        light = [
            name for name in table.column_names if name not in columns or _is_light(table, name)
        ]
        at = dict(zip(rows.tolist(), found, strict=True))
        each = [at.get(row) for row in range(table.num_rows)]
        kind = pa.string() if isinstance(self._model.classes[0].label, str) else pa.int64()

        def lists(name: str) -> list[Any]:
            return [one and [getattr(near, name) for near in one.nearest] for one in each]

        answers = {
            "answer": pa.array([one and one.label for one in each], kind),
            "novelty": pa.array([one and one.novelty for one in each], pa.float64()),
            "nearest": pa.array(lists("label"), pa.list_(kind)),
            "probability": pa.array(lists("probability"), pa.list_(pa.float64())),
            "distance": pa.array(lists("distance"), pa.list_(pa.float64())),
            "unreadable": pa.array([one is None for one in each]),
        }
        kept = {name: table.column(name) for name in light if name not in answers}
        return pa.table({**kept, **answers})


def _is_light(table: Any, name: str) -> bool:
    import pyarrow as pa

    kind = table.schema.field(name).type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _content(items: Any, beside: Any) -> str:
    """What is in a block, in a few characters: its items, and the columns that go with them."""
    import pyarrow as pa

    if isinstance(items, np.ndarray) and items.dtype.kind != "O":
        digest = hashlib.sha256(f"{items.shape}{items.dtype.str}".encode())
        digest.update(np.ascontiguousarray(items).data)
    else:
        texts = bool(len(items)) and isinstance(items[0], str)
        digest = hashlib.sha256(content_hashes(items, "texts" if texts else "images").tobytes())
        for one in items if texts else ():
            if os.path.isfile(one):  # a path: what it leads to may have changed
                digest.update(content_hashes([one], "images").tobytes())
    if beside.num_columns:
        beside = beside.replace_schema_metadata().combine_chunks()
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, beside.schema) as stream:
            stream.write_table(beside)
        digest.update(written.getvalue())
    return digest.hexdigest()[:24]


def _about(account: Account, **more: Any) -> Any:
    import pyarrow as pa

    return pa.table({"about": [json.dumps({**vars(account), **more})]})
