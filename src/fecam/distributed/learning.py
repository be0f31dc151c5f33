"""Learning from a data set of Ray: the same model as on one machine, up to rounding."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.distributed.cluster import blocks_of, over_blocks, rows_in, the_ray
from fecam.distributed.first_rows import Glance, from_schema, nothing, peek
from fecam.distributed.lessons import Plan, as_lesson, pack, parts_of, unpack
from fecam.distributed.reading import Account, Source, Teller, chosen_columns, read_block
from fecam.distributed.tree import MOST_HEAPS, Tree
from fecam.encoders.encoder import Encoder
from fecam.errors import ClusterError, EncoderError, FecamError, InputError
from fecam.features.extraction import Report
from fecam.model.provenance import joined
from fecam.model_file import EncoderRecord, ModelFile
from fecam.model_file.creation import create_file
from fecam.model_file.file import translate_errors
from fecam.model_file.writing import WorkingCopy

TRIES = 3
"""A run whose results are lost with a node, and cannot be made again alone, is begun anew."""


@dataclass(frozen=True)
class Learnt:
    """What became of a data set."""

    classifier: FeCAMClassifier
    """That knows all of it."""
    n_learned: Mapping[Hashable, int]
    """How many items of each class were learnt."""
    n_duplicates: int
    """How many were left out, because the file had been taught the very same items before."""
    unreadable: int
    reasons: Sequence[str]
    """Why, for the first of them."""
    seconds: float


def learn(dataset: Any, **options: Any) -> FeCAMClassifier:
    """Learn a data set of Ray; options as for `teach`, which also tells what could not be read."""
    return teach(dataset, **options).classifier


def teach(
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
) -> Learnt:
    """Learn a data set of Ray on its cluster, as one lesson.

    Each block becomes the statistics of its classes where it is read; these are added up in a tree
    of tasks. No sample is sent to another machine but up to 32 rows a class, with which novelty is
    calibrated and which are kept nowhere. The driver holds the model and nothing else.

    Parameters
    ----------
    dataset
        A ``ray.data.Dataset`` with a column of labels and one of items: images (bytes, arrays,
        paths that every machine can read), texts, or embeddings (lists, arrays, or a column a
        number).
    encoder
        A name, which each worker loads by itself, or an encoder, which is sent to them. None for
        embeddings.
    classifier
        Settings, and what is known already; it is left as it is. A new one with the usual settings
        if not given. ``tukey="auto"`` looks at the first 64 rows, as it would at a first lesson.
    label, item
        The columns. Items are found by the usual names if not given.
    into
        A ``.fecam`` file to write, in one step. If it is there, it is taught what it does not know
        yet: it remembers its items.
    concurrency
        How many workers encode, or tasks read, at a time; all there is room for if not given.
    gpus
        Of each worker.
    total
        How many items there are, for ``report``. Ray is asked if it is not given; it knows that of
        what was read already, not of files to come nor of what other code makes of them.
    report
        Hears how many items are done, of how many; 0 if nobody knows. At the end all are done.
    allow_duplicates
        Also teach ``into`` what it was taught before.
    note
        Kept in the file with the step.
    """
    start = time.monotonic()
    the_ray()  # if it is missing, that is told first
    target = None if into is None else Path(os.path.realpath(into))
    known = _Known.of(target, classifier, encoder)
    source = Source(known.encoder, label, chosen_columns(item))
    glance = None if known.looks_at_rows else from_schema(dataset, source)
    glance = glance or peek(dataset, source, gpus)
    known.check(glance)
    plan = known.plan(glance)
    marks = {} if allow_duplicates else known.marks
    teller = Teller(report, total or rows_in(dataset))
    for attempt in range(1, TRIES + 1):
        try:
            tables, account = _run(
                dataset, source, plan, marks, concurrency=concurrency, gpus=gpus, teller=teller
            )
            lesson, marked = _fetched(tables, plan)
            if not lesson and not account.n_duplicates:
                raise nothing(account)
            found = _written(target, known, tables, lesson, marked, plan, glance.record, note)
            break
        except the_ray().exceptions.ObjectLostError as error:
            if attempt == TRIES:
                raise ClusterError(
                    f"the cluster has lost results {TRIES} times, as machines do that end in the "
                    "middle. Nothing was changed. Run it again, on machines that stay"
                ) from error
    return Learnt(
        found,
        {name: one.count for name, one in lesson.items()},
        account.n_duplicates,
        account.unreadable,
        account.reasons,
        time.monotonic() - start,
    )


# -- before ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What there is before: a classifier, and a file that holds it."""

    classifier: FeCAMClassifier
    encoder: str | Encoder | None
    record: EncoderRecord | None
    marks: Mapping[Hashable, NDArray[np.uint64]]
    path: Path | None

    @classmethod
    def of(
        cls, path: Path | None, classifier: FeCAMClassifier | None, encoder: str | Encoder | None
    ) -> _Known:
        if path is None or not path.exists():
            return cls((classifier or FeCAMClassifier()).copy(), encoder, None, {}, path)
        if classifier is not None:
            raise InputError(f"{path} has its own classifier. Leave classifier out.")
        with ModelFile(path) as file:
            held = file.snapshot
        marks: dict[Hashable, NDArray[np.uint64]] = {
            label: np.frombuffer(one.provenance.content_hashes, "<u8")
            for label, one in held.rows.items()
        }
        if encoder is None and held.encoder is not None:
            encoder = held.encoder.name
        return cls(held.classifier.copy(), encoder, held.encoder, marks, path)

    @property
    def state(self) -> ClassifierState | None:
        """The state of the classifier, or None before its first batch."""
        return getattr(self.classifier, "state_", None)

    @property
    def looks_at_rows(self) -> bool:
        """Whether the first rows decide how all are transformed."""
        return self.state is None and self.classifier.tukey == "auto"

    def check(self, glance: Glance) -> None:
        """Refuse features of another encoder, or of another width, than those before."""
        there, here = self.record, glance.record
        if self.path is not None and self.encoder is not None and here is None:
            raise EncoderError(
                "the encoder has no fingerprint, so nobody could tell later whether the model is "
                "used with the same one. Give it one: wrap(..., fingerprint='my-net-1')."
            )
        if there is not None and (here is None or there.fingerprint != here.fingerprint):
            other = "no encoder" if here is None else here.name
            raise InputError(
                f"{self.path} was taught with the encoder {there.name}; {other} gives other "
                "features. Use the same, or teach another file."
            )
        before = self.state
        if before is not None and before.n_features != glance.width:
            raise InputError(
                f"the features have {glance.width} numbers, the model has "
                f"{before.n_features}. "
                "Use the same encoder, or teach another model."
            )

    def plan(self, glance: Glance) -> Plan:
        before, dtype = self.state, self.classifier.dtype
        if before is None:
            before = self.classifier.empty_state(np.full((1, glance.width), glance.lowest, dtype))
        return Plan(
            before.transform, before.scatter_kind, glance.width, dtype, self.path is not None
        )


