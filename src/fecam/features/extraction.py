"""From the items of a data set to features, once: read by threads, encoded in batches, kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import cpu_count

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError, ItemError
from fecam.features.store import FeatureStore, FeatureWriter, Rows, StoredFeatures

AHEAD = 4
"""Batches that are read ahead of the network: enough that it never waits, few enough for memory."""
THREADS = 8
"""At most so many threads read items: beyond that they only fight for the processor."""
_RECIPE = 1  # raise it when the way from items to features changes


@dataclass(frozen=True)
class Progress:
    """How far an extraction has come."""

    done: int
    total: int
    skipped: int


Report = Callable[[Progress], None]


def key_of(dataset: Dataset, encoder: Encoder) -> str:
    """The key of features: other items, other weights or another preprocessing, another key."""
    return fingerprint_of([_RECIPE, encoder.fingerprint, dataset.fingerprint])


def extract(
    dataset: Dataset,
    encoder: Encoder,
    *,
    cache: FeatureStore | Path | str | bool = True,
    report: Report | None = None,
    strict: bool = False,
    batch: int | None = None,
) -> Dataset:
    """The features of a data set, as a data set of features.

    They are looked up in the ``cache`` (a store, its folder, True for the usual one, False for
    none) and made there if need be. Items that cannot be read are left out and named in ``notes``,
    or are an error if ``strict``. ``report`` hears of the progress.

    >>> import numpy as np
    >>> from fecam.data import Dataset
    >>> from fecam.encoders import wrap
    >>> words = ["red", "green", "blue", "olive"]
    >>> data = Dataset("colours", "texts", words, [0, 1, 2, 1], ("red", "green", "blue"), "1")
    >>> lengths = wrap(lambda texts: np.asarray([[len(t), t.count("e")] for t in texts], "f4"),
    ...                name="lengths", kind="texts", fingerprint="lengths-1")
    >>> features = extract(data, lengths, cache=False)
    >>> features.kind, np.asarray(features.items).tolist()
    ('features', [[3.0, 1.0], [5.0, 2.0], [4.0, 1.0], [5.0, 1.0]])
    """
    found = _found(dataset, encoder, cache, report, strict, batch)
    return _as_dataset(dataset, encoder, key_of(dataset, encoder), found)


def encode_dataset(
    dataset: Dataset,
    encoder: Encoder,
    *,
    cache: FeatureStore | Path | str | bool = True,
    report: Report | None = None,
    strict: bool = False,
    batch: int | None = None,
) -> Encoded:
    """As `extract`, for whoever needs to know which item each row of features is of.

    That none of the items can be read is no error here.
    """
    try:
        found = _found(dataset, encoder, cache, report, strict, batch)
    except _NothingReadable as nothing:
        return Encoded(np.zeros((0, encoder.n_features), np.float32), [], nothing.failed)
    return Encoded(found.features, found.kept.tolist(), dict(found.about["skipped"]))


def _found(
    dataset: Dataset,
    encoder: Encoder,
    cache: FeatureStore | Path | str | bool,
    report: Report | None,
    strict: bool,
    batch: int | None,
) -> StoredFeatures:
    """The features, from the cache or made there."""
    if dataset.kind == "features":
        raise InputError(
            f"the data set {dataset.name!r} holds features already; it needs no encoder"
        )
    if dataset.kind != encoder.kind:
        raise InputError(
            f"the encoder {encoder.name!r} is for {encoder.kind}, but the data set "
            f"{dataset.name!r} holds {dataset.kind}. `fecam encoders` lists encoders by what they "
            "are for"
        )
    key = key_of(dataset, encoder)
    if cache is False:
        filling = _InMemory()
        _fill(filling, dataset, encoder, report, strict, batch)
        return filling.stored(encoder.n_features)
    if not encoder.fingerprint:
        raise EncoderError(
            f"the encoder {encoder.name!r} has no fingerprint, so nobody can tell whether cached "
            "features are its own. Remedy: give it one, wrap(..., fingerprint='my-net-1'), and "
            "change it with the weights; or pass cache=False"
        )
    store = (
        cache if isinstance(cache, FeatureStore) else FeatureStore(None if cache is True else cache)
    )
    found = _usable(store.find(key), strict)
    while found is None:
        about = {
            "dataset": dataset.name,
            "encoder": encoder.name,
            "preprocessing": encoder.preprocessing,
            "width": encoder.n_features,
            "items": len(dataset),
        }
        with store.filling(key, len(dataset), encoder.n_features, about) as room:
            if room is not None:
                _fill(room, dataset, encoder, report, strict, batch)
        store.shrink(keep=key)
        found = store.find(key)
    return found


@dataclass(frozen=True)
class Encoded:
    """The features of those items that could be read."""

    features: Rows
    rows: list[int]
    """For each row of features the place of its item."""
    failed: dict[int, str]
    """For the other items why they cannot be read, by their place."""


def encode_readable(items: Sequence[Any], encoder: Encoder) -> Encoded:
    """The features of items that come and go: nothing is kept, and a bad item harms no other.

    >>> import numpy as np
    >>> from fecam.encoders import wrap
    >>> lengths = wrap(lambda texts: np.asarray([[len(t)] for t in texts], "f4"),
    ...                name="lengths", kind="texts", fingerprint="lengths-1")
    >>> encode_readable(["a", "abc"], lengths).features.tolist()
    [[1.0], [3.0]]
    """
    room = _InMemory()
    _work(room, items, encoder, None, False, None)
    found = room.stored(encoder.n_features)
    return Encoded(found.features, found.kept.tolist(), dict(room.skipped))


def _usable(found: StoredFeatures | None, strict: bool) -> StoredFeatures | None:
    if found is not None and strict and found.about["skipped"]:
        _, why = found.about["skipped"][0]
        raise InputError(_too_bad([why], len(found.about["skipped"])))
    return found


def _fill(
    room: FeatureWriter | _InMemory,
    dataset: Dataset,
    encoder: Encoder,
    report: Report | None,
    strict: bool,
    batch: int | None,
) -> None:
    """Encode all items of a data set that have not been dealt with."""
    _work(room, dataset.items, encoder, report, strict, batch)
    if len(room.skipped) == len(dataset):
        raise _NothingReadable(
            f"none of the {len(dataset)} items of {dataset.name!r} can be read; the first: "
            f"{room.skipped[0][1]}",
            dict(room.skipped),
        )


class _NothingReadable(InputError):
    def __init__(self, message: str, failed: dict[int, str]) -> None:
        super().__init__(message)
        self.failed = failed


def _work(
    room: FeatureWriter | _InMemory,
    items: Sequence[Any] | Rows,
    encoder: Encoder,
    report: Report | None,
    strict: bool,
    batch: int | None,
) -> None:
    total = len(items)
    if strict and room.skipped:
        raise InputError(_too_bad([room.skipped[0][1]], len(room.skipped)))
    if report is not None:
        report(Progress(room.done, total, len(room.skipped)))
    for rows, prepared in _read(items, encoder, room.done, batch or encoder.batch_size):
        failed = [(at, one) for at, one in zip(rows, prepared, strict=True) if _is_bad(one)]
        kept = [at for at, one in zip(rows, prepared, strict=True) if not _is_bad(one)]
        if failed and strict:
            raise InputError(_too_bad([str(failed[0][1])], len(failed)))
        good = [one for one in prepared if not _is_bad(one)]
        features = _checked(encoder, encoder.embed(good), len(good)) if good else None
        if features is None:
            features = np.zeros((0, encoder.n_features), np.float32)
        room.add(features, kept, rows[-1] + 1, [(at, str(error)) for at, error in failed])
        if report is not None:
            report(Progress(room.done, total, len(room.skipped)))


def _is_bad(one: object) -> bool:
    return isinstance(one, ItemError)


def _too_bad(reasons: list[str], count: int) -> str:
    return (
        f"{count} item{'s' if count > 1 else ''} cannot be read, {reasons[0]}. "
        "Without strict such items are left out and counted"
    )


def _checked(encoder: Encoder, features: Rows, count: int) -> Rows:
    features = np.asarray(features, dtype=np.float32)
    if features.shape != (count, encoder.n_features):
        raise EncoderError(
            f"the encoder {encoder.name!r} gave an array of shape {features.shape} for {count} "
            f"items; it should be ({count}, {encoder.n_features})"
        )
    if not np.isfinite(features).all():
        raise EncoderError(f"the encoder {encoder.name!r} gave NaN or infinite features")
    return features


def _read(
    items: Sequence[Any] | Rows, encoder: Encoder, start: int, batch: int
) -> Iterator[tuple[list[int], list[Any]]]:
    """Batches of prepared items in their order; what cannot be read is its `ItemError`."""

    def read(at: int) -> Any:
        try:
            return encoder.prepare(items[at])
        except ItemError as error:
            return error

    threads = min(THREADS, cpu_count())
    waiting: deque[tuple[list[int], list[Future[Any]]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="fecam-read") as pool:
        try:
            for first in range(start, len(items), batch):
                rows = list(range(first, min(first + batch, len(items))))
                waiting.append((rows, [pool.submit(read, at) for at in rows]))
                if len(waiting) > AHEAD:
                    rows, futures = waiting.popleft()
                    yield rows, [one.result() for one in futures]
            while waiting:
                rows, futures = waiting.popleft()
                yield rows, [one.result() for one in futures]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _as_dataset(dataset: Dataset, encoder: Encoder, key: str, found: StoredFeatures) -> Dataset:
    """The data set with features in the place of its items."""
    skipped = found.about["skipped"]
    notes = dataset.notes
    if skipped:
        notes = (*notes, f"{len(skipped)} of {len(dataset)} items could not be read")
        notes = (*notes, *(why for _, why in skipped))
    kept = found.kept
    return replace(
        dataset,
        name=f"{dataset.name} ({encoder.name})",
        kind="features",
        items=found.features,
        labels=dataset.labels[kept],
        is_test=np.asarray(dataset.is_test)[kept],
        domains=None if dataset.domains is None else dataset.domains[kept],
        fingerprint=key,
        notes=notes,
    )


class _InMemory:
    """Features that are kept nowhere."""

    def __init__(self) -> None:
        self.done, self.skipped = 0, list[tuple[int, str]]()
        self._parts: list[Rows] = []
        self._kept: list[int] = []

    def add(
        self, features: Rows, kept: Sequence[int], upto: int, skipped: list[tuple[int, str]]
    ) -> None:
        self._parts.append(features)
        self._kept += kept
        self.skipped += skipped
        self.done = upto

    def stored(self, width: int) -> StoredFeatures:
        rows = np.concatenate([np.zeros((0, width), np.float32), *self._parts])
        return StoredFeatures(rows, np.asarray(self._kept, np.int64), {"skipped": self.skipped})
