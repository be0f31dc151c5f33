"""From the items of a data set to features: read by threads, encoded in batches, cached."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import cpu_count

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.data.paths import ensure_writable
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError, ItemError, SettingsError
from fecam.features.store import FeatureStore, FeatureWriter, Rows
from fecam.validation import counted

READ_AHEAD = 4
"""Batches that are read before the network needs them."""
THREADS = 8
"""Maximum number of threads that read items; more only compete for the processor."""
_RECIPE = 1  # part of the cache key: raise it when the way from items to features changes


@dataclass(frozen=True)
class Progress:
    """Progress of an extraction, in items.

    Parameters
    ----------
    done : int
        Items that were encoded or skipped.
    total : int
        All items.
    skipped : int
        Items that cannot be read.
    """

    done: int
    total: int
    skipped: int


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Encoded:
    """Features of the items that can be read."""

    features: Rows
    rows: list[int]
    """The index of the item of each row."""
    failed: dict[int, str]
    """Why the other items cannot be read, by index."""


def key_of(dataset: Dataset, encoder: Encoder) -> str:
    """Return the cache key: it changes with the items, the weights and the preprocessing."""
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
    """Return the features of a data set as a data set of features.

    Parameters
    ----------
    dataset : Dataset
        Images or texts.
    encoder : Encoder
        An encoder of that kind.
    cache : FeatureStore, path or bool
        The store to read from and write to, its folder, True for the default, False for none.
    report : callable, optional
        Called with a `Progress` after each batch.
    strict : bool
        Whether an unreadable item is an error. By default such items are left out and listed in
        ``notes``.
    batch : int, optional
        Items per batch. Default: that of the encoder.

    Returns
    -------
    Dataset
        The features, with the labels, splits and domains of their items.

    Raises
    ------
    InputError
        If the encoder is for another kind of items, or no item can be read.
    EncoderError
        If the encoder has no fingerprint to cache by, or returns invalid features.

    Examples
    --------
    >>> import numpy as np
    >>> from fecam.data import Dataset
    >>> from fecam.encoders import wrap
    >>> words = ["red", "green", "blue", "olive"]
    >>> data = Dataset("colors", "texts", words, [0, 1, 2, 1], ("red", "green", "blue"), "1")
    >>> lengths = wrap(lambda texts: np.asarray([[len(t), t.count("e")] for t in texts], "f4"),
    ...                name="lengths", kind="texts", fingerprint="lengths-1")
    >>> features = extract(data, lengths, cache=False)
    >>> features.kind, np.asarray(features.items).tolist()
    ('features', [[3.0, 1.0], [5.0, 2.0], [4.0, 1.0], [5.0, 1.0]])
    """
    encoded = encode_dataset(
        dataset, encoder, cache=cache, report=report, strict=strict, batch=batch
    )
    kept, reasons, notes = encoded.rows, list(encoded.failed.values()), dataset.notes
    if not kept:
        raise InputError(
            f"none of {counted(len(dataset), 'item')} of {dataset.name!r} can be read; the first: "
            f"{reasons[0]}"
        )
    if reasons:
        count = f"{len(reasons)} of {counted(len(dataset), 'item')} could not be read"
        notes = (*notes, count, *reasons)
    return replace(
        dataset,
        name=f"{dataset.name} ({encoder.name})",
        kind="features",
        items=encoded.features,
        labels=dataset.labels[kept],
        is_test=np.asarray(dataset.is_test)[kept],
        domains=None if dataset.domains is None else dataset.domains[kept],
        fingerprint=key_of(dataset, encoder),
        notes=notes,
    )


def encode_dataset(
    dataset: Dataset,
    encoder: Encoder,
    *,
    cache: FeatureStore | Path | str | bool = True,
    report: Report | None = None,
    strict: bool = False,
    batch: int | None = None,
) -> Encoded:
    """Return the features of `extract` with the index of each item; empty if none is readable."""
    if dataset.kind == "features":
        raise InputError(
            f"the data set {dataset.name!r} holds features already; it needs no encoder"
        )
    if dataset.kind != encoder.kind:
        raise InputError(
            f"the encoder {encoder.name!r} is for {encoder.kind}, but the data set "
            f"{dataset.name!r} holds {dataset.kind}. `fecam encoders` lists the encoders of each "
            "kind"
        )

    def without_cache() -> Encoded:
        memory = _MemoryWriter()
        _encode(memory, dataset.items, encoder, report, strict, batch)
        return memory.encoded(encoder.n_features)

    if cache is False:
        return without_cache()
    if not encoder.fingerprint:
        raise EncoderError(
            f"the encoder {encoder.name!r} has no fingerprint to identify its cached features. "
            "Remedy: give it one, wrap(..., fingerprint='my-net-1'), and change it with the "
            "weights; or pass cache=False"
        )
    if not isinstance(cache, FeatureStore):
        cache = FeatureStore(None if cache is True else cache)
    key = key_of(dataset, encoder)
    stored = cache.find(key)
    if stored is not None and strict:
        _check_none_skipped(stored.about["skipped"])
    about = {
        "dataset": dataset.name,
        "encoder": encoder.name,
        "preprocessing": encoder.preprocessing,
        "width": encoder.n_features,
        "items": len(dataset),
    }
    while stored is None:  # another process may remove it before it is read
        try:
            ensure_writable(cache.folder)
        except SettingsError as error:
            warnings.warn(f"features are not cached: {error}", stacklevel=3)
            return without_cache()
        with cache.writer(key, len(dataset), encoder.n_features, about) as writer:
            if writer is not None:
                _encode(writer, dataset.items, encoder, report, strict, batch)
        if writer is not None and writer.is_empty:
            features = np.zeros((0, encoder.n_features), np.float32)
            return Encoded(features, [], dict(writer.skipped))
        cache.shrink(keep=key)
        stored = cache.find(key)
    return Encoded(stored.features, stored.kept.tolist(), dict(stored.about["skipped"]))


def encode_readable(items: Sequence[Any], encoder: Encoder) -> Encoded:
    """Return the features of the items that can be read, without a cache."""
    writer = _MemoryWriter()
    _encode(writer, items, encoder, None, False, None)
    return writer.encoded(encoder.n_features)


def _encode(
    writer: FeatureWriter | _MemoryWriter,
    items: Sequence[Any] | Rows,
    encoder: Encoder,
    report: Report | None,
    strict: bool,
    batch: int | None,
) -> None:
    """Encode the items that the writer does not have yet."""
    total = len(items)
    if strict:
        _check_none_skipped(writer.skipped)
    if report is not None:
        report(Progress(writer.done, total, len(writer.skipped)))
    for rows, prepared in _read(items, encoder, writer.done, batch or encoder.batch_size):
        pairs = list(zip(rows, prepared, strict=True))
        failed = [(row, str(item)) for row, item in pairs if isinstance(item, ItemError)]
        good = [item for item in prepared if not isinstance(item, ItemError)]
        if strict:
            _check_none_skipped(failed)
        features = np.zeros((0, encoder.n_features), np.float32)
        if good:
            features = _check_features(encoder, encoder.embed(good), len(good))
        writer.add(features, rows[-1] + 1, failed)
        if report is not None:
            report(Progress(writer.done, total, len(writer.skipped)))


def _check_none_skipped(skipped: Sequence[Sequence[Any]]) -> None:
    if skipped:
        raise InputError(
            f"{counted(len(skipped), 'item')} cannot be read, {skipped[0][1]}. Without strict such "
            "items are left out and counted"
        )


def _check_features(encoder: Encoder, features: Rows, count: int) -> Rows:
    features = np.asarray(features, dtype=np.float32)
    if features.shape != (count, encoder.n_features):
        raise EncoderError(
            f"the encoder {encoder.name!r} returned an array of shape {features.shape} for {count} "
            f"items; it should be ({count}, {encoder.n_features})"
        )
    if not np.isfinite(features).all():
        raise EncoderError(f"the encoder {encoder.name!r} returned NaN or infinite features")
    return features


def _read(
    items: Sequence[Any] | Rows, encoder: Encoder, start: int, batch: int
) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield batches of prepared items in their order; an unreadable item is its `ItemError`."""

    def read(row: int) -> Any:
        try:
            return encoder.prepare(items[row])
        except ItemError as error:
            return error

    pending: deque[tuple[list[int], Iterator[Any]]] = deque()
    threads = min(THREADS, cpu_count())
    with ThreadPoolExecutor(threads, thread_name_prefix="fecam-read") as pool:
        try:
            for first in range(start, len(items), batch):
                rows = list(range(first, min(first + batch, len(items))))
                pending.append((rows, pool.map(read, rows)))
                if len(pending) > READ_AHEAD:
                    rows, prepared = pending.popleft()
                    yield rows, list(prepared)
            yield from ((rows, list(prepared)) for rows, prepared in pending)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _MemoryWriter:
    """Collects features in memory, with the interface of `FeatureWriter`."""

    def __init__(self) -> None:
        self.done, self.skipped = 0, list[tuple[int, str]]()
        self._parts: list[Rows] = []

    def add(self, features: Rows, end: int, skipped: list[tuple[int, str]]) -> None:
        self._parts.append(features)
        self.skipped += skipped
        self.done = end

    def encoded(self, width: int) -> Encoded:
        features = np.concatenate([np.zeros((0, width), np.float32), *self._parts])
        failed = dict(self.skipped)
        return Encoded(features, [row for row in range(self.done) if row not in failed], failed)