# -- the work --------------------------------------------------------------------------------------


class _Summarize:
    """In a worker: a block becomes a table of statistics."""

    def __init__(self, source: Source, plan: Plan, known: Any) -> None:
        self._source, self._plan, self._known = source, plan, known
        self._encoder: Encoder | None = None
        self._ready = False

    def __call__(self, table: Any) -> Any:
        if not self._ready:
            self._encoder, self._ready = self._source.loaded(), True
        account = Account()
        try:
            known = the_ray().get(self._known)
            block = read_block(table, self._source, self._encoder, account)
            parts = parts_of(block, self._plan, known, account)
        except FecamError as error:
            parts, account = {}, Account(items=table.num_rows, error=str(error))
        return pack(parts, account, self._plan)


def _run(
    dataset: Any,
    source: Source,
    plan: Plan,
    known: Mapping[Hashable, NDArray[np.uint64]],
    *,
    concurrency: int | None,
    gpus: float,
    teller: Teller,
) -> tuple[list[Any], Account]:
    """References to the tables of all classes, and the account of all items."""
    ray = the_ray()
    stage = over_blocks(
        dataset,
        _Summarize,
        source,
        plan,
        ray.put(dict(known)),
        actors=source.encoder is not None,
        concurrency=concurrency,
        gpus=gpus,
    )
    heaps = min(max(int(ray.cluster_resources().get("CPU", 1)), 1), MOST_HEAPS)
    # Workers that encode keep their processors to the end, so adding up must do without a claim.
    tree = Tree(plan, heaps, processors=0 if source.encoder is not None else 1)
    for block in blocks_of(stage):
        tree.add(block)
        _check(tree.account)
        teller.tell(tree.account.items, tree.account.unreadable)
    tables = tree.finish()
    _check(tree.account)
    teller.tell(tree.account.items, tree.account.unreadable, at_the_end=True)
    return tables, tree.account


def _check(account: Account) -> None:
    if account.error:
        raise InputError(account.error)


# -- after -----------------------------------------------------------------------------------------


def _fetched(
    tables: list[Any], plan: Plan
) -> tuple[dict[Hashable, ClassStatistics], dict[Hashable, NDArray[np.uint64]]]:
    """The statistics and the marks of all classes, without the rows to measure."""
    ray = the_ray()
    bare = ray.remote(num_cpus=0, max_retries=-1)(_without_rows)
    lesson: dict[Hashable, ClassStatistics] = {}
    marks: dict[Hashable, NDArray[np.uint64]] = {}
    for table in [bare.remote(one) for one in tables]:
        parts, _ = unpack(ray.get(table), plan)
        lesson |= as_lesson(parts)
        marks |= {label: np.array(part.marks) for label, part in parts.items()}
    return lesson, marks


def _without_rows(table: Any) -> Any:
    import pyarrow as pa

    at = table.column_names.index("sample")
    return table.set_column(at, "sample", pa.nulls(table.num_rows, pa.large_binary()))


def _rows(tables: list[Any], plan: Plan) -> Iterator[tuple[Hashable, NDArray[Any]]]:
    """A few transformed rows of each class, one heap of classes after the other."""
    ray = the_ray()
    for table in tables:
        parts, _ = unpack(ray.get(table), plan)
        for label, part in parts.items():
            yield label, part.sample[:, 1:]


def absorb(
    classifier: FeCAMClassifier,
    lesson: Mapping[Hashable, ClassStatistics],
    rows: Iterable[tuple[Hashable, NDArray[Any]]],
    plan: Plan,
) -> None:
    """Teach a classifier a lesson of which the statistics are known, and a few rows.

    The rows are measured when all is added up, with the yardstick of the whole: as one machine
    would that had seen everything in one lesson.
    """
    if getattr(classifier, "state_", None) is None:
        empty = classifier.empty_state(np.ones((1, plan.width), plan.dtype))
        classifier.set_state(replace(empty, transform=plan.transform))
    classifier.learn_statistics(lesson, ((label, np.array(features)) for label, features in rows))


def _written(
    target: Path | None,
    known: _Known,
    tables: list[Any],
    lesson: Mapping[Hashable, ClassStatistics],
    marks: Mapping[Hashable, NDArray[np.uint64]],
    plan: Plan,
    record: EncoderRecord | None,
    note: str,
) -> FeCAMClassifier:
    def change(working: WorkingCopy) -> None:
        absorb(working.classifier, lesson, _rows(tables, plan), plan)
        for name, some in marks.items():
            label: Any = name
            working.content_hashes[label] = joined(working.content_hashes.get(label, b""), some)

    working = WorkingCopy(known.classifier, encoder=record, needs_prior=True)
    if target is None:
        change(working)
        return working.classifier
    if not target.exists():
        change(working)
        with translate_errors(target):
            create_file(target, working, "learn", note, replace=False)
        return working.classifier
    with ModelFile(target) as file:
        if lesson:
            file.write("learn", change, note)
        return file.snapshot.classifier
